//! A socket that can be closed with a TCP reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Control of a connection, for the service that runs on it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    reset: Arc<AtomicBool>,
    closed: CancellationToken,
}

impl Connection {
    /// A connection that ends when `closed` is cancelled.
    pub(crate) fn new(closed: CancellationToken) -> Self {
        Self { reset: Arc::default(), closed }
    }

    /// Resets the connection, as a process that crashed would.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Relaxed);
        self.closed.cancel();
    }

    /// Waits until the connection shall end.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// A TCP socket that is reset instead of closed when its connection says so.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, connection: &Connection) -> Self {
        Self { stream, reset: connection.reset.clone() }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.load(Relaxed) {
            // Closing with a linger time of zero sends RST. Should that fail, the close
            // that follows still ends the connection.
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
