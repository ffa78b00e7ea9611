//! Gateways that don't take replies: those stay unsent.

use super::raw::{DATA, END_STREAM, Raw, SETTINGS};
use super::*;

/// A request whose body nobody reads.
const UPLOAD: [(&str, &str); 2] = [(":method", "POST"), (":path", "/v1/messages/count_tokens")];

/// A connection that takes so many bytes of replies on each stream, and knows the windows of the server.
fn connect(process: &Process, window: u32) -> Raw {
    let mut gateway = Raw::connect(process.extproc, window);
    assert!(gateway.is_alive());
    gateway.frame(SETTINGS, 1, 0, &[]);
    gateway
}

/// 96 MB that are to be relayed, each message in one frame, to a gateway that takes a KB of each stream.
#[tokio::test]
async fn unread_relayed_messages_stay_within_the_budget() {
    const STREAMS: u32 = 800;
    let process = Process::start(small_budget(), 1, &[]);
    let limit = process.limit();
    let mut gateway = connect(&process, 1000);
    let streams = || (0..STREAMS).map(|index| 2 * index + 1);
    for stream in streams() {
        gateway.open(stream);
        gateway.request(stream, &UPLOAD, false);
    }
    assert!(gateway.is_alive());
    let chunk = vec![b'x'; 60_000];
    for stream in streams() {
        (0..2).for_each(|_| gateway.body(stream, &chunk, false));
        if stream % 64 == 63 {
            assert!(gateway.is_alive(), "{:#?}", process.warnings());
            // Streams of other threads have read it, too.
            settle(|| process.metric("usher_memory_unread_bytes") < (4 * MI) as f64).await;
        }
    }
    assert!(gateway.is_alive());
    assert!(process.metric("usher_memory_refused_total") > 0.0, "there is no room for all of them");
    let peak = process.peak();
    assert!(peak < small_budget() * MI, "{peak} bytes");
    // Whoever comes has room again once streams have stalled for long enough, though none of them ends.
    let text = format!(r#"{{"model":"m","prompt":"{}"}}"#, "z".repeat(2 * MI));
    served_in_the_end(&process, &text).await;
    assert!(gateway.is_alive());
    assert_eq!(process.metric("usher_connections_evicted_total"), 0.0, "{:#?}", process.warnings());
    drop(gateway);
    stayed_within(&process, small_budget(), limit).await;
}

/// Requests that are read as a whole and on their way, of a gateway that takes a byte of the replies.
#[tokio::test]
async fn unsent_bodies_block_no_other_gateway() {
    let process = Process::start(small_budget(), 1, &["--body-idle-timeout=10m"]);
    let limit = process.limit();
    let mut gateways: Vec<_> = (0..5).map(|_| connect(&process, 1)).collect();
    let text = format!(r#"{{"model":"m","prompt":"{}"}}"#, "z".repeat(240_000));
    for (gateway, stream) in (0..50).flat_map(|index| (0..5).map(move |gateway| (gateway, 2 * index + 1))) {
        let gateway = &mut gateways[gateway];
        gateway.open(stream);
        gateway.request(stream, &COMPLETION, false);
        let mut chunks = text.as_bytes().chunks(60_000).peekable();
        while let Some(chunk) = chunks.next() {
            gateway.body(stream, chunk, chunks.peek().is_none());
        }
        // Half of them end their side.
        if stream % 4 == 1 {
            gateway.frame(DATA, END_STREAM, stream, &[]);
        }
        assert!(gateway.is_alive(), "{:#?}", process.warnings());
    }
    served_in_the_end(&process, &text).await;
    assert!(gateways.iter_mut().all(Raw::is_alive));
    assert_eq!(process.metric("usher_connections_evicted_total"), 0.0, "{:#?}", process.warnings());
    drop(gateways);
    stayed_within(&process, small_budget(), limit).await;
}
