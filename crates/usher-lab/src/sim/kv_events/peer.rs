//! A ZeroMQ connection of a publisher.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use usher_core::kv_events::{Frames, Socket, Zmtp};

/// Bytes of a message at most: a topic, or the number of a message.
const MAX_MESSAGE: usize = 4096;
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A connection whose handshake is over.
#[derive(Debug)]
pub(super) struct Peer {
    stream: TcpStream,
    zmtp: Zmtp,
    input: BytesMut,
}

impl Peer {
    /// Shakes hands, whoever made the connection.
    ///
    /// # Errors
    /// `io::Error` if the peer speaks another protocol, or doesn't respond in time.
    pub(super) async fn new(stream: TcpStream, socket: Socket) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let mut peer = Self { stream, zmtp: Zmtp::new(socket, MAX_MESSAGE), input: BytesMut::new() };
        timeout(HANDSHAKE, peer.shake_hands()).await??;
        Ok(peer)
    }

    async fn shake_hands(&mut self) -> io::Result<()> {
        self.flush().await?;
        while !self.zmtp.read_handshake(&mut self.input).map_err(io::Error::other)? {
            self.flush().await?;
            self.fill().await?;
        }
        self.flush().await
    }

    /// Waits for the next message. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> io::Result<Frames> {
        loop {
            if let Some(frames) = self.zmtp.read(&mut self.input).map_err(io::Error::other)? {
                return Ok(frames);
            }
            self.fill().await?;
        }
    }

    /// Sends a message, and what the protocol has to say.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        self.zmtp.send(frames);
        self.flush().await
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let out = self.zmtp.take_out();
        if out.is_empty() { Ok(()) } else { self.stream.write_all(&out).await }
    }
}
