//! Connections that aren't open yet: their TLS handshake, and the first bytes of HTTP/2.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::memory::{Budget, Kind, Reservation};

/// Memory of a connection that has said nothing, in bytes: its task, and the state of TLS.
const SILENT: u64 = 8 << 10;

/// Bytes that a client may send before the connection is open. A handshake takes some KiB, with a
/// certificate of the client too, and the first requests may come with its end.
const MOST: u64 = 64 << 10;

/// Bytes of those that have room whatever the pressure. A gateway that can't connect takes the server for
/// a dead one.
const FREE: u64 = 8 << 10;

/// Connections that may be opened at a time. Whoever connects and is silent holds a place until a timeout,
/// or until others need it.
pub const PLACES: usize = 1024;

/// A connection whose bytes count until it is [open](Opening::opened), as TLS keeps them until a message
/// of the handshake is complete.
#[derive(Debug)]
pub struct Opening<I> {
    io: I,
    received: u64,
    /// `None` when it is open.
    held: Option<Reservation>,
}

impl<I> Opening<I> {
    /// A connection that has said nothing.
    pub fn new(io: I, budget: &Arc<Budget>) -> Self {
        let mut held = Reservation::new(budget, Kind::Connections);
        held.set(SILENT);
        Self { io, received: 0, held: Some(held) }
    }

    /// Its handshake is over.
    pub fn opened(&mut self) {
        self.held = None;
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Opening<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(context, buffer))?;
        if let Some(held) = &mut this.held {
            this.received += (buffer.filled().len() - before) as u64;
            if this.received > MOST {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "handshake too long")));
            }
            let bytes = SILENT + this.received;
            if this.received <= FREE {
                held.set(bytes);
            } else if held.grow_to(bytes, || None).is_err() {
                return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opening<I> {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn read<I: AsyncRead + Unpin>(io: &mut I, bytes: usize) -> io::ErrorKind {
        let mut buffer = vec![0; bytes];
        io.read_exact(&mut buffer).await.err().map_or(io::ErrorKind::Other, |error| error.kind())
    }

    const READ: io::ErrorKind = io::ErrorKind::Other;

    #[tokio::test]
    async fn a_handshake_counts_and_is_not_too_long() {
        let budget = Arc::new(Budget::default());
        let mut opening = Opening::new(tokio::io::repeat(1), &budget);
        let used = || budget.used(Kind::Connections);
        assert_eq!(used(), SILENT);
        for sum in [4 << 10, 32 << 10, MOST] {
            let bytes = SILENT + sum - used();
            assert_eq!((read(&mut opening, bytes as usize).await, used()), (READ, SILENT + sum));
        }
        assert_eq!(read(&mut opening, 1).await, io::ErrorKind::InvalidData);
        let mut open = Opening::new(tokio::io::repeat(1), &budget);
        drop(opening);
        open.opened();
        assert_eq!((read(&mut open, 100 << 10).await, used()), (READ, 0));
    }

    #[tokio::test]
    async fn only_long_handshakes_need_room() {
        let budget = Arc::new(Budget::new(1 << 20, 0));
        let mut all = Reservation::new(&budget, Kind::Bodies);
        all.set(2 << 20);
        let mut opening = Opening::new(tokio::io::repeat(1), &budget);
        assert_eq!(read(&mut opening, FREE as usize).await, READ);
        assert_eq!(read(&mut opening, 1).await, io::ErrorKind::OutOfMemory);
    }
}
