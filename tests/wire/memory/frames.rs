//! More small frames than HTTP/2 libraries are used to.

use super::raw::{DATA, GOAWAY, Raw};
use super::*;

/// Twenty requests at once whose bodies come in messages of one byte.
#[test]
fn bodies_in_messages_of_one_byte_are_served() {
    const STREAMS: u32 = 20;
    let process = Process::start(1024, 1, &[]);
    let mut raw = Raw::connect(process.extproc, 1 << 20);
    let streams = (0..STREAMS).map(|index| 2 * index + 1);
    for stream in streams.clone() {
        raw.open(stream);
        raw.request(stream, &COMPLETION, false);
    }
    let text = format!(r#"{{"model":"m","prompt":"{}"}}"#, "z".repeat(10_000));
    for (at, byte) in text.bytes().enumerate() {
        streams.clone().for_each(|stream| raw.body(stream, &[byte], at + 1 == text.len()));
    }
    raw.send();
    // The reply to each has its body, of 10 KB.
    let mut received = vec![0; STREAMS as usize];
    while received.iter().any(|bytes| *bytes < text.len()) {
        let frame = raw.next().expect("the connection ended");
        assert_ne!(frame.kind, GOAWAY);
        if frame.kind == DATA {
            received[frame.stream as usize / 2] += frame.payload.len();
        }
    }
    assert_eq!(process.metric("usher_connections_goaway_total"), 0.0);
}

/// A budget that many connections share, and streams that don't read one small message after the
/// other, as those whose replies can't be sent.
#[tokio::test]
async fn unread_small_frames_end_no_connection() {
    const STREAMS: u32 = 1000;
    const EACH: u32 = 20;
    let process = Process::start(256, 1, &[]);
    let _others: Vec<_> = (0..40)
        .map(|_| {
            let mut other = Raw::connect(process.extproc, 0);
            assert!(other.is_alive());
            other
        })
        .collect();
    let mut raw = Raw::connect(process.extproc, 0);
    for stream in (0..STREAMS).map(|index| 2 * index + 1) {
        raw.open(stream);
        raw.request(stream, &[(":method", "GET"), (":path", "/v1/models")], true);
    }
    assert!(raw.is_alive());
    // Each has a reply now that can't be sent.
    settle(|| process.metric("usher_memory_streams_bytes") >= f64::from(STREAMS * 8192)).await;
    for stream in (0..STREAMS).map(|index| 2 * index + 1) {
        for _ in 0..EACH {
            raw.frame(DATA, 0, stream, &[0]);
        }
        // Not more at a time than is read in between.
        assert!(raw.is_alive());
    }
    let unread = || process.metric("usher_memory_unread_bytes");
    assert!(unread() > f64::from(STREAMS * EACH * 200), "{}", unread());
    assert_eq!(process.metric("usher_connections_goaway_total"), 0.0);
    // A stream that ends gives back what it held, and the connection the rest.
    (0..STREAMS).for_each(|index| raw.reset(2 * index + 1));
    assert!(raw.is_alive());
    drop(raw);
    settle(|| unread() == 0.0).await;
}

/// Streams that end on our side while the client goes on sending.
#[tokio::test]
async fn late_small_frames_end_no_connection() {
    let process = Process::start(256, 1, &[]);
    let mut raw = Raw::connect(process.extproc, 1 << 20);
    for stream in (0..50).map(|index| 2 * index + 1) {
        raw.open(stream);
        // A message of 2 GiB is refused by its length.
        raw.frame(DATA, 0, stream, &[0, 0x7f, 0xff, 0xff, 0xff]);
        raw.ended(stream);
        for _ in 0..2000 {
            raw.frame(DATA, 0, stream, &[0]);
        }
        assert!(raw.is_alive());
        raw.reset(stream);
    }
    assert!(raw.is_alive());
    let unread = || process.metric("usher_memory_unread_bytes");
    settle(|| unread() == 0.0).await;
    assert_eq!(process.metric("usher_connections_goaway_total"), 0.0);
}

#[tokio::test]
async fn closed_connection_is_counted_and_logged_with_its_reason() {
    let process = Process::start(256, 1, &[]);
    let mut raw = Raw::connect(process.extproc, 1 << 20);
    raw.open(1);
    for _ in 0..200 {
        raw.frame(DATA, 0, 1, &[]);
    }
    assert!(!raw.is_alive());
    drop(raw);
    settle(|| process.metric("usher_connections_goaway_total") == 1.0).await;
    settle(|| process.logged("ENHANCE_YOUR_CALM") == 1).await;
}
