//! Tests of the blocks that one index exports and another one imports.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::key::Key;
use super::lru::RESTORED;
use super::*;
use crate::endpoints::{EndpointSpec, Store};

const MINUTE: Duration = Duration::from_secs(60);

/// A pool in which the same endpoints have other slots than in one of another order.
fn pool(names: &[&str]) -> Arc<Snapshot> {
    let store = Store::default();
    store.replace(names.iter().map(|name| EndpointSpec::new(*name, (Ipv4Addr::LOCALHOST, 1))).collect());
    store.snapshot()
}

fn index(room: usize) -> PrefixIndex {
    let index = PrefixIndex::new(Limits::default());
    index.keep_updates(room);
    index
}

fn origin(number: u8) -> OriginId {
    OriginId([number; 16])
}

/// Published blocks, with their endpoints here.
fn known(snapshot: &Snapshot, held: Vec<EndpointBlocks>) -> Vec<(Arc<Endpoint>, EndpointBlocks)> {
    let find = |held: EndpointBlocks| {
        let is_it = |endpoint: &&Arc<Endpoint>| EndpointId::of(endpoint) == held.endpoint;
        (Arc::clone(snapshot.endpoints().iter().find(is_it).unwrap()), held)
    };
    held.into_iter().map(find).collect()
}

fn published(endpoint: &Arc<Endpoint>, hashes: &[u64]) -> [(Arc<Endpoint>, EndpointBlocks); 1] {
    let held = EndpointBlocks { endpoint: EndpointId::of(endpoint), capacity: 0, hashes: hashes.to_vec() };
    [(Arc::clone(endpoint), held)]
}

/// Leading blocks of a prompt at each endpoint, in the order of the pool.
fn found(index: &PrefixIndex, snapshot: &Arc<Snapshot>, prompt: &[u64]) -> Vec<u32> {
    let mut matched = Vec::new();
    index.find(&Blocks::from_prompts([prompt]), snapshot.all().view(), &mut matched);
    matched
}

/// The blocks of an endpoint, the most recent first.
fn listed(index: &PrefixIndex, endpoint: &Endpoint) -> Vec<Key> {
    let holder = index.holders.get(endpoint.slot()).unwrap();
    holder.lock().recent.recent_first().map(|(key, _)| key).collect()
}

fn keys(hashes: &[u64]) -> Vec<Key> {
    hashes.iter().map(|hash| Key::of(*hash)).collect()
}

#[test]
fn exported_blocks_are_found_by_another_process() {
    let (here, there) = (pool(&["a", "b", "c"]), pool(&["c", "b", "a"]));
    let (from, to) = (index(100), index(0));
    from.add(&here.endpoints()[0], &[11, 12, 13], 10);
    from.add(&here.endpoints()[1], &[11, 22], 10);
    let taken = from.take_updates(usize::MAX);
    assert_eq!(taken.dropped, 0);
    assert!(to.import(origin(1), &known(&there, taken.held), 1, MINUTE));
    assert_eq!(found(&to, &there, &[11, 12, 13]), [0, 1, 3]);
    // What was there is not published again, and in the order in which it came.
    from.add(&here.endpoints()[0], &[11, 12, 14], 10);
    from.add(&here.endpoints()[0], &[15], 12);
    let held =
        EndpointBlocks { endpoint: EndpointId::of(&here.endpoints()[0]), capacity: 12, hashes: vec![14, 15] };
    assert_eq!(from.take_updates(usize::MAX).held, [held]);
    assert_eq!(from.take_updates(usize::MAX), Updates::default());
    // Imported blocks are not published on.
    to.keep_updates(100);
    assert!(to.import(origin(1), &published(&there.endpoints()[0], &[7]), 1, MINUTE));
    assert_eq!(to.pending_updates(), 0);
}

#[test]
fn full_change_queue_drops_the_oldest_blocks() {
    let here = pool(&["a", "b"]);
    let [a, b] = [&here.endpoints()[0], &here.endpoints()[1]];
    let from = index(6);
    from.add(a, &[1, 2, 3], 10);
    from.add(b, &[4, 5], 10);
    from.add(a, &[6, 7], 10);
    let hashes = |taken: &Updates| taken.held.iter().map(|held| held.hashes.clone()).collect::<Vec<_>>();
    let first = from.take_updates(3);
    assert_eq!((first.dropped, hashes(&first)), (1, vec![vec![2, 3], vec![4]]));
    let next = from.take_updates(3);
    assert_eq!((next.dropped, hashes(&next)), (0, vec![vec![5], vec![6, 7]]));
    from.add(a, &[8, 9], 10);
    from.keep_updates(0);
    assert_eq!((from.take_updates(3), from.pending_updates()), (Updates::default(), 0));
    from.add(a, &[10], 10);
    assert_eq!(from.pending_updates(), 0);
}

#[test]
fn blocks_in_use_are_exported_again() {
    let here = pool(&["a"]);
    let a = &here.endpoints()[0];
    let from = index(1000);
    let published = |hashes: std::ops::Range<u64>| {
        from.add(a, &hashes.collect::<Vec<u64>>(), 100);
        from.take_updates(100).held.iter().map(|held| held.hashes.len()).sum::<usize>()
    };
    assert_eq!(published(0..10), 10);
    from.republish(None);
    assert_eq!((published(0..4), published(0..4)), (4, 0), "all were new");
    assert_eq!(published(20..23), 3);
    from.republish(None);
    assert_eq!(published(0..4), 0, "less than a quarter is new");
    from.republish(Some(0));
    assert_eq!(published(0..4), 4);
    // Eight for 13 new ones, and no more.
    from.republish(Some(0));
    assert_eq!(published(4..10), 0);
    from.republish(Some(2));
    assert_eq!(published(4..10), 6, "a prompt is not cut");
    assert_eq!(from.entries(), 13);
}

#[test]
fn blocks_published_by_others_are_not_republished_soon() {
    let here = pool(&["a"]);
    let a = &here.endpoints()[0];
    let index = index(1000);
    index.add(a, &[7, 8], 100);
    assert!(index.import(origin(1), &published(a, &[1, 2, 3]), 1, MINUTE));
    index.take_updates(100);
    index.add(a, &[1, 2, 3, 4], 100);
    assert_eq!(index.take_updates(100).held[0].hashes, [4]);
    index.republish(None);
    assert!(index.import(origin(1), &published(a, &[1]), 1, MINUTE));
    index.add(a, &[1, 2], 100);
    assert_eq!(index.take_updates(100).held[0].hashes, [2], "the other has published the first since");
    let mut export = index.export(100);
    assert_eq!(index.export_next(&mut export).unwrap().hashes.len(), 6, "it is known here all the same");
}

#[test]
fn export_has_what_this_process_added_and_is_still_held() {
    let here = pool(&["a", "b", "c"]);
    let from = index(0);
    from.add(&here.endpoints()[0], &[1, 2, 3, 4], 3);
    from.add(&here.endpoints()[1], &[5], 10);
    assert!(from.import(origin(1), &published(&here.endpoints()[1], &[6]), 1, MINUTE));
    assert!(from.import(origin(1), &published(&here.endpoints()[2], &[7]), 1, MINUTE));
    let all = |most| {
        let mut export = from.export(most);
        let mut all: Vec<_> = std::iter::from_fn(|| from.export_next(&mut export)).collect();
        all.sort_by_key(|held| held.hashes.len());
        all.into_iter().map(|held| (held.capacity, keys(&held.hashes))).collect::<Vec<_>>()
    };
    assert_eq!(all(100), [(10, keys(&[5])), (3, keys(&[1, 2, 3]))], "the most recent first");
    assert_eq!(all(6), [(10, keys(&[5])), (3, keys(&[1, 2]))]);
}

#[test]
fn export_of_a_lost_stream_has_restored_blocks() {
    let here = pool(&["a", "b", "c"]);
    let [a, b, c] = [0, 1, 2].map(|at| &here.endpoints()[at]);
    let index = index(100);
    for (endpoint, hashes) in [(a, [1, 2]), (b, [3, 4]), (c, [5, 6])] {
        index.restore(endpoint, &published(endpoint, &hashes)[0].1);
    }
    index.add(a, &[7], 10);
    assert!(index.import(origin(1), &published(b, &[3, 8]), 1, MINUTE));
    let exported = |number| {
        let mut export = index.export_lost(100, origin(number));
        std::iter::from_fn(|| index.export_next(&mut export))
            .map(|held| keys(&held.hashes))
            .collect::<Vec<_>>()
    };
    let mut all = exported(1);
    all.sort_by_key(|keys| std::cmp::Reverse(keys.len()));
    assert_eq!(all[0], keys(&[7, 1, 2]));
    assert_eq!(all.concat().len(), 6, "the other has published one of them, and will publish its own");
    index.republish(Some(0));
    assert_eq!(exported(1).concat().len(), 7, "the stream has it no more");
    assert!((2..20).any(|number| exported(number)[0] != exported(1)[0]), "each begins elsewhere");
    assert!(index.import(origin(2), &published(a, &[1, 2, 7]), 1, MINUTE));
    assert_eq!(exported(1).concat().len(), 5, "its own stay its own");
}

/// Sources of the blocks of an endpoint, the most recent first.
fn sources(index: &PrefixIndex, endpoint: &Endpoint) -> Vec<u16> {
    let holder = index.holders.get(endpoint.slot()).unwrap();
    holder.lock().recent.recent_first().map(|(_, sources)| sources & !PUBLISHED).collect()
}

#[test]
fn blocks_outlive_an_origin_that_stops_reporting() {
    let here = pool(&["a"]);
    let a = &here.endpoints()[0];
    let to = index(0);
    to.import(origin(1), &published(a, &[1, 2, 3]), 0, MINUTE);
    to.import(origin(2), &published(a, &[1, 2]), 30_000, MINUTE);
    to.add(a, &[1], 10);
    // A report without blocks keeps the origin known.
    to.import(origin(1), &[], 50_000, MINUTE);
    let (mut known, bytes) = (Vec::new(), to.bytes());
    for now_ms in [60_000, 90_000, 109_999, 110_000] {
        to.sweep(&here, now_ms);
        known.push(to.origins());
        assert_eq!(found(&to, &here, &[1, 2, 3]), [3]);
    }
    assert_eq!(known, [2, 1, 1, 0]);
    assert_eq!(sources(&to, a), [OWN, RESTORED, RESTORED]);
    assert!(to.bytes() < bytes, "the table of other sources is gone");
    super::tests::check(&to);
    // They are evicted like all others.
    to.add(a, &[5, 6, 7, 8, 9], 6);
    assert_eq!(listed(&to, a), keys(&[5, 6, 7, 8, 9, 1]));
}

#[test]
fn origins_beyond_twelve_expire_together() {
    let here = pool(&["a"]);
    let a = &here.endpoints()[0];
    let to = index(0);
    let of_none = || sources(&to, a).iter().filter(|sources| **sources == RESTORED).count();
    // A process that crashes every second: each of its lives is another origin.
    for life in 0..40 {
        assert!(to.import(
            origin(life),
            &published(a, &[u64::from(life) + 1]),
            u64::from(life) * 1000,
            MINUTE
        ));
    }
    to.sweep(&here, 60_000 + 11_000);
    assert_eq!((of_none(), to.origins()), (12, 28), "twelve have expired");
    assert!(to.import(origin(200), &published(a, &[200]), 71_000, MINUTE), "in a place of its own");
    to.sweep(&here, 60_000 + 38_999);
    assert_eq!((of_none(), to.origins()), (12, 2), "one of the others still reports");
    to.sweep(&here, 60_000 + 39_000);
    assert_eq!((of_none(), to.entries(), found(&to, &here, &[200])[0]), (40, 41, 1));
    let mut accepted = 0;
    for number in 0..2000u16 {
        let [high, low] = number.to_be_bytes();
        let id = OriginId([high, low, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        accepted += usize::from(to.import(id, &[], 100_000, MINUTE));
    }
    assert_eq!(accepted, PrefixIndex::MAX_ORIGINS - 1);
}

#[test]
fn restored_blocks_are_oldest_and_evict_nothing() {
    let here = pool(&["a", "b"]);
    let [a, b] = [&here.endpoints()[0], &here.endpoints()[1]];
    let to = index(0);
    let restore = |endpoint: &Arc<Endpoint>, capacity: u32, hashes: &[u64]| {
        let held = EndpointBlocks { endpoint: EndpointId::of(endpoint), capacity, hashes: hashes.to_vec() };
        let Restored { added, fits } = to.restore(endpoint, &held);
        (added, fits)
    };
    assert_eq!(restore(a, 8, &[1, 2, 3]), (3, true), "the newest entry comes first");
    assert_eq!(restore(a, 100, &[1, 4]), (1, true));
    assert_eq!(restore(a, 100, &[1, 4]), (0, true), "twice is as good as once");
    to.add(b, &[1], 10);
    assert_eq!(listed(&to, a), keys(&[1, 2, 3, 4]));
    assert!(to.import(origin(1), &published(a, &[9, 4]), 1, MINUTE));
    assert!(!to.is_full(a));
    assert_eq!(restore(a, 100, &[5, 6, 7, 8]), (3, false), "it holds eight, as the newest entry says");
    assert_eq!(listed(&to, a), keys(&[9, 4, 1, 2, 3, 5, 6, 7]));
    assert!(to.is_full(a) && !to.is_full(b));
    to.add(a, &[1, 10], 5);
    assert_eq!(listed(&to, a), keys(&[1, 10, 9, 4, 2]));
    assert!(to.import(
        origin(1),
        &[(Arc::clone(a), EndpointBlocks { endpoint: EndpointId::of(a), capacity: 3, hashes: vec![11] })],
        1,
        MINUTE
    ));
    assert_eq!(listed(&to, a), keys(&[11, 1, 10, 9, 4]), "a decision knows the capacity better");
}

#[test]
fn long_imports_keep_the_order_of_a_prompt() {
    let here = pool(&["a"]);
    let a = &here.endpoints()[0];
    let (imported, restored, added) = (index(0), index(0), index(0));
    let prompt: Vec<u64> = (1..1000).collect();
    assert!(imported.import(origin(1), &published(a, &prompt), 1, MINUTE));
    assert_eq!(restored.restore(a, &published(a, &prompt)[0].1), Restored { added: 999, fits: true });
    added.add(a, &prompt, 31_250);
    for index in [&imported, &restored, &added] {
        assert_eq!(listed(index, a), keys(&prompt));
        super::tests::check(index);
    }
}

#[test]
fn change_log_stays_within_its_documented_memory() {
    let room = 1000;
    let pool = pool(&["a", "b"]);
    let [one, other] = [&pool.endpoints()[0], &pool.endpoints()[1]];
    // Blocks of a request, and the bytes that each may take at most.
    for (blocks, most) in [(1, 24), (100, 9), (5000, 9)] {
        let index = index(room);
        for request in 0..3 * room as u64 {
            let hashes: Vec<u64> = (0..blocks).map(|block| 1 + request * blocks + block).collect();
            index.add(if request % 2 == 0 { one } else { other }, &hashes, 10_000);
            let bytes = index.updates.bytes();
            assert!(bytes <= most * room, "{blocks} blocks: {bytes} bytes at {request}");
            if request * blocks > 4 * room as u64 {
                break;
            }
        }
        assert_eq!(index.pending_updates(), room);
    }
}
