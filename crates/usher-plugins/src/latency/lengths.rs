//! Lengths of responses by model and flow.
//!
//! Requests of one model and flow are answered alike; a pool's mean says little about a flow
//! of short ones. Means and quantiles are estimated response by response: no response is kept.

use std::collections::HashMap;
use std::hash::Hasher;
#[expect(deprecated, reason = "the only keyed hash of the standard library whose keys can be handed on")]
use std::hash::SipHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use usher_plugin::{Import, MalformedRecord};

use super::evidence::{Evidence, Known};
use super::length::Length;
use crate::record::{RecordReader, RecordWriter};

/// Models and flows whose lengths are kept at most. The least recently used go.
const MOST: usize = 4096;

/// Part of them that goes at once, so that not each new one looks for the oldest.
const GOES: usize = MOST / 8;

/// Responses that the pool's mean counts for in that of a model and flow.
const LEAN: f64 = 8.0;

/// Responses from which on quantiles count.
const FEWEST: u32 = 8;

/// The model and flow of a request: a number that stands for both. 0: neither is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kind(u64);

/// Lengths of responses, in tokens.
#[derive(Debug)]
pub(super) struct Lengths {
    /// Keys of the hash of models and flows: random, until replicas agree on those of one of them. Clients don't know them.
    keys: [AtomicU64; 2],
    /// Counts decisions and responses: what was used last has the highest number.
    tick: AtomicU64,
    // Written when a response is complete, read in decisions.
    kinds: RwLock<Kinds>,
}

#[derive(Debug, Default)]
struct Kinds {
    by_kind: HashMap<Kind, Entry>,
    /// Responses by the present keys, counting those of the replica that the keys are of.
    responses: Evidence,
    all: Known<Length>,
}

#[derive(Debug, Default)]
struct Entry {
    used: AtomicU64,
    length: Known<Length>,
}

/// Tokens that are expected of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Mean.
    pub mean: f64,
    /// Ninetieth percentile.
    pub high: f64,
}

impl Default for Lengths {
    fn default() -> Self {
        let keys = [(); 2].map(|()| AtomicU64::new(rand::random()));
        Self { keys, tick: AtomicU64::new(0), kinds: RwLock::default() }
    }
}

impl Lengths {
    /// The model and flow of a request. Clients choose both, so the number can't be foreseen.
    pub(super) fn kind(&self, model: &str, flow: &str) -> Kind {
        let [first, second] = self.keys();
        #[expect(deprecated, reason = "as above")]
        let mut hasher = SipHasher::new_with_keys(first, second);
        hasher.write(model.as_bytes());
        // In no text.
        hasher.write_u8(0xff);
        hasher.write(flow.as_bytes());
        Kind(hasher.finish().max(1))
    }

    fn keys(&self) -> [u64; 2] {
        [0, 1].map(|n| self.keys[n].load(Relaxed))
    }

    /// A response had so many tokens, at least 1, where the pool's mean is `mean`.
    pub(super) fn note(&self, kind: Kind, tokens: f64, mean: f64, now_ms: u64) {
        let tick = self.tick.fetch_add(1, Relaxed);
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        kinds.all.observed(now_ms).note(tokens, mean);
        if kind == Kind::default() {
            return;
        }
        kinds.responses.count(now_ms);
        if kinds.by_kind.len() >= MOST && !kinds.by_kind.contains_key(&kind) {
            kinds.make_room();
        }
        let entry = kinds.by_kind.entry(kind).or_default();
        entry.used.store(tick, Relaxed);
        entry.length.observed(now_ms).note(tokens, mean);
    }

    /// Tokens of a response to a request of this model and flow, where the pool's mean is
    /// `mean`.
    pub(super) fn expected(&self, kind: Kind, mean: f64) -> Expected {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let own = kinds.by_kind.get(&kind);
        if let Some(own) = own {
            own.used.store(self.tick.fetch_add(1, Relaxed), Relaxed);
        }
        let own = own.map(|own| own.length.estimate).unwrap_or_default();
        let samples = f64::from(own.samples);
        let mean = (own.mean * samples + mean * LEAN) / (samples + LEAN);
        let known = [own, kinds.all.estimate].into_iter().find(|length| length.samples >= FEWEST);
        let high = known.map_or(mean, |length| length.high.max(length.median).exp());
        Expected { mean, high: high.max(mean) }
    }

    /// Lengths of all responses.
    pub(super) fn all(&self) -> Known<Length> {
        self.kinds.read().unwrap_or_else(PoisonError::into_inner).all
    }

    /// Takes over lengths of all responses that are known better. Returns whether they are.
    pub(super) fn replace_all(&self, theirs: Known<Length>, now_ms: u64) -> bool {
        theirs.replace(&mut self.kinds.write().unwrap_or_else(PoisonError::into_inner).all, now_ms)
    }

    /// Lengths by model and flow, those that were used last first.
    pub(super) fn by_kind(&self) -> Vec<(Kind, Known<Length>)> {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        let used = |(kind, entry): (&Kind, &Entry)| (entry.used.load(Relaxed), *kind, entry.length);
        let mut all: Vec<_> = kinds.by_kind.iter().map(used).collect();
        drop(kinds);
        all.sort_unstable_by_key(|(used, kind, _)| (u64::MAX - used, kind.0));
        all.into_iter().map(|(_, kind, length)| (kind, length)).collect()
    }

    /// Writes lengths, with the keys of their hashes.
    pub(super) fn write(&self, lengths: &[(Kind, Known<Length>)], out: &mut RecordWriter) {
        let kinds = self.kinds.read().unwrap_or_else(PoisonError::into_inner);
        self.keys().into_iter().for_each(|key| out.u64(key));
        kinds.responses.write(out);
        for (kind, length) in lengths {
            out.u64(kind.0);
            length.write(out, Length::write);
        }
    }

    /// Takes over lengths of another process that are known better there. Returns the number of those.
    ///
    /// Only those of the same keys can be compared. Of different ones, all replicas go on with the same: then those by the
    /// others are forgotten, as no names are kept to hash again.
    pub(super) fn import(
        &self,
        record: &mut RecordReader<'_>,
        cx: &Import<'_>,
    ) -> Result<u64, MalformedRecord> {
        let (keys, responses) = ([record.u64()?, record.u64()?], Evidence::read(record, cx)?);
        let mut lengths = Vec::new();
        while !record.is_empty() {
            lengths.push((Kind(record.u64()?.max(1)), Known::read(record, cx, Length::read)?));
        }
        let mut kinds = self.kinds.write().unwrap_or_else(PoisonError::into_inner);
        if keys != self.keys() {
            // The highest stay: roughly of the most responses lately, as counts go on while records are read.
            let rank = |responses: Evidence, keys| (responses.magnitude(cx.now_ms), keys);
            if rank(responses, keys) <= rank(kinds.responses, self.keys()) {
                return Ok(0);
            }
            self.keys.iter().zip(keys).for_each(|(own, key)| own.store(key, Relaxed));
            kinds.by_kind.clear();
            kinds.responses = responses;
        }
        let mut taken = 0;
        // From the one that was used first to the last.
        for (kind, length) in lengths.into_iter().rev() {
            let has_room = kinds.by_kind.len() < MOST || kinds.by_kind.contains_key(&kind);
            let ours = kinds.by_kind.get(&kind).map(|entry| entry.length.evidence).unwrap_or_default();
            if has_room && length.evidence.is_better(ours, cx.now_ms) {
                let entry = kinds.by_kind.entry(kind).or_default();
                entry.used.fetch_max(self.tick.fetch_add(1, Relaxed), Relaxed);
                entry.length = length;
                taken += 1;
            }
        }
        Ok(taken)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.kinds.read().unwrap().by_kind.len()
    }
}

impl Kinds {
    /// Drops the least recently used.
    fn make_room(&mut self) {
        let used = |entry: &Entry| entry.used.load(Relaxed);
        let mut all: Vec<u64> = self.by_kind.values().map(used).collect();
        let (_, newest, _) = all.select_nth_unstable(GOES - 1);
        let newest = *newest;
        self.by_kind.retain(|_, entry| used(entry) > newest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::length::tests::tokens;
    use usher_core::endpoints::Snapshot;

    #[test]
    fn new_models_and_flows_expect_the_mean() {
        let lengths = Lengths::default();
        let (short, long) = (lengths.kind("m", "short"), lengths.kind("m", "long"));
        assert_ne!(short, lengths.kind("mshort", ""));
        assert_eq!(lengths.expected(short, 200.0), Expected { mean: 200.0, high: 200.0 });
        for n in 0..200 {
            lengths.note(short, tokens(n, 10.0, 30.0) as f64, 200.0, 0);
            lengths.note(long, tokens(n, 1000.0, 3000.0) as f64, 200.0, 0);
        }
        let (short, long) = (lengths.expected(short, 900.0), lengths.expected(long, 900.0));
        assert!(short.mean < 80.0 && short.high < 80.0, "{short:?}");
        assert!(long.mean > 1500.0 && long.high > 2000.0, "{long:?}");
        let new = lengths.expected(lengths.kind("m", "new"), 900.0);
        assert!(new.mean == 900.0 && new.high > 1000.0, "the pool's: {new:?}");
    }

    #[test]
    fn least_recently_used_lengths_are_evicted() {
        let lengths = Lengths::default();
        let kind = |n: usize| lengths.kind("m", &n.to_string());
        for n in 0..MOST {
            lengths.note(kind(n), 10.0, 200.0, 0);
        }
        // Used again in a decision, and so not among the oldest.
        lengths.expected(kind(0), 100.0);
        for n in 0..10 * MOST {
            lengths.note(kind(MOST + n), 10.0, 200.0, 0);
            assert!(lengths.len() <= MOST);
            if n == 0 {
                assert!(lengths.expected(kind(0), 100.0).mean < 100.0, "it is still known");
                assert_eq!(lengths.expected(kind(1), 100.0).mean, 100.0, "it is forgotten");
            }
        }
        lengths.note(Kind::default(), 10.0, 200.0, 0);
        assert!(lengths.len() <= MOST);
    }

    /// Responses of a flow that all have so many tokens.
    fn respond(lengths: &Lengths, flow: &str, tokens: f64, samples: u32) {
        (0..samples).for_each(|_| lengths.note(lengths.kind("m", flow), tokens, 200.0, 0));
    }

    fn record(lengths: &Lengths) -> Vec<u8> {
        let mut out = RecordWriter::default();
        lengths.write(&lengths.by_kind(), &mut out);
        out.0
    }

    fn import(lengths: &Lengths, record: &[u8]) -> Result<u64, MalformedRecord> {
        let snapshot = Snapshot::new(1, Vec::new());
        lengths.import(&mut RecordReader(record), &Import::new(&snapshot, 1, 1, 0))
    }

    fn expect(lengths: &Lengths, flow: &str) -> Expected {
        lengths.expected(lengths.kind("m", flow), 200.0)
    }

    #[test]
    fn lengths_of_another_process_are_found_by_its_keys() {
        let (writer, reader) = (Lengths::default(), Lengths::default());
        respond(&writer, "short", 20.0, 100);
        respond(&writer, "long", 2000.0, 100);
        assert_eq!(writer.by_kind()[0].0, writer.kind("m", "long"), "the last");
        assert_eq!(import(&reader, &record(&writer)), Ok(2));
        for flow in ["short", "long"] {
            assert_eq!(expect(&reader, flow), expect(&writer, flow), "{flow}");
        }
        assert_eq!(import(&reader, &record(&writer)), Ok(0));
        assert_eq!(import(&reader, &record(&writer)[..90]), Err(MalformedRecord));
    }

    #[test]
    fn replicas_that_start_together_agree_on_keys() {
        // By chance either has the larger keys.
        for _ in 0..20 {
            let all = [(); 3].map(|()| Lengths::default());
            for (lengths, flow) in all.iter().zip(["a", "b", "c"]) {
                respond(lengths, flow, 20.0, 100);
            }
            for _ in 0..2 {
                let records: Vec<_> = all.iter().map(record).collect();
                all.iter().for_each(|lengths| records.iter().for_each(|record| _ = import(lengths, record)));
            }
            assert!(all.iter().all(|lengths| lengths.keys() == all[0].keys()));
            respond(&all[0], "d", 2000.0, 100);
            respond(&all[1], "e", 20.0, 100);
            import(&all[1], &record(&all[0])).unwrap();
            import(&all[0], &record(&all[1])).unwrap();
            for flow in ["d", "e"] {
                assert_eq!(expect(&all[0], flow), expect(&all[1], flow), "{flow}");
            }
            assert!(expect(&all[1], "d").mean > 1000.0 && expect(&all[0], "e").mean < 100.0);
        }
    }

    #[test]
    fn keys_of_more_responses_stay() {
        for _ in 0..20 {
            let (old, new) = (Lengths::default(), Lengths::default());
            respond(&old, "long", 2000.0, 1000);
            respond(&new, "short", 20.0, 10);
            let keys = old.keys();
            assert_eq!((import(&old, &record(&new)), old.keys()), (Ok(0), keys));
            assert_eq!((import(&new, &record(&old)), new.keys()), (Ok(1), keys));
            // A third, of a replica that has adopted the keys, is as old as they are.
            let third = Lengths::default();
            respond(&third, "short", 20.0, 100);
            assert_eq!((import(&new, &record(&third)), new.keys()), (Ok(0), keys));
        }
    }

    #[test]
    fn wrong_length_is_forgotten_soon() {
        for before in [0, 1, 100] {
            let lengths = Lengths::default();
            let kind = lengths.kind("m", "f");
            (0..before).for_each(|_| lengths.note(kind, 200.0, 200.0, 0));
            lengths.note(kind, 1e18, 200.0, 0);
            (0..50).for_each(|_| lengths.note(kind, 200.0, 200.0, 0));
            let expected = lengths.expected(kind, 200.0);
            assert!(expected.mean < 300.0 && expected.high < 1600.0, "{before}: {expected:?}");
        }
    }
}
