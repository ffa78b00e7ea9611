//! Bytes of a ZeroMQ peer.

use bytes::{Bytes, BytesMut};
use usher_core::kv_events::{Message, Reply, Socket, Zmtp, ZmtpError, replay_request};

/// Bytes of a message at most.
const MAX: usize = 1 << 10;
/// Bytes of a topic at most.
const MAX_TOPIC: usize = 1 << 10;

/// The first byte chooses our socket; the rest is what a peer sends: from its first byte on behind `p` (a publisher of
/// ours, which engines are simulated with), `r` (a router) and `d` (a dealer, which asks for replays), and from the end of
/// its handshake on behind the capital. A subscriber reads what begins with anything else; with a space first, from the
/// end of the handshake on.
///
/// - Messages are the same however the bytes are cut.
/// - No message is larger than allowed, and no more is sent than is due.
/// - Messages that a peer of ours sends on are read as they were.
/// - Messages and replies have the number and payload of their frames.
pub fn zmtp(bytes: &[u8]) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, bytes));
    let (socket, is_ready, rest) = match first {
        b'p' | b'P' => (Socket::Publisher, *first == b'P', rest),
        b'r' | b'R' => (Socket::Router, *first == b'R', rest),
        b'd' | b'D' => (Socket::Dealer, *first == b'D', rest),
        b' ' => (Socket::Subscriber, true, rest),
        _ => (Socket::Subscriber, false, bytes),
    };
    let all = if is_ready { [&handshake(socket), rest].concat() } else { rest.to_vec() };
    let whole = read(socket, &all, all.len().max(1));
    for size in [1, 2, 7, 64] {
        assert_eq!(read(socket, &all, size), whole, "in pieces of {size} bytes");
    }
    for message in &whole.0 {
        sent_on(socket, message);
        let slices: Vec<&[u8]> = message.iter().map(Bytes::as_ref).collect();
        check(&slices);
    }
}

/// Type of the sockets that this one talks to.
fn peer(socket: Socket) -> Socket {
    match socket {
        Socket::Subscriber => Socket::Publisher,
        Socket::Publisher => Socket::Subscriber,
        Socket::Dealer => Socket::Router,
        Socket::Router => Socket::Dealer,
    }
}

/// Bytes that a well-behaved peer sends this socket until the handshake ends.
fn handshake(socket: Socket) -> Bytes {
    let (mut ours, mut theirs) = (Zmtp::new(socket, MAX), Zmtp::new(peer(socket), MAX));
    let mut input = BytesMut::from(&ours.take_out()[..]);
    assert_eq!(theirs.read_handshake(&mut input), Ok(false));
    theirs.take_out()
}

/// Messages, and the error that ended them.
fn read(socket: Socket, all: &[u8], size: usize) -> (Vec<Vec<Bytes>>, Option<ZmtpError>) {
    let mut zmtp = Zmtp::new(socket, MAX);
    let (mut input, mut messages) = (BytesMut::new(), Vec::new());
    for piece in all.chunks(size) {
        input.extend_from_slice(piece);
        loop {
            match zmtp.read(&mut input) {
                Ok(Some(frames)) => {
                    assert!(frames.iter().map(Bytes::len).sum::<usize>() <= MAX);
                    messages.push(frames.to_vec());
                }
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
        assert!(zmtp.missing_bytes(&input) <= MAX && zmtp.partial_message_bytes() <= MAX);
        assert!(zmtp.take_out().len() < 1 << 14);
    }
    (messages, None)
}

/// Has a peer of ours send a message, and reads that.
fn sent_on(socket: Socket, message: &[Bytes]) {
    let (mut ours, mut theirs) = (Zmtp::new(socket, MAX), Zmtp::new(peer(socket), MAX));
    let mut input = BytesMut::from(&handshake(peer(socket))[..]);
    assert_eq!(theirs.read_handshake(&mut input), Ok(true));
    let slices: Vec<&[u8]> = message.iter().map(Bytes::as_ref).collect();
    theirs.send(&slices);
    let mut input = BytesMut::from(&theirs.take_out()[..]);
    let read = ours.read(&mut input).expect("it was read before").map(|frames| frames.to_vec());
    assert_eq!(read.as_deref(), Some(message));
    assert_eq!(ours.read(&mut input), Ok(None));
}

/// Reads frames as the sockets do that receive events and replies.
fn check(frames: &[&[u8]]) {
    let number = |frame: &[u8]| frame.try_into().ok().map(u64::from_be_bytes);
    if let Some(message) = Message::read(frames) {
        assert_eq!(frames.len(), 3);
        assert!(frames[0].len() <= MAX_TOPIC);
        assert_eq!((Some(message.sequence), message.payload), (number(frames[1]), frames[2]));
    }
    match Reply::read(frames) {
        Some(Reply::Batch { sequence, payload }) => {
            let [.., numbered, last] = frames else { panic!("a reply of one frame") };
            assert!(frames[0].is_empty() && !payload.is_empty() && sequence != u64::MAX);
            assert_eq!((Some(sequence), payload), (number(numbered), *last));
            // A request for it is no reply.
            let [delimiter, asked] = replay_request(sequence);
            assert_eq!(Reply::read(&[&delimiter, &asked]), None);
        }
        Some(Reply::End) => assert!((3..=4).contains(&frames.len())),
        None => {}
    }
}
