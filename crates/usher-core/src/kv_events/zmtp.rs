//! ZMTP 3.0, the protocol of ZeroMQ, as pickers and engines speak it (`rfc.zeromq.org/spec/23`).
//!
//! A state machine: bytes that came in go in, messages come out, with bytes to send. The mechanism is NULL: engines
//! have no other. Bounds are checked before anything is allocated, so a peer can make this take no more than the size
//! of one message.

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;

/// Type of our socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// Receives what a PUB or XPUB socket sends.
    Subscriber,
    /// Asks a ROUTER or REP socket.
    Dealer,
    /// Sends to SUB or XSUB sockets, which say what they want.
    Publisher,
    /// Answers DEALER or REQ sockets.
    Router,
}

impl Socket {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Subscriber => b"SUB",
            Self::Dealer => b"DEALER",
            Self::Publisher => b"PUB",
            Self::Router => b"ROUTER",
        }
    }

    fn accepts(self, peer: &[u8]) -> bool {
        match self {
            Self::Subscriber => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"REP" | b"DEALER"),
            Self::Publisher => matches!(peer, b"SUB" | b"XSUB"),
            Self::Router => matches!(peer, b"DEALER" | b"REQ" | b"ROUTER"),
        }
    }
}

/// Reason why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// The peer doesn't speak ZMTP 3 without authentication.
    #[error("the peer does not speak ZMTP 3 with the NULL mechanism")]
    Greeting,
    /// A command that makes no sense where it is.
    #[error("the peer's handshake is malformed")]
    Handshake,
    /// The peer's socket is of a type that doesn't fit.
    #[error("the peer's socket is of another type")]
    SocketType,
    /// The peer refused.
    #[error("the peer refused the connection")]
    Refused,
    /// A message is too large or has too many frames.
    #[error("a message is larger than allowed")]
    TooLarge,
}

/// Frames of a message.
pub type Frames = SmallVec<[Bytes; 4]>;

/// Frames of a message that count at most: topic, sequence number, payload, and room for what is to come.
const MAX_FRAMES: usize = 16;
/// Bytes of a command at most. A READY has some names and values.
const MAX_COMMAND: usize = 1 << 12;
const GREETING: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Reading and writing side of a connection.
#[derive(Debug)]
pub struct Zmtp {
    socket: Socket,
    max_message: usize,
    state: State,
    frames: Frames,
    /// Bytes in `frames`.
    size: usize,
    /// Bytes to send.
    out: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Handshake,
    Traffic,
}

impl Zmtp {
    /// Begins a connection, on either side. `max_message`: bytes of a message at most.
    pub fn new(socket: Socket, max_message: usize) -> Self {
        let mut out = BytesMut::with_capacity(GREETING);
        // Signature, version 3.0, mechanism, not as a server, filler.
        out.extend_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0]);
        out.extend_from_slice(b"NULL");
        out.resize(GREETING, 0);
        Self { socket, max_message, state: State::Greeting, frames: Frames::new(), size: 0, out }
    }

    /// Bytes to send. Empty once they were taken.
    pub fn take_out(&mut self) -> Bytes {
        self.out.split().freeze()
    }

    /// Returns `true` once the handshake is over.
    pub fn is_ready(&self) -> bool {
        self.state == State::Traffic
    }

    /// Subscribes to messages whose topic begins with this. To be called when the handshake is over.
    pub fn subscribe(&mut self, topic: &[u8]) {
        let mut body = BytesMut::with_capacity(topic.len() + 1);
        body.extend_from_slice(&[1]);
        body.extend_from_slice(topic);
        self.frame(0, &body);
    }

    /// Sends a message. To be called when the handshake is over.
    pub fn send(&mut self, frames: &[&[u8]]) {
        let last = frames.len().saturating_sub(1);
        for (at, frame) in frames.iter().enumerate() {
            self.frame(if at < last { MORE } else { 0 }, frame);
        }
    }

    fn frame(&mut self, flags: u8, body: &[u8]) {
        match u8::try_from(body.len()) {
            Ok(len) => self.out.extend_from_slice(&[flags, len]),
            Err(_) => {
                self.out.extend_from_slice(&[flags | LONG]);
                self.out.extend_from_slice(&(body.len() as u64).to_be_bytes());
            }
        }
        self.out.extend_from_slice(body);
    }

    /// Goes on with the handshake. Returns whether it is over; then no byte behind it was taken.
    ///
    /// # Errors
    /// `ZmtpError` if the peer violates ZMTP or a limit; the connection has to be closed.
    pub fn read_handshake(&mut self, input: &mut BytesMut) -> Result<bool, ZmtpError> {
        if self.state == State::Greeting {
            if !self.greeting(input)? {
                return Ok(false);
            }
            self.ready();
            self.state = State::Handshake;
        }
        while self.state == State::Handshake
            && let Some((flags, body)) = self.next_frame(input)?
        {
            if flags & COMMAND == 0 {
                return Err(ZmtpError::Handshake);
            }
            self.command(&body)?;
        }
        Ok(self.is_ready())
    }

    /// Reads the next message from what came in, and takes what it read. `None`: more has to come.
    ///
    /// # Errors
    /// `ZmtpError` if the peer violates ZMTP or a limit; the connection has to be closed.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Option<Frames>, ZmtpError> {
        if !self.read_handshake(input)? {
            return Ok(None);
        }
        while let Some((flags, body)) = self.next_frame(input)? {
            if flags & COMMAND != 0 {
                self.command(&body)?;
                continue;
            }
            self.size += body.len();
            self.frames.push(body);
            if flags & MORE == 0 {
                self.size = 0;
                return Ok(Some(std::mem::take(&mut self.frames)));
            }
        }
        Ok(None)
    }

    /// Returns `true` if some frames of a message came and others didn't.
    pub fn has_partial_message(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Bytes of these frames.
    pub fn partial_message_bytes(&self) -> usize {
        self.size
    }

    /// Bytes that are missing of the frame under way, as far as is known: room that a reader may make. Bounded.
    pub fn missing_bytes(&self, input: &[u8]) -> usize {
        match head(input) {
            Some((_, from, len)) if self.state != State::Greeting => {
                let whole = from.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
                whole.min(self.max_message).saturating_sub(input.len())
            }
            _ => 0,
        }
    }

    fn greeting(&self, input: &mut BytesMut) -> Result<bool, ZmtpError> {
        // Fails as soon as can be: peers that speak something else may wait for us.
        let is_wrong = |at: usize, wrong: fn(u8) -> bool| input.get(at).is_some_and(|byte| wrong(*byte));
        if is_wrong(0, |byte| byte != 0xff)
            || is_wrong(9, |byte| byte != 0x7f)
            || is_wrong(10, |byte| byte < 3)
        {
            return Err(ZmtpError::Greeting);
        }
        if input.len() < GREETING {
            return Ok(false);
        }
        let greeting = input.split_to(GREETING);
        let is_null =
            greeting.get(12..32).is_some_and(|name| name.strip_prefix(b"NULL").is_some_and(is_padding));
        if is_null { Ok(true) } else { Err(ZmtpError::Greeting) }
    }

    fn ready(&mut self) {
        let mut body = BytesMut::from(&b"\x05READY\x0bSocket-Type"[..]);
        let name = self.socket.name();
        body.extend_from_slice(&(name.len() as u32).to_be_bytes());
        body.extend_from_slice(name);
        self.frame(COMMAND, &body);
    }

    /// Takes the next frame with its flags, if all of it is there.
    fn next_frame(&mut self, input: &mut BytesMut) -> Result<Option<(u8, Bytes)>, ZmtpError> {
        let Some((flags, from, len)) = head(input) else { return Ok(None) };
        let room = match flags & COMMAND {
            0 if self.frames.len() >= MAX_FRAMES => return Err(ZmtpError::TooLarge),
            0 => self.max_message.saturating_sub(self.size),
            _ => MAX_COMMAND,
        };
        let len = usize::try_from(len).ok().filter(|len| *len <= room).ok_or(ZmtpError::TooLarge)?;
        if input.len() < from + len {
            return Ok(None);
        }
        input.advance(from);
        Ok(Some((flags, input.split_to(len).freeze())))
    }

    fn command(&mut self, body: &[u8]) -> Result<(), ZmtpError> {
        let (name, rest) = prefixed(body).ok_or(ZmtpError::Handshake)?;
        match (name, self.state) {
            (b"READY", State::Handshake) => {
                let peer = property(rest, b"socket-type").ok_or(ZmtpError::Handshake)?;
                if !self.socket.accepts(peer) {
                    return Err(ZmtpError::SocketType);
                }
                self.state = State::Traffic;
                Ok(())
            }
            (b"ERROR", _) => Err(ZmtpError::Refused),
            (_, State::Handshake) => Err(ZmtpError::Handshake),
            (b"PING", _) => {
                // Behind a time to live of two bytes there may be something to send back.
                let context = rest.get(2..).unwrap_or_default();
                let context = context.get(..16).unwrap_or(context);
                // Bounded where a peer sends but never reads.
                if self.out.len() < MAX_COMMAND {
                    let pong = [b"\x04PONG", context].concat();
                    self.frame(COMMAND, &pong);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Flags of the next frame, where its body begins, and the length of that.
fn head(input: &[u8]) -> Option<(u8, usize, u64)> {
    let flags = *input.first()?;
    if flags & LONG == 0 {
        return Some((flags, 2, u64::from(*input.get(1)?)));
    }
    let len: [u8; 8] = input.get(1..9)?.try_into().ok()?;
    Some((flags, 9, u64::from_be_bytes(len)))
}

fn is_padding(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// A name behind its length, and what follows.
fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// Value of a property, whose name is in small letters here and in any there.
fn property<'a>(mut properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    while !properties.is_empty() {
        let (key, rest) = prefixed(properties)?;
        let (len, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        properties = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 12;

    fn greeting() -> Vec<u8> {
        Zmtp::new(Socket::Subscriber, MAX).take_out().to_vec()
    }

    fn ready(socket: &[u8]) -> Vec<u8> {
        let mut body = b"\x05READY\x08Identity\0\0\0\0\x0bSocket-Type\0\0\0".to_vec();
        body.push(socket.len() as u8);
        body.extend_from_slice(socket);
        [&[COMMAND, body.len() as u8], &body[..]].concat()
    }

    /// A connection after its handshake.
    fn connected(socket: Socket, peer: &[u8]) -> Zmtp {
        let mut zmtp = Zmtp::new(socket, MAX);
        let mut input = BytesMut::from(&[greeting(), ready(peer)].concat()[..]);
        assert_eq!(zmtp.read(&mut input), Ok(None));
        assert!(zmtp.is_ready() && input.is_empty());
        zmtp.take_out();
        zmtp
    }

    fn read(zmtp: &mut Zmtp, bytes: &[u8]) -> Result<Vec<Vec<Bytes>>, ZmtpError> {
        let (mut input, mut messages) = (BytesMut::from(bytes), Vec::new());
        while let Some(frames) = zmtp.read(&mut input)? {
            messages.push(frames.to_vec());
        }
        Ok(messages)
    }

    #[test]
    fn a_handshake_ends_with_the_socket_type() {
        let mut zmtp = Zmtp::new(Socket::Dealer, MAX);
        assert_eq!(zmtp.take_out().len(), GREETING);
        let mut input = BytesMut::new();
        for byte in [greeting(), ready(b"ROUTER")].concat() {
            assert!(!zmtp.is_ready());
            input.extend_from_slice(&[byte]);
            assert_eq!(zmtp.read(&mut input), Ok(None));
        }
        assert!(zmtp.is_ready());
        assert_eq!(zmtp.take_out()[..], *b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER");
        zmtp.subscribe(b"kv@");
        zmtp.send(&[b"", b"\x07"]);
        assert_eq!(zmtp.take_out()[..], *b"\0\x04\x01kv@\x01\0\0\x01\x07");
    }

    #[test]
    fn frames_of_a_message_come_together() {
        let mut zmtp = connected(Socket::Subscriber, b"XPUB");
        let long = vec![7; 300];
        let bytes = [&b"\x01\x01t\x03\0\0\0\0\0\0\x01\x2c"[..], &long, b"\0\0\0\x01x"].concat();
        let messages = read(&mut zmtp, &bytes).unwrap();
        assert_eq!(messages, [vec![Bytes::from("t"), long.into(), Bytes::new()], vec![Bytes::from("x")]]);
    }

    #[test]
    fn pings_are_answered_within_a_bound() {
        let mut zmtp = connected(Socket::Subscriber, b"PUB");
        let ping = b"\x04\x09\x04PING\0\x0aab";
        assert_eq!(read(&mut zmtp, ping), Ok(vec![]));
        assert_eq!(zmtp.take_out()[..], *b"\x04\x07\x04PONGab");
        assert_eq!(read(&mut zmtp, &ping.repeat(10_000)), Ok(vec![]));
        assert!(zmtp.take_out().len() < 2 * MAX_COMMAND);
    }

    #[test]
    fn other_protocols_than_zmtp_are_refused() {
        use ZmtpError::*;
        let plain = [&greeting()[..12], b"PLAIN", &[0; 47]].concat();
        let table: [(&[u8], ZmtpError); 9] = [
            (b"HTTP/1.1 400 Bad Request", Greeting),
            (&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1], Greeting),
            (&plain, Greeting),
            (&[greeting(), ready(b"PULL")].concat(), SocketType),
            (&[greeting(), b"\x04\x03\x05RE".to_vec()].concat(), Handshake),
            (&[greeting(), b"\x04\x06\x05HELLO".to_vec()].concat(), Handshake),
            (&[greeting(), b"\0\x01x".to_vec()].concat(), Handshake),
            (&[greeting(), b"\x04\x07\x05ERROR\0".to_vec()].concat(), Refused),
            (&[greeting(), [6, 0xff].repeat(9)].concat(), TooLarge),
        ];
        for (bytes, error) in table {
            assert_eq!(read(&mut Zmtp::new(Socket::Subscriber, MAX), bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn messages_have_a_bound() {
        let mut zmtp = connected(Socket::Subscriber, b"PUB");
        assert_eq!(read(&mut zmtp, b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"), Err(ZmtpError::TooLarge));
        let mut zmtp = connected(Socket::Subscriber, b"PUB");
        let frames = [&b"\x03\0\0\0\0\0\0\x0f\xff"[..], &[0; 0xfff], b"\x01\x02ab"].concat();
        assert_eq!(read(&mut zmtp, &frames), Err(ZmtpError::TooLarge));
        let mut zmtp = connected(Socket::Subscriber, b"PUB");
        assert_eq!(read(&mut zmtp, &[1, 0].repeat(17)), Err(ZmtpError::TooLarge));
        assert_eq!(zmtp.missing_bytes(b"\x02\0\0\0\0\0\0\x01\0"), 256);
        assert_eq!(zmtp.missing_bytes(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"), MAX - 9);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_at_any_split(bytes in prop::collection::vec(0..8u8, 0..400), cut in 1..50usize) {
            let all = [greeting(), ready(b"PUB"), bytes].concat();
            let whole = read(&mut Zmtp::new(Socket::Subscriber, 64), &all);
            let (mut zmtp, mut input, mut messages) = (Zmtp::new(Socket::Subscriber, 64), BytesMut::new(), Vec::new());
            let mut result = Ok(());
            'all: for chunk in all.chunks(cut) {
                input.extend_from_slice(chunk);
                loop {
                    match zmtp.read(&mut input) {
                        Ok(Some(frames)) => messages.push(frames.to_vec()),
                        Ok(None) => break,
                        Err(error) => {
                            result = Err(error);
                            break 'all;
                        }
                    }
                }
            }
            prop_assert_eq!(whole, result.map(|()| messages));
        }
    }
}
