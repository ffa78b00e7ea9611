//! What an exchange takes from the heap. One test in a program of its own,
//! because every allocation of the process is counted.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[path = "../benches/common/mod.rs"]
mod common;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The exchange, parsing and re-emitting a 500 KB body; the codec is not part of it.
#[test]
fn a_large_body_is_not_copied_and_nothing_is_kept() {
    let picker = common::Picker::new(10);
    let chunks = common::completions(500_000);
    let answer = common::answer();
    let whole: usize = chunks.iter().map(bytes::Bytes::len).sum();
    // The first request makes the series of its model and the thread's buffers.
    picker.run(&common::HEADERS, &chunks, &answer);

    let region = Region::new(ALLOCATOR);
    let sent = picker.run(&common::HEADERS, &chunks, &answer);
    let change = region.change();
    assert_eq!(sent, whole);
    println!("one exchange: {} bytes in {} allocations", change.bytes_allocated, change.allocations);
    assert!(change.bytes_allocated < 64 << 10, "{change:?}");
    assert!(change.allocations < 100, "{change:?}");

    let region = Region::new(ALLOCATOR);
    for _ in 0..100 {
        picker.run(&common::HEADERS, &chunks, &answer);
    }
    let change = region.change();
    let kept = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    assert!(kept.abs() < 4096, "{change:?}");
}
