//! A ZeroMQ connection.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use usher_core::kv_events::{Frames, Socket, Zmtp};

use super::room::{LARGE, MAX_MESSAGE, Room, Rooms};

/// Time for a connection and its handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Bytes read at a time, at least.
const READ: usize = 16 << 10;
/// Time for a message from its first byte on.
const MESSAGE: Duration = Duration::from_secs(30);
/// A peer whose host is gone is noticed within a minute and a half, also if it has not read what was sent.
const KEEPALIVE: Duration = Duration::from_secs(30);
const PROBES: Duration = Duration::from_secs(10);
const MOST_PROBES: u32 = 3;
#[cfg(target_os = "linux")]
const UNREAD: Duration = Duration::from_secs(80);

/// A message, with its memory.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) frames: Frames,
    pub(super) room: Room,
}

impl Received {
    /// The last frame. That of a small message is copied: it would keep what else came with it.
    pub(super) fn payload(&self) -> Bytes {
        match self.frames.last() {
            Some(payload) if payload.len() > LARGE => payload.clone(),
            payload => payload.map(|payload| Bytes::copy_from_slice(payload)).unwrap_or_default(),
        }
    }
}

/// A connection whose handshake is over.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    zmtp: Zmtp,
    input: BytesMut,
    rooms: Rooms,
    /// Memory of `input`, and of the frames of a message whose last one is missing.
    room: Room,
}

impl Connection {
    /// Connects to an address.
    ///
    /// # Errors
    /// `io::Error` if the connection is refused, the peer doesn't speak ZMTP, or a step times out.
    pub(super) async fn open(
        address: std::net::SocketAddr,
        socket: Socket,
        rooms: &Rooms,
    ) -> io::Result<Self> {
        let connect = async { Self::shake_hands(TcpStream::connect(address).await?, socket, rooms).await };
        timeout(HANDSHAKE, connect).await?
    }

    /// Takes a connection that was accepted.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub(super) async fn accept(stream: TcpStream, socket: Socket, rooms: &Rooms) -> io::Result<Self> {
        timeout(HANDSHAKE, Self::shake_hands(stream, socket, rooms)).await?
    }

    async fn shake_hands(stream: TcpStream, socket: Socket, rooms: &Rooms) -> io::Result<Self> {
        notice_loss(&stream)?;
        let zmtp = Zmtp::new(socket, MAX_MESSAGE);
        let (input, rooms, room) = (BytesMut::new(), rooms.clone(), rooms.room());
        let mut connection = Self { stream, zmtp, input, rooms, room };
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
    /// `io::Error` if the connection ends, or the peer violates ZMTP, or a message isn't there in time: its peer stops,
    /// or it has no room.
    pub(super) async fn next(&mut self) -> io::Result<Received> {
        let mut deadline = None;
        loop {
            if let Some(frames) = self.zmtp.read(&mut self.input).map_err(io::Error::other)? {
                return Ok(self.received(frames));
            }
            self.flush().await?;
            if self.input.is_empty() && !self.zmtp.has_partial_message() {
                deadline = None;
                self.begin().await?;
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + MESSAGE);
            timeout_at(deadline, self.fill()).await??;
        }
    }

    /// A message. The buffer and the memory of a large one go with it.
    fn received(&mut self, frames: Frames) -> Received {
        let mut room = self.rooms.room();
        if self.room.is_large() {
            self.input = BytesMut::from(&self.input[..]);
            room.fit(self.input.capacity());
            std::mem::swap(&mut room, &mut self.room);
        }
        Received { frames, room }
    }

    /// Waits for the first bytes of a message, and holds nothing meanwhile.
    async fn begin(&mut self) -> io::Result<()> {
        loop {
            self.input = BytesMut::new();
            self.room.fit(0);
            self.stream.readable().await?;
            self.input.reserve(READ);
            self.room.fit(READ);
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                // It counts as readable until a read says otherwise.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        let arrived = self.zmtp.partial_message_bytes() + self.input.len();
        // Grows with what comes, not with what is announced.
        let more = self.zmtp.missing_bytes(&self.input).clamp(READ, READ.max(self.input.len()));
        self.room.grow(arrived + more, arrived > LARGE).await;
        if self.input.capacity() - self.input.len() < more {
            // No more than that, as counted.
            let mut input = BytesMut::with_capacity(self.input.len() + more);
            input.extend_from_slice(&self.input);
            self.input = input;
        }
        match self.stream.read_buf(&mut (&mut self.input).limit(more)).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let out = self.zmtp.take_out();
        if out.is_empty() { Ok(()) } else { self.stream.write_all(&out).await }
    }
}

fn notice_loss(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(PROBES).with_retries(MOST_PROBES);
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNREAD))?;
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;
    use usher_core::memory::{Budget, Kind};

    use super::*;

    /// A connection to a publisher that sends these bytes behind its handshake, on a clock that stands still. The
    /// publisher stays as long as its task.
    async fn connection(bytes: Vec<u8>, rooms: &Rooms) -> (Connection, JoinHandle<()>) {
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
        let connection = Connection::open(address, Socket::Subscriber, rooms).await.unwrap();
        tokio::time::pause();
        (connection, publisher)
    }

    #[tokio::test]
    async fn lost_peers_are_noticed_without_messages() {
        let (connection, publisher) = connection(vec![], &Rooms::new(&Arc::default())).await;
        let socket = SockRef::from(&connection.stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNREAD));
        publisher.abort();
        tokio::time::resume();
    }

    #[tokio::test]
    async fn endless_message_closes_its_connection() {
        for part in [&b"\x01\x02k"[..], b"\x01\x02kv"] {
            let (mut connection, publisher) = connection(part.to_vec(), &Rooms::new(&Arc::default())).await;
            let start = Instant::now();
            assert_eq!(connection.next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert!(start.elapsed() >= MESSAGE);
            publisher.abort();
            tokio::time::resume();
        }
    }

    /// A message of one frame of so many bytes.
    fn message(bytes: u32) -> Vec<u8> {
        let mut message = vec![2];
        message.extend(u64::from(bytes).to_be_bytes());
        message.resize(message.len() + bytes as usize, 0);
        message
    }

    #[tokio::test]
    async fn large_messages_take_turns_until_they_are_dropped() {
        // One at a time.
        let budget = Arc::new(Budget::of_process(128 << 20, None));
        let rooms = Rooms::new(&budget);
        let (mut first, _publisher) = connection(message(1 << 20), &rooms).await;
        tokio::time::resume();
        let received = first.next().await.unwrap();
        assert_eq!(received.payload().len(), 1 << 20);
        let (mut waits, _publisher) = connection(message(1 << 20), &rooms).await;
        assert_eq!(waits.next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        tokio::time::resume();
        drop((received, waits));
        let (mut next, _publisher) = connection(message(1 << 20), &rooms).await;
        tokio::time::resume();
        assert_eq!(next.next().await.unwrap().payload().len(), 1 << 20);
    }

    #[tokio::test]
    async fn a_connection_keeps_no_memory_of_its_messages() {
        let budget = Arc::new(Budget::of_process(256 << 20, None));
        let rooms = Rooms::new(&budget);
        let used = || budget.used(Kind::PrefixIndex);
        let bytes = [message(2 << 20), message(10), message(3 << 20), message(60 << 10)].concat();
        let (mut connection, _publisher) = connection(bytes, &rooms).await;
        tokio::time::resume();
        for bytes in [2 << 20, 10, 3 << 20, 60 << 10] {
            let received = connection.next().await.unwrap();
            assert_eq!(received.payload().len(), bytes);
            let of_message = if bytes > LARGE { bytes as u64 } else { 0 };
            assert!((of_message..=of_message + (256 << 10)).contains(&used()), "{} of {bytes}", used());
            assert!(connection.input.capacity() <= LARGE + 2 * READ);
            drop(received);
        }
        assert!(timeout(Duration::from_millis(1), connection.next()).await.is_err());
        assert_eq!((used(), connection.input.capacity()), (0, 0));
    }
}
