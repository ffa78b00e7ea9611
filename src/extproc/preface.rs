//! The first bytes of an HTTP/2 connection. They are read before hyper gets it, because
//! hyper waits for them as long as it takes, and doesn't report when they came.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::forward::forward_all_but_writes;

/// Bytes that every HTTP/2 client sends first (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose preface has come. Reading from it gives the preface again.
#[derive(Debug)]
pub struct WithPreface<I> {
    io: I,
    /// The part of the preface that has not been given again.
    preface: &'static [u8],
}

impl<I: AsyncRead + Unpin> WithPreface<I> {
    /// Reads the preface.
    ///
    /// # Errors
    /// `io::Error` at the first byte that differs, and if the client disconnects before the end.
    pub async fn read(mut io: I) -> io::Result<Self> {
        let mut missing = PREFACE;
        while !missing.is_empty() {
            let mut buffer = [0; PREFACE.len()];
            let count = io.read(&mut buffer[..missing.len()]).await?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "left before the HTTP/2 preface"));
            }
            let (expected, rest) = missing.split_at(count);
            if buffer[..count] != *expected {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "does not speak HTTP/2"));
            }
            missing = rest;
        }
        Ok(Self { io, preface: PREFACE })
    }

    /// The connection below.
    pub fn io_mut(&mut self) -> &mut I {
        &mut self.io
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for WithPreface<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.preface.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let (now, later) = self.preface.split_at(self.preface.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.preface = later;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for WithPreface<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    forward_all_but_writes!();

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
    use super::*;

    #[tokio::test]
    async fn the_preface_is_read_again_in_pieces_of_any_size() {
        for size in [1, 5, 24, 100] {
            let sent = [PREFACE, b"and more"].concat();
            // In two pieces, as a network may deliver it.
            let mut greeted = WithPreface::read(sent[..7].chain(&sent[7..])).await.unwrap();
            let mut seen: Vec<u8> = Vec::new();
            loop {
                let mut piece = vec![0; size];
                let count = greeted.read(&mut piece).await.unwrap();
                if count == 0 {
                    break;
                }
                seen.extend(&piece[..count]);
            }
            assert_eq!(seen, sent, "{size}");
        }
    }

    #[tokio::test]
    async fn other_protocols_are_detected_by_their_first_bytes() {
        let table = [
            (&b"GET / HTTP/1.1\r\n"[..], io::ErrorKind::InvalidData),
            (b"PRI * HTTP/1", io::ErrorKind::InvalidData),
            (b"PRI * HTTP/2", io::ErrorKind::UnexpectedEof),
            (b"", io::ErrorKind::UnexpectedEof),
        ];
        for (sent, kind) in table {
            assert_eq!(WithPreface::read(sent).await.unwrap_err().kind(), kind, "{sent:?}");
        }
    }
}
