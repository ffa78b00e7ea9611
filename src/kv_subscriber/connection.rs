//! A ZeroMQ connection.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use usher_core::kv_events::{Frames, Socket, Zmtp};

/// Bytes of a message at most: the blocks of some million tokens.
pub(super) const MAX_MESSAGE: usize = 16 << 20;
/// Time for a connection and its handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Bytes read at a time, at least.
const READ: usize = 16 << 10;
/// Time for a message from its first byte on.
const MESSAGE: Duration = Duration::from_secs(30);
/// Bytes of a message from which on it has to be one of those that may be large, and how many these are at a time:
/// 256 MiB in all.
const LARGE: usize = 64 << 10;
static LARGE_ONES: Semaphore = Semaphore::const_new(16);

/// A connection whose handshake is over.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    zmtp: Zmtp,
    input: BytesMut,
}

impl Connection {
    /// Connects to an address.
    ///
    /// # Errors
    /// `io::Error` if the connection is refused, the peer doesn't speak ZMTP, or a step times out.
    pub(super) async fn open(address: std::net::SocketAddr, socket: Socket) -> io::Result<Self> {
        let connect = async { Self::shake_hands(TcpStream::connect(address).await?, socket).await };
        timeout(HANDSHAKE, connect).await?
    }

    /// Takes a connection that was accepted.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub(super) async fn accept(stream: TcpStream, socket: Socket) -> io::Result<Self> {
        timeout(HANDSHAKE, Self::shake_hands(stream, socket)).await?
    }

    async fn shake_hands(stream: TcpStream, socket: Socket) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let zmtp = Zmtp::new(socket, MAX_MESSAGE);
        let mut connection = Self { stream, zmtp, input: BytesMut::new() };
        while !connection.zmtp.is_ready() {
            connection.flush().await?;
            // No message comes before the handshake is over; one that came with it is read below.
            if connection.zmtp.read_handshake(&mut connection.input).map_err(io::Error::other)? {
                break;
            }
            connection.flush().await?;
            connection.fill().await?;
        }
        connection.flush().await?;
        Ok(connection)
    }

    /// Subscribes to messages whose topic begins with this.
    pub(super) async fn subscribe(&mut self, topic: &[u8]) -> io::Result<()> {
        self.zmtp.subscribe(topic);
        self.flush().await
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        self.zmtp.send(frames);
        self.flush().await
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// `io::Error` if the connection ends, or the peer violates ZMTP or stops within a message.
    pub(super) async fn next(&mut self) -> io::Result<Frames> {
        let (mut deadline, mut large) = (None, None);
        loop {
            if let Some(frames) = self.zmtp.read(&mut self.input).map_err(io::Error::other)? {
                return Ok(frames);
            }
            self.flush().await?;
            if self.input.is_empty() && !self.zmtp.is_midway() {
                deadline = None;
                self.fill().await?;
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + MESSAGE);
            if self.input.len() + self.zmtp.midway_bytes() > LARGE && large.is_none() {
                let turn = timeout_at(deadline, LARGE_ONES.acquire()).await?;
                large = Some(turn.map_err(io::Error::other)?);
            }
            timeout_at(deadline, self.fill()).await??;
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        // Grows with what comes, not with what is announced.
        let room = self.zmtp.wants(&self.input).clamp(READ, READ.max(self.input.len()));
        self.input.reserve(room);
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A connection to a publisher that sends these bytes behind its handshake, on a clock that stands still. The
    /// publisher stays as long as its task.
    async fn connection(bytes: Vec<u8>) -> (Connection, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let publisher = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
            greeting.extend(b"NULL");
            greeting.resize(64, 0);
            greeting.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
            stream.write_all(&[greeting, bytes].concat()).await.unwrap();
            std::future::pending().await
        });
        let connection = Connection::open(address, Socket::Subscriber).await.unwrap();
        tokio::time::pause();
        (connection, publisher)
    }

    #[tokio::test]
    async fn endless_message_closes_its_connection() {
        for part in [&b"\x01\x02k"[..], b"\x01\x02kv"] {
            let (mut connection, publisher) = connection(part.to_vec()).await;
            let start = Instant::now();
            assert_eq!(connection.next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert!(start.elapsed() >= MESSAGE);
            publisher.abort();
            tokio::time::resume();
        }
    }

    #[tokio::test]
    async fn large_messages_take_turns() {
        let mut large = vec![2];
        large.extend((1u64 << 20).to_be_bytes());
        large.resize(large.len() + (1 << 20), 0);
        let all = LARGE_ONES.acquire_many(16).await.unwrap();
        let (mut waits, publisher) = connection(large.clone()).await;
        assert_eq!(waits.next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        publisher.abort();
        tokio::time::resume();
        drop(all);
        let (mut connection, _publisher) = connection(large).await;
        tokio::time::resume();
        assert_eq!(connection.next().await.unwrap()[0].len(), 1 << 20);
    }
}
