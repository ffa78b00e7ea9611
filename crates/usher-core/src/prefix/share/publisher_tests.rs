//! Tests of the times and the content of batches.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::*;
use crate::endpoints::{Endpoint, EndpointSpec, Snapshot, Store};
use crate::prefix::index::Limits;

fn pool(count: u32) -> Arc<Snapshot> {
    let store = Store::default();
    let spec = |index: u32| EndpointSpec::new(index.to_string(), (Ipv4Addr::from(index), 8000));
    store.replace((0..count).map(spec).collect());
    store.snapshot()
}

const IDS: (Fingerprint, OriginId) = (Fingerprint(7), OriginId([1; 16]));

fn config(stream_bytes: u64) -> PublisherConfig {
    PublisherConfig::new(Duration::from_secs(180), stream_bytes)
}

fn start(index: &PrefixIndex) -> Publisher {
    Publisher::start(index, IDS, config(64 << 20), 0)
}

fn blocks(number: u64, count: u64) -> Vec<u64> {
    (0..count).map(|block| (number << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

/// Blocks of all batches that are due, one number per batch.
fn due(publisher: &mut Publisher, index: &PrefixIndex, now_ms: u64) -> Vec<usize> {
    std::iter::from_fn(|| publisher.poll(index, now_ms))
        .map(|bytes| Batch::parse(&bytes).unwrap().blocks())
        .collect()
}

fn add(index: &PrefixIndex, endpoint: &Endpoint, hashes: &[u64]) {
    index.add(endpoint, hashes, 31_250);
}

#[test]
fn a_batch_is_due_after_its_interval_or_when_it_is_full() {
    let (pool, index) = (pool(2), PrefixIndex::new(Limits::default()));
    let [a, b] = [&pool.endpoints()[0], &pool.endpoints()[1]];
    let mut publisher = start(&index);
    assert!(due(&mut publisher, &index, 0).is_empty());
    add(&index, a, &blocks(1, 10));
    assert!(due(&mut publisher, &index, 99).is_empty());
    add(&index, b, &blocks(1, 5));
    assert_eq!(due(&mut publisher, &index, 100), [15]);
    add(&index, a, &blocks(2, 7000));
    assert!(due(&mut publisher, &index, 150).is_empty());
    add(&index, a, &blocks(3, 3000));
    assert_eq!(due(&mut publisher, &index, 150), [Batch::MAX_BLOCKS]);
    assert_eq!(due(&mut publisher, &index, 200), [10_000 - Batch::MAX_BLOCKS]);
    assert!(due(&mut publisher, &index, 1000).is_empty());
    let counts = PublisherCounts { batches: 3, blocks: 10_015, dropped: 0, exports: 1 };
    assert_eq!(publisher.counts(), counts, "the export of an index that was empty");
}

#[test]
fn idle_publisher_sends_three_heartbeats_per_lifetime() {
    let index = PrefixIndex::new(Limits::default());
    let mut publisher = start(&index);
    let times: Vec<u64> = (0..400)
        .map(|second| second * 1000)
        .filter(|now_ms| publisher.poll(&index, *now_ms).is_some())
        .collect();
    assert_eq!(times, [60_000, 120_000, 180_000, 240_000, 300_000, 360_000]);
}

#[test]
fn existing_index_is_published_gradually() {
    let (pool, index) = (pool(8), PrefixIndex::new(Limits::default()));
    for (number, endpoint) in (0u64..).zip(pool.endpoints()) {
        add(&index, endpoint, &blocks(number, 10_000));
    }
    let mut publisher = start(&index);
    let (mut published, mut now_ms) = (0, 0);
    while publisher.counts().exports == 0 {
        add(&index, &pool.endpoints()[0], &blocks(100 + now_ms, 1));
        let batches = due(&mut publisher, &index, now_ms);
        assert!(batches.len() <= 3, "{batches:?}");
        assert!(publisher.bytes() < 400_000, "{}", publisher.bytes());
        published += batches.iter().sum::<usize>();
        now_ms += 100;
    }
    let intervals = now_ms / 100;
    // New blocks may be published twice.
    assert!((80_000 + intervals..=80_000 + 2 * intervals).contains(&(published as u64)), "{published}");
    assert!((5..8).contains(&intervals), "{intervals}");
}

#[test]
fn dropped_blocks_are_published_later() {
    let (pool, index) = (pool(1), PrefixIndex::new(Limits::default()));
    let a = &pool.endpoints()[0];
    let mut publisher =
        Publisher::start(&index, IDS, PublisherConfig { waiting: 100, ..config(64 << 20) }, 0);
    due(&mut publisher, &index, 0);
    // The store is away.
    (0..5).for_each(|number| add(&index, a, &blocks(number, 50)));
    let published = due(&mut publisher, &index, 1000);
    assert_eq!((published, publisher.counts().dropped), (vec![100, 250], 150));
    assert!(due(&mut publisher, &index, 2000).is_empty());
}

#[test]
fn losses_during_an_export_start_another_one() {
    let (pool, index) = (pool(2), PrefixIndex::new(Limits::default()));
    pool.endpoints().iter().for_each(|endpoint| add(&index, endpoint, &blocks(1, 15_000)));
    let mut publisher = start(&index);
    let mut published = 0;
    for now_ms in (0..2000).step_by(100) {
        published += due(&mut publisher, &index, now_ms).iter().sum::<usize>();
        if now_ms == 0 {
            (0..3).for_each(|_| publisher.publish_all(&index, 0));
        }
    }
    assert_eq!((published, publisher.counts().exports), (60_000, 2));
}

#[test]
fn an_export_is_at_most_half_of_the_stream_and_has_the_newest() {
    let (pool, index) = (pool(2), PrefixIndex::new(Limits::default()));
    for endpoint in pool.endpoints() {
        (0..10).for_each(|number| add(&index, endpoint, &blocks(number, 1000)));
    }
    let mut publisher = Publisher::start(&index, IDS, config(160_000), 0);
    let mut batches = Vec::new();
    for now_ms in (0..1000).step_by(100) {
        batches.extend(std::iter::from_fn(|| publisher.poll(&index, now_ms)));
    }
    let held: Vec<EndpointBlocks> =
        batches.iter().flat_map(|bytes| Batch::parse(bytes).unwrap().held()).collect();
    let hashes: Vec<u64> = held.iter().flat_map(|held| held.hashes.iter().copied()).collect();
    assert_eq!(hashes.len(), 10_000);
    // What comes later counts as more recent.
    let to = PrefixIndex::new(Limits::default());
    for held in held {
        let endpoint =
            pool.endpoints().iter().find(|endpoint| crate::prefix::EndpointId::of(endpoint) == held.endpoint);
        to.add(endpoint.unwrap(), &held.hashes, 1000);
    }
    let mut matched = Vec::new();
    to.find(&crate::prefix::Blocks::from_prompts([blocks(9, 1000)]), pool.all().view(), &mut matched);
    assert_eq!(matched, [1000, 1000]);
}

#[test]
fn blocks_in_use_are_republished_before_trimming() {
    let (pool, index) = (pool(1), PrefixIndex::new(Limits::default()));
    let a = &pool.endpoints()[0];
    let mut publisher = start(&index);
    add(&index, a, &blocks(1, 40));
    assert_eq!(due(&mut publisher, &index, 0), [40]);
    // All is new once.
    let mut used = |now_ms: u64, seen: u64| {
        publisher.count_entry(seen);
        due(&mut publisher, &index, now_ms);
        add(&index, a, &blocks(1, 10));
        index.pending_updates()
    };
    assert_eq!((used(900, 0), used(1000, 0)), (0, 10));
    assert_eq!((used(2000, 31 << 20), used(2900, 1 << 20)), (0, 0));
    assert_eq!((used(3000, 0), used(4000, 0)), (10, 0));
}
