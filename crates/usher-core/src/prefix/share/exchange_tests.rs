//! An exchange between replicas over a stream that loses nothing.

use std::net::Ipv4Addr;

use super::*;
use crate::endpoints::{EndpointSpec, Store};
use crate::prefix::Blocks;
use crate::prefix::index::{Limits, PrefixIndex};
use crate::prefix::share::WarmUp;

const FINGERPRINT: Fingerprint = Fingerprint(7);

fn pool(names: &[&str]) -> Arc<Snapshot> {
    let store = Store::default();
    store.replace(names.iter().map(|name| EndpointSpec::new(*name, (Ipv4Addr::LOCALHOST, 1))).collect());
    store.snapshot()
}

struct Replica {
    exchange: Exchange,
    index: Arc<PrefixIndex>,
    writer: Arc<IndexWriter>,
    snapshot: Arc<Snapshot>,
}

impl Replica {
    fn new(number: u8, snapshot: &Arc<Snapshot>, budget: &Arc<Budget>) -> Self {
        Self::of(number, snapshot, budget, Limits::default())
    }

    fn of(number: u8, snapshot: &Arc<Snapshot>, budget: &Arc<Budget>, limits: Limits) -> Self {
        let index = Arc::new(PrefixIndex::new(limits));
        let writer = Arc::new(IndexWriter::inline(Arc::clone(&index), IndexWriter::share(budget)));
        let mut exchange = Exchange::new(OriginId([number; 16]), Exchange::TTL, 1 << 20, budget);
        assert!(exchange.set_members(&[(FINGERPRINT, Arc::clone(&writer))], 0));
        exchange.discover(snapshot, 0);
        Self { exchange, index, writer, snapshot: Arc::clone(snapshot) }
    }

    fn add(&self, endpoint: usize, hashes: &[u64]) {
        self.index.add(&self.snapshot.endpoints()[endpoint], hashes, 31_250);
    }

    fn poll(&mut self, now_ms: u64) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.exchange.poll(now_ms)).collect()
    }

    fn found(&self, hashes: &[u64]) -> Vec<u32> {
        let mut matched = Vec::new();
        self.index.find(&Blocks::from_prompts([hashes]), self.snapshot.all().view(), &mut matched);
        matched
    }
}

fn id(number: u64) -> EntryId {
    EntryId { ms: number, seq: 0 }
}

#[test]
fn replica_imports_the_blocks_of_others_only() {
    let (pool, budget) = (pool(&["a", "b"]), Arc::default());
    let [mut first, mut second] = [1, 2].map(|number| Replica::new(number, &pool, &budget));
    first.add(1, &[1, 2, 3]);
    let batches = first.poll(100);
    assert_eq!(batches.len(), 1);
    assert_eq!(second.exchange.receive(id(1), &batches[0], 100), Received::Imported);
    assert_eq!(first.exchange.receive(id(1), &batches[0], 100), Received::Own);
    assert_eq!(second.found(&[1, 2, 3, 4]), [0, 3]);
    assert_eq!(second.poll(200), Vec::<Vec<u8>>::new(), "no echo");
    assert_eq!(second.exchange.counts(), ExchangeCounts { imported: 3, ..ExchangeCounts::default() });
    assert_eq!(first.exchange.published().blocks, 3);
    assert_eq!(second.exchange.stream_bytes(), batches[0].len() as u64 + StreamBound::ENTRY);
    // Its replica is gone, and the engine still has them.
    second.index.sweep(&pool, 180_100);
    assert_eq!((second.index.origins(), second.found(&[1, 2, 3])), (0, vec![0, 3]));
}

#[test]
fn unread_entries_count_in_the_stream_bound() {
    let (pool, budget) = (pool(&["a"]), Arc::default());
    let [mut first, mut second] = [1, 2].map(|number| Replica::new(number, &pool, &budget));
    first.add(0, &[1]);
    let batch = &first.poll(100)[0];
    second.exchange.skip(id(1), 100);
    assert_eq!(second.exchange.stream_bytes(), 100 + StreamBound::ENTRY);
    for number in 2..5 {
        second.exchange.skip(id(number), u64::MAX);
    }
    second.exchange.receive(id(5), batch, 100);
    assert_eq!((second.exchange.trim(), second.exchange.counts().malformed), (Some(id(5)), 4));
    assert_eq!(second.exchange.stream_bytes(), batch.len() as u64 + StreamBound::ENTRY);
    // Read backwards they leave no room for what is older.
    let mut warm_up = WarmUp::default();
    warm_up.page(&mut second.exchange, [(id(5), batch.as_slice())], 100);
    assert!(!warm_up.is_over());
    warm_up.skip(&mut second.exchange, id(4), u64::MAX);
    assert_eq!((warm_up.is_over(), warm_up.before(), warm_up.after()), (true, Some(id(4)), id(5)));
}

#[test]
fn unreadable_entries_are_counted_and_logged_once() {
    let (pool, budget) = (pool(&["a"]), Arc::default());
    let [mut first, mut second] = [1, 2].map(|number| Replica::new(number, &pool, &budget));
    let others = Fingerprint(8);
    let writer = Arc::clone(&first.writer);
    assert!(first.exchange.set_members(&[(others, writer)], 0));
    first.add(0, &[1]);
    let mut batch = first.poll(100).remove(0);
    let foreign = |first| Received::Foreign { fingerprint: others, first };
    assert_eq!(second.exchange.receive(id(1), &batch, 100), foreign(true));
    assert_eq!(second.exchange.receive(id(2), &batch, 100), foreign(false));
    batch[20] ^= 1;
    assert_eq!(second.exchange.receive(id(3), &batch, 100), Received::Malformed(BatchError::Check));
    let counts = ExchangeCounts { foreign: 2, malformed: 1, ..ExchangeCounts::default() };
    assert_eq!((second.exchange.counts(), second.index.entries()), (counts, 0));
}

#[test]
fn blocks_of_a_pod_that_another_replica_saw_first_wait_for_it() {
    let budget = Arc::default();
    let (before, after) = (pool(&["a"]), pool(&["b", "a"]));
    let (mut first, mut second) = (Replica::new(1, &after, &budget), Replica::new(2, &before, &budget));
    first.add(0, &[1, 2]);
    let batch = first.poll(100).remove(0);
    second.exchange.receive(id(1), &batch, 100);
    assert_eq!((second.found(&[1, 2]), second.exchange.counts().imported), (vec![0], 0));
    second.snapshot = Arc::clone(&after);
    second.exchange.discover(&after, 500);
    assert_eq!((second.found(&[1, 2]), second.exchange.counts().imported), (vec![2, 0], 2));
    // It never comes.
    let mut third = Replica::new(3, &before, &budget);
    third.exchange.receive(id(1), &batch, 100);
    third.exchange.discover(&before, 30_099);
    assert_eq!(third.exchange.counts().unknown, 0);
    third.exchange.discover(&before, 30_100);
    assert_eq!(third.exchange.counts().unknown, 2);
    third.exchange.discover(&after, 30_200);
    assert_eq!(third.index.entries(), 0);
}

#[test]
fn blocks_that_wait_for_endpoints_have_a_bound() {
    let budget: Arc<Budget> = Arc::default();
    let (before, after) = (pool(&["a"]), pool(&["b"]));
    let (mut first, mut second) = (Replica::new(1, &after, &budget), Replica::new(2, &before, &budget));
    for number in 0..60u64 {
        first.add(0, &(0..5000).map(|block| number << 32 | block).collect::<Vec<u64>>());
        for batch in first.poll(100 + number * 100) {
            second.exchange.receive(id(number), &batch, 100);
        }
    }
    second.exchange.poll(10_000);
    assert!(second.exchange.waiting.bytes() <= Waiting::MAX_BLOCKS * 8 + (1 << 12) * 100);
    assert!(budget.used(Kind::PrefixIndex) > second.exchange.waiting.bytes() as u64);
    let waiting = (second.exchange.waiting.bytes() / 8) as u64;
    assert!(second.exchange.counts().unknown.abs_diff(300_000 - waiting) < 10_000);
    drop((first, second));
    assert_eq!(budget.used(Kind::PrefixIndex), 0);
}

/// Reads a stream as a replica does at its start, in pages of a few entries.
fn warm_up(replica: &mut Replica, stream: &[(EntryId, Vec<u8>)], pages: usize) -> WarmUp {
    let mut warm_up = WarmUp::default();
    for _ in 0..pages {
        if warm_up.is_over() {
            break;
        }
        let is_before = |entry: &&(EntryId, Vec<u8>)| warm_up.before().is_none_or(|before| entry.0 < before);
        let page: Vec<_> = stream.iter().rev().filter(is_before).take(3).collect();
        let page = page.into_iter().map(|(id, payload)| (*id, payload.as_slice()));
        warm_up.page(&mut replica.exchange, page, 0);
    }
    warm_up
}

#[test]
fn restarted_replica_imports_the_newest_blocks() {
    let (pool, budget) = (pool(&["a", "b"]), Arc::default());
    let mut stream = Vec::new();
    for life in 1..=20 {
        // A life of the same replica, of which nothing but the stream is left.
        let mut replica = Replica::new(life, &pool, &budget);
        replica.add(usize::from(life % 2), &[u64::from(life) * 10, u64::from(life) * 10 + 1]);
        let batches = replica.poll(100);
        stream.extend(batches.into_iter().map(|batch| (id(life.into()), batch)));
    }
    let mut replica = Replica::new(100, &pool, &budget);
    let mut warm_up = warm_up(&mut replica, &stream, 2);
    assert!(!warm_up.is_over());
    assert_eq!((warm_up.after(), warm_up.before()), (id(20), Some(id(15))));
    assert_eq!((replica.found(&[200, 201]), replica.found(&[140, 141])), (vec![2, 0], vec![0, 0]));
    // New entries come meanwhile.
    let mut other = Replica::new(101, &pool, &budget);
    other.add(0, &[7]);
    replica.exchange.receive(id(21), &other.poll(100)[0], 100);
    warm_up = self::warm_up(&mut replica, &stream, 100);
    assert!(warm_up.is_over());
    assert_eq!((replica.index.entries(), replica.index.origins()), (41, 1), "lives that ended are none");
    let mut empty = Replica::new(102, &pool, &budget);
    let warm_up = self::warm_up(&mut empty, &[], 1);
    assert!(warm_up.is_over() && warm_up.after() == id(0));
}

#[test]
fn warm_up_ends_when_the_index_is_full() {
    let (pool, budget) = (pool(&["a", "b"]), Arc::default());
    let mut writer = Replica::new(1, &pool, &budget);
    let mut stream = Vec::new();
    for number in 0..50u64 {
        writer.add((number % 2) as usize, &[number * 2 + 1, number * 2 + 2]);
        stream.extend(writer.poll(100 + number * 100).into_iter().map(|batch| (id(number + 1), batch)));
    }
    let limits = Limits { entries: 31, ..Limits::default() };
    let mut replica = Replica::of(2, &pool, &budget, limits);
    let warm_up = warm_up(&mut replica, &stream, 100);
    assert_eq!((warm_up.before(), replica.index.entries()), (Some(id(33)), 31));
    assert_eq!((replica.found(&[99, 100]), replica.found(&[71, 72])), (vec![0, 2], vec![0, 2]));
}

#[test]
fn indexes_of_producers_that_are_gone_keep_nothing_for_others() {
    let (pool, budget) = (pool(&["a"]), Arc::default());
    let mut replica = Replica::new(1, &pool, &budget);
    replica.add(0, &[1]);
    assert_eq!(replica.index.pending_updates(), 1);
    let same = [(FINGERPRINT, Arc::clone(&replica.writer))];
    assert!(!replica.exchange.set_members(&same, 0));
    assert_eq!(replica.index.pending_updates(), 1);
    assert!(!replica.exchange.set_members(&[], 0));
    replica.add(0, &[2]);
    assert_eq!((replica.index.pending_updates(), replica.poll(100).len()), (0, 0));
    assert!(replica.exchange.set_members(&same, 0), "another stream may have been read meanwhile");
    assert_eq!(replica.poll(100).len(), 1);
    let published = replica.exchange.published();
    replica.exchange.set_members(&[], 100);
    assert_eq!((published.batches, replica.exchange.published()), (1, published), "counts never sink");
}

#[test]
fn lost_stream_is_published_again() {
    let (pool, budget) = (pool(&["a"]), Arc::default());
    let mut replica = Replica::new(1, &pool, &budget);
    replica.add(0, &[1, 2]);
    let batch = replica.poll(100).remove(0);
    replica.exchange.receive(id(1), &batch, 100);
    replica.exchange.begins_at(None);
    replica.exchange.publish_all(100);
    assert_eq!((replica.exchange.stream_bytes(), replica.poll(200).len()), (0, 1));
}

#[test]
fn lost_blocks_of_gone_replicas_are_published_once() {
    let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let (pool, budget) = (pool(&names.iter().map(String::as_str).collect::<Vec<_>>()), Arc::default());
    let mut gone = Replica::new(1, &pool, &budget);
    for endpoint in 0..40 {
        gone.add(endpoint, &(0..1000).map(|block| (endpoint as u64) << 32 | block).collect::<Vec<_>>());
    }
    let batches = [gone.poll(100), gone.poll(200)].concat();
    let mut replicas = [2, 15, 30].map(|number| Replica::new(number, &pool, &budget));
    for replica in &mut replicas {
        for (number, batch) in batches.iter().enumerate().rev() {
            replica.exchange.restore(id(number as u64), batch, 0);
        }
        assert_eq!(replica.exchange.counts().restored, 40_000);
        replica.exchange.publish_all(0);
    }
    let mut stream = Vec::new();
    for (now_ms, from) in (100..1000).step_by(100).flat_map(|now_ms| (0..3).map(move |from| (now_ms, from))) {
        for batch in replicas[from].poll(now_ms) {
            stream.push((id(100 + stream.len() as u64), batch));
            let (id, batch) = &stream[stream.len() - 1];
            for replica in &mut replicas {
                replica.exchange.receive(*id, batch, now_ms);
            }
        }
    }
    let published: u64 = replicas.iter().map(|replica| replica.exchange.published().blocks).sum();
    assert!((40_000..50_000).contains(&published), "{published}");
    let mut started = Replica::new(5, &pool, &budget);
    for (id, batch) in stream.iter().rev() {
        started.exchange.restore(*id, batch, 1000);
    }
    assert_eq!(started.index.entries(), 40_000);
}

#[test]
fn lost_blocks_are_published_when_their_replica_expires() {
    let (pool, budget) = (pool(&["a"]), Arc::default());
    let [mut gone, mut later, mut left] = [1, 2, 3].map(|number| Replica::new(number, &pool, &budget));
    gone.add(0, &[1, 2]);
    left.exchange.receive(id(1), &gone.poll(100)[0], 100);
    left.exchange.publish_all(5000);
    for now_ms in [5100, 5200, 5300] {
        left.poll(now_ms);
    }
    assert_eq!(left.exchange.published().blocks, 0, "it may live, and do so itself");
    left.index.sweep(&pool, 180_100);
    let stream = left.poll(182_000);
    let mut started = Replica::new(4, &pool, &budget);
    for batch in stream {
        started.exchange.restore(id(2), &batch, 182_000);
    }
    assert_eq!(started.found(&[1, 2]), [2]);
    // The stream has those of one that was heard since.
    later.add(0, &[3]);
    left.exchange.receive(id(3), &later.poll(200_000)[0], 200_000);
    left.index.sweep(&pool, 380_000);
    left.poll(382_000);
    left.poll(382_100);
    assert_eq!(left.exchange.published().blocks, 2);
}

#[test]
fn cached_blocks_are_counted_by_source() {
    let (pool, budget) = (pool(&["a", "b"]), Arc::default());
    let [mut first, mut second] = [1, 2].map(|number| Replica::new(number, &pool, &budget));
    let mut old = Replica::new(3, &pool, &budget);
    old.add(0, &[1, 2]);
    second.exchange.restore(id(1), &old.poll(100)[0], 100);
    first.add(0, &[1, 2, 3, 4]);
    second.exchange.receive(id(2), &first.poll(100)[0], 100);
    let matched = |replica: &mut Replica| {
        replica.exchange.discover(&pool, 200);
        replica.exchange.matched()
    };
    assert_eq!((matched(&mut first), matched(&mut second)), (Matched::default(), Matched::default()));
    second.add(0, &[1, 2, 3, 5, 4]);
    assert_eq!(matched(&mut second), Matched { own: 0, others: 3, restored: 0 });
    second.add(0, &[1, 2, 3, 5, 4, 6]);
    second.add(1, &[1]);
    assert_eq!(matched(&mut second), Matched { own: 5, others: 3, restored: 0 }, "to the end without a gap");
    // Of one that published nothing by the time, and another that is gone.
    let mut third = Replica::new(4, &pool, &budget);
    old.add(1, &[7, 8]);
    let batch = old.poll(300).remove(0);
    third.exchange.restore(id(3), &batch, 300);
    third.add(1, &[7]);
    assert_eq!(matched(&mut third), Matched { own: 0, others: 0, restored: 1 });
    second.exchange.receive(id(3), &batch, 300);
    second.index.sweep(&pool, 1_000_000);
    second.add(1, &[7, 8]);
    assert_eq!(matched(&mut second), Matched { own: 5, others: 3, restored: 2 });
    second.exchange.set_members(&[], 300);
    assert_eq!(matched(&mut second).own, 5, "counts never sink");
}
