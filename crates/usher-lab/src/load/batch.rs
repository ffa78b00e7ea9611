//! A connection that writes once for many frames.
//!
//! The HTTP/2 library flushes after each larger frame. Here its flushes do nothing, and
//! whoever drives the connection sends what has gathered when the library has nothing
//! more to add: one system call for what many requests had to say at a time.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// Bytes that gather before writing waits for the socket.
const MOST: usize = 256 << 10;

/// Bytes that are read at a time.
const READ: usize = 64 << 10;

/// A connection, plain or encrypted.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin {}

impl<I: AsyncRead + AsyncWrite + Unpin> Io for I {}

struct Inner {
    io: BufReader<Box<dyn Io>>,
    out: BytesMut,
    /// `true` if a write was told to wait.
    blocked: bool,
}

impl Inner {
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            match ready!(Pin::new(&mut self.io).poll_write(context, &self.out))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.out.advance(count),
            }
        }
        Pin::new(&mut self.io).poll_flush(context)
    }
}

/// The end for the HTTP/2 library.
pub(super) struct Batched(Rc<RefCell<Inner>>);

/// The end for who drives the connection.
pub(super) struct Sender(Rc<RefCell<Inner>>);

/// Both ends of a connection.
pub(super) fn batched(io: Box<dyn Io>) -> (Batched, Sender) {
    let io = BufReader::with_capacity(READ, io);
    let inner = Rc::new(RefCell::new(Inner { io, out: BytesMut::new(), blocked: false }));
    (Batched(inner.clone()), Sender(inner))
}

impl Sender {
    /// Drives `connection`, which reads from and writes to the other end, for a step.
    pub(super) fn poll<F: Future + Unpin>(
        &self,
        connection: &mut F,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<F::Output>> {
        loop {
            self.0.borrow_mut().blocked = false;
            let ended = Pin::new(&mut *connection).poll(context);
            let mut inner = self.0.borrow_mut();
            let sent = inner.poll_send(context)?;
            match ended {
                Poll::Ready(output) => return Poll::Ready(Ok(output)),
                // There is room again, and nobody else will tell the library.
                Poll::Pending if inner.blocked && sent.is_ready() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl AsyncRead for Batched {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(context, buffer)
    }
}

impl AsyncWrite for Batched {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.0.borrow_mut();
        if inner.out.len() >= MOST && inner.poll_send(context)?.is_pending() {
            inner.blocked = true;
            return Poll::Pending;
        }
        inner.out.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.borrow_mut();
        ready!(inner.poll_send(context))?;
        Pin::new(&mut inner.io).poll_shutdown(context)
    }
}
