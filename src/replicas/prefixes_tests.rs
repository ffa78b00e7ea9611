//! Replicas at a store in memory, which loses, refuses and lies.

use std::num::NonZeroU32;
use std::sync::Mutex;

use prometheus::{IntCounterVec, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::oneshot;
use usher_core::endpoints::EndpointSpec;
use usher_core::prefix::share::{EntryId, Scheme};
use usher_core::prefix::{Blocks, Limits, PrefixIndex};

use super::super::connection::{Connection, Connector};
use super::super::entries;
use super::super::metrics::ReplicasMetrics;
use super::super::resp::{Decoder, Value};
use super::super::retries::NamedCauses;
use super::super::stream::PAGE;
use super::super::turns::take_turns;
use super::*;
use crate::settings::{StateStoreSettings, StoreAddress, StorePassword};

/// A store with one stream.
#[derive(Clone, Default)]
struct Script {
    entries: Vec<(EntryId, Vec<u8>)>,
    last: u64,
    /// Commands that it refuses, and its words.
    refused: (&'static [&'static [u8]], &'static str),
    trims: usize,
}

/// Payloads of entries whose replies never end, and their lengths.
const ENDLESS: [(&[u8], u64); 2] = [(b"endless", 3 << 30), (b"slow", 200_000)];

fn text(bytes: &[u8]) -> Vec<u8> {
    if let Some((_, length)) = ENDLESS.iter().find(|(payload, _)| *payload == bytes) {
        return [format!("${length}\r\n").as_bytes(), &[b'x'; 100_000]].concat();
    }
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

impl Script {
    fn add(&mut self, payload: &[u8]) -> EntryId {
        self.last += 1;
        let id = EntryId { ms: self.last, seq: 0 };
        self.entries.push((id, payload.to_vec()));
        id
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|(_, payload)| payload.len()).sum()
    }

    fn list<'a>(entries: impl IntoIterator<Item = &'a (EntryId, Vec<u8>)>) -> Vec<u8> {
        let entry = |(id, payload): &(EntryId, Vec<u8>)| {
            let id = text(id.to_string().as_bytes());
            // An entry of somebody else has more fields than one.
            let fields = usize::from(payload.first() == Some(&b'f')) * 5000 + 1;
            let count = format!("*{}\r\n", 2 * fields).into_bytes();
            [&b"*2\r\n"[..], &id, &count, &[text(b"b"), text(payload)].concat().repeat(fields)].concat()
        };
        let entries: Vec<Vec<u8>> = entries.into_iter().map(entry).collect();
        [format!("*{}\r\n", entries.len()).into_bytes(), entries.concat()].concat()
    }

    fn reply(&mut self, command: &[Value]) -> Vec<u8> {
        let words: Vec<&[u8]> = command.iter().filter_map(Value::text).collect();
        let id = |at: usize| entries::id(words[at]).unwrap();
        let (refused, why) = self.refused;
        match words[0] {
            command if refused.contains(&command) => format!("-{why}\r\n").into_bytes(),
            b"XADD" => text(self.add(words[4]).to_string().as_bytes()),
            b"XREAD" => {
                let count: usize = std::str::from_utf8(words[2]).unwrap().parse().unwrap();
                let found: Vec<_> = self.entries.iter().filter(|(at, _)| *at > id(5)).take(count).collect();
                match found.is_empty() {
                    true => b"_\r\n".to_vec(),
                    false => [&b"%1\r\n"[..], &text(words[4]), &Self::list(found)].concat(),
                }
            }
            b"XRANGE" => Self::list(self.entries.iter().take(1)),
            b"XREVRANGE" => {
                let before = words[2].strip_prefix(b"(").and_then(entries::id);
                let older = |(at, _): &&(EntryId, Vec<u8>)| before.is_none_or(|before| *at < before);
                let count = if words[5] == b"1" { 1 } else { 2 };
                Self::list(self.entries.iter().rev().filter(older).take(count))
            }
            b"XTRIM" => {
                self.trims += 1;
                let oldest = id(3);
                self.entries.retain(|(at, _)| *at >= oldest);
                b":1\r\n".to_vec()
            }
            b"EXPIRE" => b":1\r\n".to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

/// Serves a connection until it ends.
async fn serve(script: Arc<Mutex<Script>>, mut bytes: DuplexStream) {
    let mut commands = Decoder::default();
    loop {
        while let Some(Value::List(command)) = commands.next().unwrap() {
            let mut reply = script.lock().unwrap().reply(&command);
            let endless = ENDLESS.iter().find_map(|(payload, _)| {
                let begun = text(payload);
                Some(reply.windows(begun.len()).position(|window| window == begun)? + begun.len())
            });
            if let Some(end) = endless {
                reply.truncate(end);
            }
            bytes.write_all(&reply).await.unwrap();
            if endless.is_some() {
                std::future::pending().await
            }
        }
        if bytes.read_buf(&mut commands.bytes).await.unwrap() == 0 {
            return;
        }
    }
}

struct Replica {
    prefixes: Prefixes,
    stream: Stream,
    clock: Clock,
    store: Arc<Store>,
    index: Arc<PrefixIndex>,
    warm: oneshot::Receiver<()>,
}

/// Bytes of the stream at most.
const BOUND: u64 = 1 << 20;

impl Replica {
    fn new(script: &Arc<Mutex<Script>>, block: u32) -> Self {
        let (clock, budget, store) = (Clock::stopped(), Arc::default(), Arc::new(Store::default()));
        store.replace(vec![EndpointSpec::new("a", ([10, 0, 0, 1], 8000))]);
        let index = Arc::new(PrefixIndex::new(Limits::default()));
        let writer = Arc::new(IndexWriter::inline(Arc::clone(&index), IndexWriter::share(&budget)));
        let block_tokens = NonZeroU32::new(block).unwrap();
        let fingerprint =
            Fingerprint::of(Scheme { producer: ("p", "p"), block_tokens, follows_engines: false });
        let connector = Connector {
            store: StateStoreSettings::at(StoreAddress::Unix("/no/such/socket".into())),
            name: "a".to_owned(),
            metrics: ReplicasMetrics::register(&Registry::new()).unwrap(),
            named: NamedCauses::default(),
        };
        let (ready, warm) = oneshot::channel();
        let indexes: Indexes = Box::new(move || vec![(fingerprint, Arc::clone(&writer))]);
        let metrics = connector.metrics.prefixes.clone();
        let stream = Stream::new(connector, "k".to_owned(), metrics.connected.clone(), ready);
        let prefixes = Prefixes::new((BOUND, &budget), clock.clone(), indexes, Arc::clone(&store), metrics);
        let mut replica = Self { prefixes, stream, clock, store, index, warm };
        replica.connect(script);
        replica
    }

    /// Has it use a new connection.
    fn connect(&mut self, script: &Arc<Mutex<Script>>) {
        let (ours, theirs) = duplex(1 << 22);
        tokio::spawn(serve(Arc::clone(script), theirs));
        self.stream.connection = Some(Connection::over(Box::new(ours)));
    }

    fn add(&self, hashes: &[u64]) {
        self.add_within(31_250, hashes);
    }

    fn add_within(&self, capacity: usize, hashes: &[u64]) {
        self.index.add(&self.store.snapshot().endpoints()[0], hashes, capacity);
    }

    /// Takes a turn at this time.
    async fn turn(&mut self, ms: u64) -> Result<(), Failure> {
        self.clock.set(Duration::from_millis(ms));
        assert!(self.prefixes.readiness() == Readiness::Ready);
        self.prefixes.turn(&mut self.stream).await.map(drop)
    }

    /// Drops what has expired at this time.
    fn sweep(&self, ms: u64) {
        self.index.sweep(&self.store.snapshot(), ms);
    }

    fn found(&self, hashes: &[u64]) -> u32 {
        let mut matched = Vec::new();
        self.index.find(&Blocks::from_prompts([hashes]), self.store.snapshot().all().view(), &mut matched);
        matched[0]
    }

    fn counted(&self, family: &IntCounterVec, label: &str) -> u64 {
        family.with_label_values(&[label]).get()
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_of_one_replica_are_found_by_another_and_after_a_restart() {
    let stream = Arc::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    b.turn(50).await.unwrap();
    assert!(b.warm.try_recv().is_ok(), "an empty stream keeps nobody waiting");
    a.add(&[1, 2, 3]);
    a.turn(100).await.unwrap();
    b.turn(150).await.unwrap();
    assert_eq!((b.found(&[1, 2, 3, 4]), b.prefixes.exchange.counts().imported), (3, 3));
    // More pages than one.
    for number in 1..=7 {
        a.add(&[number * 10]);
        a.turn(150 + number * 100).await.unwrap();
    }
    let mut c = Replica::new(&stream, 16);
    assert!(c.warm.try_recv().is_err());
    c.turn(50).await.unwrap();
    assert!(c.warm.try_recv().is_ok());
    assert_eq!((c.found(&[1, 2, 3]), c.found(&[10]), c.found(&[70])), (3, 1, 1));
    assert_eq!(c.prefixes.exchange.counts().restored, 10);
}

#[tokio::test(start_paused = true)]
async fn start_waits_neither_without_an_index_nor_where_somebody_has_to_help() {
    let mut none = Replica::new(&Arc::default(), 16);
    none.prefixes.indexes = Box::new(Vec::new);
    let mut refused = Replica::new(&Arc::default(), 16);
    refused.stream.connector.store.password = Some(StorePassword::File("/no/such/file".into()));
    for (replica, connected) in [(none, 1), (refused, 0)] {
        let Replica { mut prefixes, mut stream, warm, .. } = replica;
        stream.disconnect();
        let metrics = prefixes.metrics.clone();
        let running = tokio::spawn(async move { take_turns(&mut stream, &mut prefixes).await });
        warm.await.unwrap();
        assert_eq!(metrics.connected.get(), connected);
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn warm_up_begins_once_endpoints_are_known() {
    let stream = Arc::default();
    let mut a = Replica::new(&stream, 16);
    a.add(&[1]);
    a.turn(100).await.unwrap();
    let mut b = Replica::new(&stream, 16);
    let endpoints = b.store.snapshot().endpoints().iter().map(|endpoint| endpoint.spec().clone()).collect();
    b.store.replace(Vec::new());
    b.turn(50).await.unwrap();
    assert!(b.warm.try_recv().is_err());
    b.store.replace(endpoints);
    b.turn(100).await.unwrap();
    assert_eq!((b.found(&[1]), b.prefixes.exchange.counts().restored), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn lost_stream_is_filled_again() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    a.add(&[1, 2]);
    b.add(&[3]);
    a.turn(100).await.unwrap();
    b.turn(100).await.unwrap();
    stream.lock().unwrap().entries.clear();
    // One comes first, and the other finds another stream in the place of the old one.
    a.turn(5300).await.unwrap();
    a.turn(5500).await.unwrap();
    b.turn(5500).await.unwrap();
    b.turn(5700).await.unwrap();
    let mut c = Replica::new(&stream, 16);
    c.turn(50).await.unwrap();
    assert_eq!((c.found(&[1, 2]), c.found(&[3])), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn stream_that_is_lost_under_load_is_filled_again() {
    let stream = Arc::<Mutex<Script>>::default();
    let mut a = Replica::new(&stream, 16);
    a.add(&[1, 2]);
    a.turn(100).await.unwrap();
    stream.lock().unwrap().entries.clear();
    for turn in 2..=60 {
        a.add(&[turn * 10]);
        a.turn(turn * 100).await.unwrap();
    }
    let mut c = Replica::new(&stream, 16);
    for turn in 0..3 {
        c.turn(turn * 50).await.unwrap();
    }
    assert_eq!((c.found(&[1, 2]), c.found(&[20]), c.found(&[600])), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn store_without_memory_is_read_and_gets_the_batch_later() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    a.add(&[1]);
    a.turn(100).await.unwrap();
    stream.lock().unwrap().refused = (&[b"XADD"], "OOM command not allowed when used memory > 'maxmemory'.");
    b.add(&[2]);
    assert_eq!(b.turn(100).await.unwrap_err().reason(), "out_of_memory");
    assert_eq!(b.found(&[1]), 1);
    stream.lock().unwrap().refused = Default::default();
    b.turn(200).await.unwrap();
    a.turn(300).await.unwrap();
    assert_eq!(a.found(&[2]), 1);
}

#[tokio::test(start_paused = true)]
async fn store_that_refuses_to_write_warms_up_a_start_all_the_same() {
    let stream = Arc::<Mutex<Script>>::default();
    let mut a = Replica::new(&stream, 16);
    // More than one turn reads.
    for number in 1..=40 {
        a.add(&[number]);
        a.turn(number * 100).await.unwrap();
    }
    stream.lock().unwrap().refused =
        (&[b"EXPIRE", b"XTRIM", b"XADD"], "MISCONF Redis is configured to save RDB snapshots");
    let mut b = Replica::new(&stream, 16);
    b.add(&[99]);
    b.turn(50).await.unwrap();
    assert!(b.warm.try_recv().is_err());
    assert_eq!(b.turn(100).await.unwrap_err().reason(), "refused");
    assert!(b.warm.try_recv().is_ok());
    assert_eq!((b.found(&[1]), b.found(&[40])), (1, 1));
    stream.lock().unwrap().refused = (&[b"EXPIRE"], "NOPERM User u has no permissions");
    b.turn(200).await.unwrap();
    a.turn(10_000).await.unwrap();
    assert_eq!(a.found(&[99]), 1);
}

#[tokio::test(start_paused = true)]
async fn blocks_behind_a_gap_are_found_where_endpoints_are_full() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    for replica in [&mut a, &mut b] {
        replica.add_within(4, &[1, 2, 3, 4]);
        replica.turn(100).await.unwrap();
    }
    stream.lock().unwrap().entries.clear();
    a.add_within(4, &[5]);
    a.turn(5300).await.unwrap();
    b.turn(5300).await.unwrap();
    assert_eq!((b.found(&[5]), b.prefixes.exchange.counts().restored), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn lost_stream_gets_the_blocks_of_replicas_that_are_gone_again() {
    let stream = Arc::<Mutex<Script>>::default();
    let mut a = Replica::new(&stream, 16);
    a.add(&[1, 2]);
    a.turn(100).await.unwrap();
    drop(a);
    let mut b = Replica::new(&stream, 16);
    b.turn(50).await.unwrap();
    assert_eq!(b.prefixes.exchange.counts().restored, 2);
    stream.lock().unwrap().entries.clear();
    b.turn(5300).await.unwrap();
    b.turn(5500).await.unwrap();
    let mut c = Replica::new(&stream, 16);
    c.turn(50).await.unwrap();
    assert_eq!(c.found(&[1, 2]), 2);
}

#[tokio::test(start_paused = true)]
async fn stream_stays_within_its_bound() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    b.turn(0).await.unwrap();
    let blocks = |number: u64| (number * 1000..(number + 1) * 1000).collect::<Vec<_>>();
    for number in 0..400 {
        a.add(&blocks(number));
        a.turn(100 * (number + 1)).await.unwrap();
        b.turn(100 * (number + 1)).await.unwrap();
        let bytes = stream.lock().unwrap().bytes() as u64;
        assert!(bytes <= BOUND + (64 << 10), "{bytes}");
    }
    let stream = stream.lock().unwrap();
    assert!(stream.trims > 0 && stream.bytes() as u64 > BOUND / 2, "{}", stream.bytes());
    assert_eq!(b.found(&blocks(399)), 1000);
}

#[tokio::test(start_paused = true)]
async fn entries_of_other_blocks_and_no_batches_are_ignored_and_counted() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut other) = (Replica::new(&stream, 16), Replica::new(&stream, 32));
    a.turn(0).await.unwrap();
    other.add(&[1]);
    other.turn(100).await.unwrap();
    for nonsense in [&b""[..], b"\x01", &[0xff; 70_000]] {
        stream.lock().unwrap().add(nonsense);
    }
    a.turn(100).await.unwrap();
    assert_eq!((a.found(&[1]), a.index.entries()), (0, 0));
    let ignored = &a.prefixes.metrics.ignored;
    assert_eq!((a.counted(ignored, "foreign"), a.counted(ignored, "malformed")), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn store_that_sends_the_same_entries_again_holds_up_nothing() {
    let (ours, mut theirs) = duplex(1 << 22);
    let mut a = Replica::new(&Arc::default(), 16);
    a.stream.connection = Some(Connection::over(Box::new(ours)));
    tokio::spawn(async move {
        let same = (EntryId { ms: 5, seq: 0 }, b"x".to_vec());
        let page = Script::list(std::iter::repeat_n(&same, PAGE));
        let mut commands = Decoder::default();
        loop {
            while let Some(Value::List(command)) = commands.next().unwrap() {
                let reply = match command[0].text() {
                    Some(b"XREAD") => [&b"%1\r\n"[..], &text(b"k"), &page].concat(),
                    _ => page.clone(),
                };
                theirs.write_all(&reply).await.unwrap();
            }
            if theirs.read_buf(&mut commands.bytes).await.unwrap() == 0 {
                return;
            }
        }
    });
    for turn in 1..=3 {
        a.turn(turn * 100).await.unwrap();
    }
    assert!(a.warm.try_recv().is_ok());
    assert_eq!(a.prefixes.exchange.counts().malformed, 1);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_a_replica_that_is_gone_stay() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    b.turn(50).await.unwrap();
    a.add(&[1, 2]);
    a.turn(100).await.unwrap();
    drop(a);
    for ms in [200, 180_300] {
        b.turn(ms).await.unwrap();
        b.sweep(ms);
    }
    assert_eq!((b.index.origins(), b.found(&[1, 2])), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_too_long_are_damaged_and_hold_up_nothing() {
    let stream = Arc::<Mutex<Script>>::default();
    let (mut a, mut b) = (Replica::new(&stream, 16), Replica::new(&stream, 16));
    b.turn(50).await.unwrap();
    let lengths = [&[3 << 20][..], &[1_000_000; 9], &[5 << 20]].concat();
    for length in lengths {
        stream.lock().unwrap().add(&vec![b'x'; length]);
    }
    for length in [1, 1000, 1] {
        stream.lock().unwrap().add(&vec![b'f'; length]);
    }
    b.turn(100).await.unwrap();
    a.add(&[1]);
    a.turn(200).await.unwrap();
    b.turn(300).await.unwrap();
    assert_eq!((b.found(&[1]), b.counted(&b.prefixes.metrics.ignored, "malformed")), (1, 14));
    let mut c = Replica::new(&stream, 16);
    for turn in 0..3 {
        c.turn(turn * 100).await.unwrap();
    }
    assert!(c.warm.try_recv().is_ok());
    assert_eq!(c.found(&[1]), 1);
}

#[tokio::test(start_paused = true)]
async fn late_entry_is_skipped_and_all_its_bytes_count() {
    for ((payload, _), left) in ENDLESS.into_iter().zip([&[3][..], &[1, 2, 2, 3]]) {
        let script = Arc::<Mutex<Script>>::default();
        let (mut a, mut b) = (Replica::new(&script, 16), Replica::new(&script, 16));
        b.turn(50).await.unwrap();
        for block in 1..=3 {
            a.add(&[block * 10]);
            a.turn(block * 100).await.unwrap();
        }
        script.lock().unwrap().entries.insert(2, (EntryId { ms: 2, seq: 1 }, payload.to_vec()));
        let copy = Arc::new(Mutex::new(script.lock().unwrap().clone()));
        let mut c = Replica::new(&copy, 16);
        for (replica, script) in [(&mut b, &script), (&mut c, &copy)] {
            let mut connections = 1;
            while replica.turn(400).await.is_err() {
                assert!(connections < 8, "the reply is waited for again and again");
                replica.connect(script);
                connections += 1;
            }
            let malformed = replica.counted(&replica.prefixes.metrics.ignored, "malformed");
            assert_eq!((replica.found(&[30]), malformed), (1, 1));
            assert!(replica.prefixes.exchange.stream_bytes() < BOUND, "too much of it");
            let ids: Vec<u64> = script.lock().unwrap().entries.iter().map(|(id, _)| id.ms).collect();
            assert_eq!(ids, left);
        }
        assert_eq!((b.found(&[10]), b.found(&[20])), (1, 1));
    }
}
