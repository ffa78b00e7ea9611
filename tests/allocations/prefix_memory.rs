//! Memory of the prefix index: it takes as much as it reports, and that is at most 32 bytes for a
//! block at an endpoint.

use std::net::Ipv4Addr;
use std::sync::Arc;

use stats_alloc::Region;
use usher::endpoints::{EndpointSpec, Snapshot, Store};
use usher::prefix::{Limits, PrefixIndex};

use crate::alone::{ALLOCATOR, passed_alone};

fn pool(count: u32) -> Arc<Snapshot> {
    let store = Store::default();
    let spec = |index: u32| EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::from(index), 8000));
    store.replace((0..count).map(spec).collect());
    store.snapshot()
}

/// Every `shared` endpoints hold the same blocks, `each` of them.
fn fill(index: &PrefixIndex, snapshot: &Snapshot, shared: u64, each: u64, mut after_each: impl FnMut()) {
    for (number, endpoint) in (0u64..).zip(snapshot.endpoints()) {
        let group = (number / shared) << 32;
        let hashes: Vec<u64> =
            (0..each).map(|block| (group + block).wrapping_mul(0xd6e8_feb8_6659_fd93)).collect();
        for part in hashes.chunks(500) {
            index.add(endpoint, part, each as usize);
            after_each();
        }
    }
}

#[test]
fn a_block_at_an_endpoint_takes_at_most_32_bytes() {
    if passed_alone("prefix_memory::a_block_at_an_endpoint_takes_at_most_32_bytes") {
        return;
    }
    const EACH: u64 = 1000;
    // Endpoints, and how many share a block.
    for (count, shared) in [(60, 1), (60, 2), (60, 60), (200, 2), (200, 3), (200, 9)] {
        let snapshot = pool(count);
        let region = Region::new(ALLOCATOR);
        let taken = || {
            let change = region.change();
            (change.bytes_allocated as isize - change.bytes_deallocated as isize + change.bytes_reallocated)
                as usize
        };
        let index = PrefixIndex::new(Limits::default());
        let (mut most, mut peak) = (0.0f64, 0.0f64);
        fill(&index, &snapshot, shared, EACH, || {
            let entries = index.entries() as f64;
            if entries > 20_000.0 {
                most = most.max(index.bytes() as f64 / entries);
                peak = peak.max(taken() as f64 / entries);
            }
        });
        let (entries, bytes) = (index.entries(), index.bytes());
        assert_eq!(entries as u64, u64::from(count) * EACH);
        let allocated = taken();
        let pool = format!("{count} endpoints of which {shared} share a block");
        assert!(most <= 32.0, "{most} bytes an entry with {pool}");
        // The list of what is being added is there, too.
        assert!(peak <= 32.0, "{peak} bytes allocated for an entry with {pool}");
        let difference = allocated.abs_diff(bytes);
        assert!(difference * 50 < bytes, "{bytes} bytes are {allocated} with {pool}");
    }
}
