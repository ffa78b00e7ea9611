//! Several replicas that exchange batches over a stream that loses, repeats and reorders entries, while they restart and
//! endpoints come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::fingerprint::Fingerprint;
use super::{EntryId, Exchange, Received, WarmUp};
use crate::endpoints::{EndpointSpec, Snapshot, Store};
use crate::memory::Budget;
use crate::prefix::{Blocks, IndexWriter, Limits, OriginId, PrefixIndex};

const FINGERPRINT: Fingerprint = Fingerprint(7);
const TTL: Duration = Duration::from_secs(10);
const REPLICAS: usize = 3;
const ENDPOINTS: u32 = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A replica sends prompts of one family of blocks, some of them, to an endpoint.
    Decide(usize, usize, u64, u64),
    /// Time passes, and batches come that are due.
    Wait(u64),
    /// A replica reads some entries of those that it has not read, from this one on.
    Read(usize, usize, usize),
    /// A replica reads one again.
    Repeat(usize, prop::sample::Index),
    /// A replica misses some.
    Lose(usize, usize),
    Restart(usize),
    /// An endpoint is replaced by another pod.
    Replace(u32),
}

fn step(restarts: u32) -> impl Strategy<Value = Step> {
    let replica = || 0..REPLICAS;
    prop_oneof![
        10 => (replica(), 0..ENDPOINTS as usize, 0..6u64, 0..12u64)
            .prop_map(|(replica, endpoint, family, blocks)| Step::Decide(replica, endpoint, family, blocks)),
        5 => (1..400u64).prop_map(Step::Wait),
        6 => (replica(), 0..3usize, 1..5usize).prop_map(|(replica, from, count)| Step::Read(replica, from, count)),
        1 => (replica(), any::<prop::sample::Index>()).prop_map(|(replica, at)| Step::Repeat(replica, at)),
        1 => (replica(), 1..3usize).prop_map(|(replica, count)| Step::Lose(replica, count)),
        restarts => replica().prop_map(Step::Restart),
        1 => (0..ENDPOINTS).prop_map(Step::Replace),
    ]
}

struct Replica {
    exchange: Exchange,
    index: Arc<PrefixIndex>,
    writer: Arc<IndexWriter>,
    /// Positions of entries that it has still to read.
    unread: Vec<usize>,
    /// Blocks that it sent to each pod.
    sent: BTreeMap<u32, BTreeSet<u64>>,
}

struct World {
    store: Store,
    /// Uid of each endpoint.
    pods: Vec<u32>,
    snapshot: Arc<Snapshot>,
    stream: Vec<Vec<u8>>,
    replicas: Vec<Replica>,
    limits: Limits,
    lives: u8,
    now_ms: u64,
    /// Blocks that were sent to each pod.
    sent: BTreeMap<u32, BTreeSet<u64>>,
}

fn id(at: usize) -> EntryId {
    EntryId { ms: at as u64 + 1, seq: 0 }
}

fn prompt(family: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|block| (family << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).collect()
}

impl World {
    fn new(limits: Limits) -> Self {
        let store = Store::default();
        let mut world = Self {
            snapshot: store.snapshot(),
            store,
            pods: (0..ENDPOINTS).collect(),
            stream: Vec::new(),
            replicas: Vec::new(),
            limits,
            lives: 0,
            now_ms: 1,
            sent: BTreeMap::new(),
        };
        world.publish();
        for _ in 0..REPLICAS {
            let replica = world.start();
            world.replicas.push(replica);
        }
        world
    }

    fn publish(&mut self) {
        let spec = |(name, pod): (usize, &u32)| EndpointSpec {
            uid: Some(pod.to_string()),
            ..EndpointSpec::new(name.to_string(), (Ipv4Addr::LOCALHOST, name as u16 + 1))
        };
        self.store.replace(self.pods.iter().enumerate().map(spec).collect());
        self.snapshot = self.store.snapshot();
    }

    /// A replica that has read the stream.
    fn start(&mut self) -> Replica {
        self.lives += 1;
        let (index, budget) = (Arc::new(PrefixIndex::new(self.limits)), Arc::<Budget>::default());
        let writer = Arc::new(IndexWriter::inline(Arc::clone(&index), IndexWriter::share(&budget)));
        let mut exchange = Exchange::new(OriginId([self.lives; 16]), TTL, 1 << 20, &budget);
        exchange.set_members(&[(FINGERPRINT, Arc::clone(&writer))], self.now_ms);
        exchange.discover(&self.snapshot, self.now_ms);
        let mut warm_up = WarmUp::default();
        let entries = self.stream.iter().enumerate().rev().map(|(at, batch)| (id(at), batch.as_slice()));
        warm_up.page(&mut exchange, entries, self.now_ms);
        Replica { exchange, index, writer, unread: Vec::new(), sent: BTreeMap::new() }
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        for at in 0..REPLICAS {
            let Replica { exchange, writer, .. } = &mut self.replicas[at];
            exchange.discover(&self.snapshot, self.now_ms);
            writer.sweep(&self.snapshot, self.now_ms);
            while let Some(batch) = self.replicas[at].exchange.poll(self.now_ms) {
                self.replicas.iter_mut().for_each(|replica| replica.unread.push(self.stream.len()));
                self.stream.push(batch);
            }
        }
    }

    fn read(&mut self, replica: usize, at: usize) {
        let received = self.replicas[replica].exchange.receive(id(at), &self.stream[at], self.now_ms);
        assert!(matches!(received, Received::Imported | Received::Own), "{received:?}");
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Decide(replica, endpoint, family, blocks) => {
                let prompt = prompt(family, blocks);
                self.replicas[replica].index.add(
                    &self.snapshot.endpoints()[endpoint],
                    &prompt,
                    self.limits.capacity,
                );
                let sent = &mut self.replicas[replica].sent;
                sent.entry(self.pods[endpoint]).or_default().extend(prompt.iter().copied());
                self.sent.entry(self.pods[endpoint]).or_default().extend(prompt);
            }
            Step::Wait(ms) => self.wait(ms),
            Step::Read(replica, from, count) => {
                for _ in 0..count {
                    let unread = &mut self.replicas[replica].unread;
                    if unread.is_empty() {
                        break;
                    }
                    let at = unread.remove(from.min(unread.len() - 1));
                    self.read(replica, at);
                }
            }
            Step::Repeat(replica, at) => {
                if !self.stream.is_empty() {
                    self.read(replica, at.index(self.stream.len()));
                }
            }
            Step::Lose(replica, count) => {
                let unread = &mut self.replicas[replica].unread;
                unread.drain(..count.min(unread.len()));
            }
            Step::Restart(replica) => self.replicas[replica] = self.start(),
            Step::Replace(endpoint) => {
                self.pods[endpoint as usize] += 100;
                self.publish();
            }
        }
    }

    /// Leading blocks of each family at each endpoint.
    fn found(&self, replica: usize) -> Vec<Vec<u32>> {
        let find = |family| {
            let mut matched = Vec::new();
            let blocks = Blocks::from_prompts([prompt(family, 12)]);
            self.replicas[replica].index.find(&blocks, self.snapshot.all().view(), &mut matched);
            matched
        };
        (0..6).map(find).collect()
    }

    /// Checks that no endpoint holds what was never sent to it, or more than there is room for.
    fn check(&self) {
        for (at, replica) in self.replicas.iter().enumerate() {
            assert!(replica.index.entries() <= self.limits.entries);
            for endpoint in self.snapshot.endpoints() {
                assert!(replica.index.held(endpoint) <= self.limits.capacity);
            }
            for (family, found) in (0..).zip(self.found(at)) {
                for (pod, blocks) in self.pods.iter().zip(found) {
                    let sent = self.sent.get(pod);
                    let was_sent = |hash: &u64| sent.is_some_and(|sent| sent.contains(hash));
                    assert!(prompt(family, blocks.into()).iter().all(was_sent), "{pod} never got these");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn replicas_know_the_same_when_it_is_quiet(
        steps in prop_oneof![Just(0), Just(1)].prop_flat_map(|restarts| prop::collection::vec(step(restarts), 0..80)),
        (entries, capacity) in prop_oneof![3 => Just((1000, 100)), 1 => (20..100usize, 5..30usize)],
    ) {
        let mut world = World::new(Limits { entries, capacity });
        for step in &steps {
            world.take(step);
            world.check();
        }
        // All is published again, and nothing is lost from here on.
        world.wait(0);
        for replica in &mut world.replicas {
            replica.unread.clear();
            replica.exchange.publish_all(world.now_ms);
        }
        for _ in 0..5 {
            world.wait(3000);
            for replica in 0..REPLICAS {
                world.take(&Step::Read(replica, 0, usize::MAX));
            }
            world.check();
        }
        for replica in &world.replicas {
            let held: usize = world.snapshot.endpoints().iter().map(|endpoint| replica.index.held(endpoint)).sum();
            prop_assert_eq!(held, replica.index.entries(), "nothing is held by endpoints that are gone");
        }
        // Where nothing is evicted, each has what any of them sent, and no more unless one has read what a life before published.
        let is_sent = |pod: &u32, hash: &u64| {
            world.replicas.iter().any(|replica| replica.sent.get(pod).is_some_and(|sent| sent.contains(hash)))
        };
        let leading = |pod: &u32, family| {
            prompt(family, 12).iter().take_while(|hash| is_sent(pod, hash)).count() as u32
        };
        let sent = |family| world.pods.iter().map(|pod| leading(pod, family)).collect::<Vec<_>>();
        for (at, family) in (0..REPLICAS).flat_map(|at| (0..6).map(move |family| (at, family))) {
            let (found, sent) = (&world.found(at)[family as usize], sent(family));
            if capacity == 100 && usize::from(world.lives) == REPLICAS {
                prop_assert_eq!(found, &sent);
            } else if capacity == 100 {
                prop_assert!(found.iter().zip(&sent).all(|(found, sent)| found >= sent), "{found:?} {sent:?}");
            }
        }
    }
}
