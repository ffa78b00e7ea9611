//! Heap allocations of an exchange.

use stats_alloc::Region;

use crate::alone::{ALLOCATOR, passed_alone};

#[path = "../../benches/common/bodies.rs"]
mod bodies;
#[path = "../../benches/common/drive.rs"]
mod drive;
#[path = "../../benches/instructions/src/gateway.rs"]
#[allow(dead_code, reason = "the guard uses more of it")]
mod gateway;
#[path = "../../benches/instructions/src/messages.rs"]
#[allow(dead_code, reason = "the guard uses more of it")]
mod messages;
#[path = "../../benches/common/picker.rs"]
mod picker;

/// The exchange, parsing and re-emitting a 500 KB body; the codec is not part of it.
#[test]
fn a_large_body_is_not_copied_and_little_is_kept() {
    if passed_alone("exchange_allocations::a_large_body_is_not_copied_and_little_is_kept") {
        return;
    }
    let picker = picker::Picker::new(10);
    let chunks = bodies::completions(500_000);
    let response = picker::response();
    let whole: usize = chunks.iter().map(bytes::Bytes::len).sum();
    // The first request makes the series of its model and the thread's buffers.
    drive::run(&picker, &bodies::HEADERS, &chunks, &response);
    picker.learned();

    let region = Region::new(ALLOCATOR);
    let sent = drive::run(&picker, &bodies::HEADERS, &chunks, &response);
    let change = region.change();
    assert_eq!(sent, whole);
    assert!(change.bytes_allocated < 64 << 10, "{change:?}");
    assert!(change.allocations < 100, "{change:?}");
    // Its blocks are given back when they are in the index.
    picker.learned();

    let region = Region::new(ALLOCATOR);
    for _ in 0..100 {
        drive::run(&picker, &bodies::HEADERS, &chunks, &response);
    }
    picker.learned();
    let change = region.change();
    let kept = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    assert!(kept.abs() < 4096, "{change:?}");

    // What waits for a model server: a stream whose request was sent on.
    let mut service = gateway::service(&picker);
    let request = messages::request(&messages::chat(200, true));
    let mut open = || {
        let mut stream = gateway::Stream::open(&mut service);
        request.iter().for_each(|message| stream.send(message, &mut drop));
        stream
    };
    drop(open());
    picker.learned();
    let mut streams = Vec::with_capacity(100);
    let region = Region::new(ALLOCATOR);
    streams.extend((0..100).map(|_| open()));
    picker.learned();
    let change = region.change();
    let kept = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    let each = kept / 100 + size_of::<gateway::Stream>() as i64;
    assert!(each < 1620, "{each} bytes: {change:?}");
}
