//! Tests of exports from one index and imports into another.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::key::Key;
use super::*;
use crate::endpoints::{EndpointSpec, Store};

const MINUTE: Duration = Duration::from_secs(60);

/// A pool in which the same endpoints have other slots than in one of another order.
fn pool(names: &[&str]) -> Arc<Snapshot> {
    let store = Store::default();
    store.replace(names.iter().map(|name| EndpointSpec::new(*name, (Ipv4Addr::LOCALHOST, 1))).collect());
    store.snapshot()
}

fn index(recent: usize) -> PrefixIndex {
    PrefixIndex::new(Limits { recent, ..Limits::default() })
}

/// Leading blocks of a prompt at each endpoint, in the order of the pool.
fn found(index: &PrefixIndex, snapshot: &Arc<Snapshot>, prompt: &[u64]) -> Vec<u32> {
    let mut matched = Vec::new();
    index.find(&Blocks::from_prompts([prompt]), snapshot.all().view(), &mut matched);
    matched
}

#[test]
fn exported_blocks_are_found_by_another_process() {
    let (here, there) = (pool(&["a", "b", "c"]), pool(&["c", "b", "a"]));
    let (from, to) = (index(100), index(0));
    let start = from.mark();
    from.add(&here.endpoints()[0], &[11, 12, 13], 10);
    from.add(&here.endpoints()[1], &[11, 22], 10);
    let export = from.export_since(start, usize::MAX);
    assert!(!export.missed);
    let imported = to.import("first", &export.held, &there, 1, MINUTE);
    assert_eq!(imported, Imported { blocks: 5, unknown: 0, refused: 0 });
    assert_eq!(found(&to, &there, &[11, 12, 13]), [0, 1, 3]);
    // What was there is not told again, and in the order in which it came.
    from.add(&here.endpoints()[0], &[11, 12, 14], 10);
    from.add(&here.endpoints()[0], &[15], 10);
    let next = from.export_since(export.mark, usize::MAX);
    let a = here.endpoints()[0].id();
    assert_eq!(next.held, [Held { endpoint: Arc::clone(a), hashes: vec![14, 15] }]);
    assert_eq!(from.export_since(next.mark, usize::MAX).held, []);
}

#[test]
fn export_continues_after_the_last_one() {
    let here = pool(&["a", "b"]);
    let from = index(100);
    let mut mark = from.mark();
    from.add(&here.endpoints()[0], &[1, 2, 3], 10);
    from.add(&here.endpoints()[1], &[4, 5], 10);
    let mut told = Vec::new();
    for _ in 0..4 {
        let export = from.export_since(mark, 2);
        told.push(
            export
                .held
                .iter()
                .map(|held| (held.endpoint.to_string(), held.hashes.clone()))
                .collect::<Vec<_>>(),
        );
        mark = Mark::from_number(export.mark.to_number());
    }
    let (a, b) = ("default/a".to_owned(), "default/b".to_owned());
    assert_eq!(
        told,
        [vec![(a.clone(), vec![1, 2])], vec![(a, vec![3]), (b.clone(), vec![4])], vec![(b, vec![5])], vec![]]
    );
}

#[test]
fn reader_that_missed_changes_gets_a_full_export() {
    let here = pool(&["a", "b"]);
    let (from, to, other) = (index(3), index(0), index(3));
    let start = from.mark();
    from.add(&here.endpoints()[0], &[1, 2, 3, 4], 3);
    assert!(!from.export_since(start, 9).missed);
    assert!(from.export_since(other.mark(), 9).missed, "another index's mark");
    from.add(&here.endpoints()[1], &[5], 10);
    let export = from.export_since(start, 9);
    assert_eq!((export.missed, export.held.len()), (true, 0));
    let mut all = Vec::new();
    let mark = from.export_all(|held| all.push(held));
    assert_eq!(mark, export.mark);
    assert_eq!(all.iter().map(|held| held.hashes.len()).collect::<Vec<_>>(), [3, 1]);
    let key = |hash: &u64| Key::of(*hash);
    assert_eq!(
        all[0].hashes.iter().map(key).collect::<Vec<_>>(),
        [1, 2, 3].map(Key::of),
        "the most recent first"
    );
    to.import("first", &all, &here, 1, MINUTE);
    assert_eq!(found(&to, &here, &[1, 2, 3, 4]), [3, 0]);
    assert_eq!(found(&to, &here, &[5]), [0, 1]);
    // What others told is theirs to tell.
    to.export_all(|held| panic!("{held:?}"));
    to.add(&here.endpoints()[1], &[5, 6], 10);
    let mut own = Vec::new();
    to.export_all(|held| own.extend(held.hashes.into_iter().map(Key::of)));
    assert_eq!(own, [Key::of(5), Key::of(6)]);
}

#[test]
fn origin_expires_when_it_stops_reporting() {
    let here = pool(&["a"]);
    let to = index(0);
    let a = here.endpoints()[0].id();
    let report = |hashes: &[u64]| [Held { endpoint: Arc::clone(a), hashes: hashes.to_vec() }];
    to.import("first", &report(&[1, 2, 3]), &here, 0, MINUTE);
    to.import("second", &report(&[1, 2]), &here, 30_000, MINUTE);
    to.add(&here.endpoints()[0], &[1], 10);
    // A report without blocks keeps what was told.
    to.import("first", &[], &here, 50_000, MINUTE);
    let mut left = Vec::new();
    for now_ms in [60_000, 90_000, 109_999, 110_000] {
        to.sweep(&here, now_ms);
        left.push(found(&to, &here, &[1, 2, 3])[0]);
    }
    assert_eq!(left, [3, 3, 3, 1]);
    let unknown = [Held { endpoint: "default/z".into(), hashes: vec![7, 8] }];
    let imported = to.import("first", &unknown, &here, 0, MINUTE);
    assert_eq!(imported, Imported { blocks: 0, unknown: 2, refused: 0 });
}

#[test]
fn origins_are_bounded_and_their_slots_reused() {
    let here = pool(&["a"]);
    let to = index(0);
    let report = [Held { endpoint: Arc::clone(here.endpoints()[0].id()), hashes: vec![1, 2] }];
    for number in 0..PrefixIndex::MAX_ORIGINS {
        let now_ms = if number == 3 { 0 } else { 10_000 };
        assert_eq!(to.import(&number.to_string(), &report, &here, now_ms, MINUTE).blocks, 2);
    }
    let refused = Imported { blocks: 0, unknown: 0, refused: 2 };
    assert_eq!(to.import("one too many", &report, &here, 1, MINUTE), refused);
    to.sweep(&here, 60_000);
    assert_eq!(to.import("another", &report, &here, 60_000, MINUTE).blocks, 2);
    // All others expire, the new one does not, though it has the place of one that did.
    to.sweep(&here, 70_000);
    assert_eq!(found(&to, &here, &[1, 2]), [2]);
    to.sweep(&here, 120_000);
    assert_eq!(to.entries(), 0);
}

#[test]
fn change_log_stays_within_its_documented_memory() {
    let room = 1000;
    let pool = pool(&["a", "b"]);
    let [one, other] = [&pool.endpoints()[0], &pool.endpoints()[1]];
    // Blocks of a request, and the bytes that each may take at most.
    for (blocks, most) in [(1, 32), (100, 9), (5000, 9)] {
        let index = index(room);
        let empty = index.ring.bytes();
        for request in 0..3 * room as u64 {
            let hashes: Vec<u64> = (0..blocks).map(|block| 1 + request * blocks + block).collect();
            index.add(if request % 2 == 0 { one } else { other }, &hashes, 10_000);
            let bytes = index.ring.bytes() - empty;
            assert!(bytes <= most * room, "{blocks} blocks: {bytes} bytes at {request}");
            if request * blocks > 4 * room as u64 {
                break;
            }
        }
        let all = index.export_since(Mark::from_number(index.mark().to_number() - room as u64), usize::MAX);
        let remembered: usize = all.held.iter().map(|held| held.hashes.len()).sum();
        assert_eq!((all.missed, remembered), (false, room));
    }
}
