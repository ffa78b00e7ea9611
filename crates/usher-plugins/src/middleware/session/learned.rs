//! Bindings as replicas hand them on.
//!
//! A record has a list of endpoints and, behind it, sessions: a hash of the name (16 bytes), the position of the endpoint (2), and
//! the time at which the session expires if it isn't used (8), on the writer's clock.

use std::collections::HashMap;
use std::sync::Arc;

use usher_core::endpoints::{Endpoint, Snapshot};
use usher_plugin::{Import, Learned, MalformedRecord};

use super::bindings::{Bindings, Place};
use crate::record::{RecordReader, RecordWriter};

/// Version of the records.
const VERSION: u32 = 1;

/// Sessions that are read or bound at a time: requests wait for the table meanwhile, some 20 µs.
const AT_ONCE: usize = 128;

/// Bytes from which on a record is complete.
const ENOUGH: usize = 16 << 10;

/// Bytes of a session.
const SESSION: usize = 16 + 2 + 8;

/// A record that is being written.
#[derive(Default)]
struct Draft<'a> {
    places: HashMap<&'a str, u16>,
    endpoints: RecordWriter,
    sessions: RecordWriter,
}

impl<'a> Draft<'a> {
    fn add(&mut self, (expires_ms, key): Place, endpoint: &'a Endpoint) {
        // Far below, by the bound on bytes.
        let next = u16::try_from(self.places.len()).unwrap_or(u16::MAX);
        let endpoints = &mut self.endpoints;
        let place = *self.places.entry(endpoint.identity()).or_insert_with(|| {
            endpoints.endpoint(endpoint, endpoint.load().engine_times.get().started);
            next
        });
        self.sessions.u128(key);
        self.sessions.u16(place);
        self.sessions.u64(expires_ms);
    }

    fn is_enough(&self) -> bool {
        self.endpoints.0.len() + self.sessions.0.len() >= ENOUGH
    }

    /// Passes the record on, if there is any, and begins another. Returns `false` if there is no more room.
    fn pass(&mut self, record: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let Self { places, endpoints, sessions } = std::mem::take(self);
        let mut out = RecordWriter::default();
        out.u16(u16::try_from(places.len()).unwrap_or(u16::MAX));
        out.0.extend(endpoints.0);
        out.0.extend(&sessions.0);
        sessions.0.is_empty() || record(&out.0)
    }
}

impl Bindings {
    /// Passes sessions on that expire within these places, the last first. Returns the first of them, and whether there is more room.
    fn export_within<'a>(
        &self,
        (begin, mut end): (Place, Place),
        endpoints: &HashMap<&'a str, &'a Endpoint>,
        record: &mut dyn FnMut(&[u8]) -> bool,
    ) -> (Option<Place>, bool) {
        let (mut draft, mut newest) = (Draft::default(), None);
        while begin < end {
            let sessions = self.latest(begin..end, AT_ONCE);
            let Some((last, _)) = sessions.last() else { break };
            end = *last;
            for (place, identity) in &sessions {
                newest.get_or_insert(*place);
                // Those of a pod that is gone are of no use to others.
                if let Some(endpoint) = endpoints.get(&**identity) {
                    draft.add(*place, endpoint);
                    if draft.is_enough() && !draft.pass(record) {
                        return (newest, false);
                    }
                }
            }
        }
        (newest, draft.pass(record))
    }
}

impl Learned for Bindings {
    fn format(&self) -> String {
        format!("session-bindings/{VERSION}/{:016x}", self.meaning())
    }

    fn export(&self, snapshot: &Snapshot, record: &mut dyn FnMut(&[u8]) -> bool) {
        let endpoints: HashMap<&str, &Endpoint> =
            snapshot.endpoints().iter().map(|endpoint| (&**endpoint.identity(), &**endpoint)).collect();
        let (first, last) = ((0, 0), (u64::MAX, u128::MAX));
        let (newest, has_room) = self.export_within((first, last), &endpoints, record);
        // Sessions that were used meanwhile have moved up, perhaps unseen.
        if let Some((expires_ms, key)) = newest.filter(|_| has_room) {
            self.export_within(((expires_ms, key.saturating_add(1)), last), &endpoints, record);
        }
    }

    fn import(&self, record: &[u8], cx: &Import<'_>) -> Result<u64, MalformedRecord> {
        let mut reader = RecordReader(record);
        let mut endpoints = Vec::new();
        for _ in 0..reader.u16()? {
            endpoints.push(reader.endpoint(cx.snapshot)?.same());
        }
        if reader.0.len() % SESSION != 0 {
            return Err(MalformedRecord);
        }
        let mut sessions = Vec::with_capacity(reader.0.len() / SESSION);
        while !reader.is_empty() {
            let (key, place, expires_ms) = (reader.u128()?, reader.u16()?, reader.u64()?);
            let endpoint = endpoints.get(usize::from(place)).ok_or(MalformedRecord)?;
            sessions.extend(endpoint.map(|at| ((cx.here(expires_ms), key), Arc::clone(at.identity()))));
        }
        Ok(sessions.chunks(AT_ONCE).map(|some| self.adopt(some, cx.now_ms)).sum())
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{IntCounter, IntGauge};
    use proptest::prelude::*;
    use usher_core::endpoints::{EndpointSpec, Store};
    use usher_core::random::mix;
    use usher_plugin::{MAX_RECORD, Persistent};

    use super::*;

    fn bindings(capacity: usize) -> Bindings {
        let counter = IntCounter::new("evicted", "Evicted.").unwrap();
        let bindings = Bindings::new(capacity, IntGauge::new("live", "Live.").unwrap(), counter);
        bindings.configure(7, 60_000);
        bindings
    }

    /// A pool of these pods, each with an address of its own.
    fn pool(pods: &[&str]) -> Arc<Snapshot> {
        let store = Store::default();
        let spec = |(number, pod): (u8, &&str)| EndpointSpec {
            uid: Some((*pod).to_owned()),
            ..EndpointSpec::new(pod.to_lowercase(), ([10, 0, 0, number], 80))
        };
        store.replace((1..).zip(pods).map(spec).collect());
        store.snapshot()
    }

    fn identity(snapshot: &Snapshot, number: usize) -> Arc<str> {
        Arc::clone(snapshot.endpoints()[number].identity())
    }

    fn records(bindings: &Bindings, snapshot: &Snapshot) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        bindings.export(snapshot, &mut |record| {
            records.push(record.to_vec());
            true
        });
        records
    }

    #[test]
    fn sessions_keep_their_endpoint_and_the_rest_of_their_time() {
        let (writer, reader, pods) = (bindings(100), bindings(100), pool(&["a", "b"]));
        writer.bind("s", None, &identity(&pods, 1), 1000, 60_000);
        writer.bind("old", None, &identity(&pods, 0), 1000, 2000);
        writer.bind("gone", None, &"default/c@c".into(), 1000, 60_000);
        let [record] = &records(&writer, &pods)[..] else { panic!() };
        // Written 500 ms after the sessions were used, and read 2 s after that.
        let cx = Import::new(&pods, 90_000, 1500, 2000);
        assert_eq!(reader.import(record, &cx), Ok(1));
        let get = |session, now_ms| reader.get(session, now_ms).map(|endpoint| endpoint.to_string());
        assert_eq!(get("s", 90_000).as_deref(), Some("default/b@b"));
        assert_eq!((get("s", 147_499).is_some(), get("s", 147_500)), (true, None));
        assert_eq!((get("old", 90_000), get("gone", 90_000)), (None, None));
        assert!(!record.windows(4).any(|window| window == b"gone"), "names stay here");
    }

    #[test]
    fn sessions_of_pods_that_are_gone_are_left_out() {
        let (writer, pods) = (bindings(100), pool(&["a", "b"]));
        writer.bind("s", None, &identity(&pods, 1), 1000, 60_000);
        let [record] = &records(&writer, &pods)[..] else { panic!() };
        // Gone, another one of the name, at another address.
        for other in [pool(&["a"]), pool(&["a", "B"]), pool(&["b"])] {
            let reader = bindings(100);
            assert_eq!(reader.import(record, &Import::new(&other, 500, 1000, 0)), Ok(0));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn binding_that_expires_later_wins_in_any_order() {
        let pods = pool(&["a", "b"]);
        let written = [(0, 1000), (1, 21_000)].map(|(pod, now_ms)| {
            let writer = bindings(100);
            writer.bind("s", None, &identity(&pods, pod), now_ms, 60_000);
            records(&writer, &pods).concat()
        });
        let cx = Import::new(&pods, 22_000, 22_000, 0);
        for order in [[0, 1], [1, 0]] {
            let reader = bindings(100);
            for number in order {
                reader.import(&written[number], &cx).unwrap();
            }
            assert_eq!(reader.get("s", 22_000), Some(identity(&pods, 1)), "{order:?}");
        }
        let reader = bindings(100);
        reader.bind("s", None, &identity(&pods, 0), 21_500, 60_000);
        assert_eq!(reader.import(&written[1], &cx), Ok(0), "it was used here since");
    }

    #[test]
    fn idle_sessions_expire_despite_handovers() {
        let pods = pool(&["a"]);
        let [one, other] = [0; 2].map(|_| bindings(100));
        one.bind("s", None, &identity(&pods, 0), 1000, 60_000);
        let mut taken = 0;
        // Every copy seems as new as it can: no time passed on its way, and the reader's clock is 2 s ahead.
        for turn in 1..12 {
            let now_ms = 1000 + turn * 10_000;
            for (writer, reader) in [(&one, &other), (&other, &one)] {
                for record in records(writer, &pods) {
                    taken += reader.import(&record, &Import::new(&pods, now_ms, now_ms - 2000, 0)).unwrap();
                }
            }
        }
        // Once by the other, and once more by the one where it expires first.
        assert!(taken <= 2, "{taken}");
        assert_eq!((one.get("s", 81_000), other.get("s", 81_000)), (None, None));
    }

    #[test]
    fn sessions_have_bounds_here_too() {
        let (writer, reader, pods) = (bindings(100), bindings(2), pool(&["a"]));
        for (number, session) in ["1", "2", "3"].into_iter().enumerate() {
            writer.bind(session, None, &identity(&pods, 0), 1000 + number as u64, u64::MAX);
        }
        reader.bind("own", None, &identity(&pods, 0), 1000, 60_000);
        let record = records(&writer, &pods).concat();
        assert_eq!(
            reader.import(&record, &Import::new(&pods, 1000, 1000, 0)),
            Ok(1),
            "there is room for one"
        );
        assert!(reader.get("own", 1000).is_some() && reader.len() == 2);
        reader.sweep(&pods, 61_000);
        assert!(reader.is_empty(), "no session stays longer than configured");
    }

    #[test]
    fn records_are_bounded_and_the_latest_come_first() {
        let (writer, pods) = (bindings(10_000), pool(&["a", "b", "c"]));
        for number in 0..5000 {
            let pod = identity(&pods, number as usize % 3);
            writer.bind(&number.to_string(), None, &pod, 1000 + number, 60_000);
        }
        let all = records(&writer, &pods);
        assert!(all.len() > 5 && all.iter().all(|record| record.len() <= MAX_RECORD));
        let reader = bindings(10_000);
        let cx = Import::new(&pods, 6000, 6000, 0);
        assert!(reader.import(&all[0], &cx).unwrap() > 500);
        assert!(reader.get("4999", 6000).is_some() && reader.get("0", 6000).is_none());
        let rest: u64 = all[1..].iter().map(|record| reader.import(record, &cx).unwrap()).sum();
        assert!(rest > 4000 && reader.len() == 5000);
        for number in 0..5000 {
            let pod = identity(&pods, number as usize % 3);
            assert_eq!(reader.get(&number.to_string(), 6000), Some(pod));
        }
        let mut passed = 0;
        writer.export(&pods, &mut |_| {
            passed += 1;
            passed < 2
        });
        assert_eq!(passed, 2, "no more is passed than there is room");
    }

    proptest! {
        /// Whatever a record says, it is read or refused, and bounds hold.
        #[test]
        fn damaged_records_do_no_harm(seed: u64, cut: prop::sample::Index) {
            let (writer, reader, pods) = (bindings(100), bindings(50), pool(&["a", "b"]));
            for number in 0..80 {
                writer.bind(&number.to_string(), None, &identity(&pods, number % 2), 1000, 60_000);
            }
            let mut record = records(&writer, &pods).concat();
            for n in 0..4 {
                let at = mix(seed + n) as usize % record.len();
                record[at] = mix(!seed + n) as u8;
            }
            let _ = reader.import(&record, &Import::new(&pods, 1000, 1000, 0));
            record.truncate(cut.index(record.len()));
            let _ = reader.import(&record, &Import::new(&pods, 1000, 1000, 0));
            prop_assert!(reader.len() <= 50);
            reader.sweep(&pods, 61_000);
            prop_assert!(reader.is_empty());
        }
    }
}
