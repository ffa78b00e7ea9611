//! Bytes of a ZeroMQ peer.

use bytes::{Bytes, BytesMut};
use usher_core::kv_events::{Socket, Zmtp, ZmtpError};

/// Bytes of a message at most.
const MAX: usize = 1 << 10;

/// The input is what a peer sends from its first byte on; with a space first, from the end of its handshake on.
///
/// - Messages are the same however the bytes are cut.
/// - No message is larger than allowed, and no more is sent than is due.
pub fn zmtp(bytes: &[u8]) {
    let handshake = [&greeting()[..], b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"].concat();
    let all = match bytes.strip_prefix(b" ") {
        Some(rest) => [&handshake, rest].concat(),
        None => bytes.to_vec(),
    };
    let whole = read(&all, all.len().max(1));
    for size in [1, 2, 7, 64] {
        assert_eq!(read(&all, size), whole, "in pieces of {size} bytes");
    }
}

fn greeting() -> Bytes {
    Zmtp::new(Socket::Subscriber, MAX).take_out()
}

/// Messages, and the error that ended them.
fn read(all: &[u8], size: usize) -> (Vec<Vec<Bytes>>, Option<ZmtpError>) {
    let mut zmtp = Zmtp::new(Socket::Subscriber, MAX);
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
        assert!(zmtp.wants(&input) <= MAX);
        assert!(zmtp.take_out().len() < 1 << 14);
    }
    (messages, None)
}
