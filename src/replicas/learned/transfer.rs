//! State of plugins → a snapshot, and entries → state of plugins. No I/O.

use std::collections::BTreeMap;

use usher_core::endpoints::Snapshot;
use usher_plugin::{Import, State};

use super::entry::{Draft, Entry, EntryError};
use super::history::History;

/// Counts of what was imported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Things that were taken over, by plugin.
    pub(super) imported: BTreeMap<String, u64>,
    /// Bytes of entries of other replicas.
    pub(super) bytes: u64,
    /// Entries of another version, of a plugin that is configured in another way, or of none here.
    pub(super) foreign: u64,
    /// Entries with damage.
    pub(super) malformed: u64,
}

/// A snapshot of what there is to hand on.
pub(super) fn export(state: &State, endpoints: &Snapshot) -> Draft {
    let mut draft = Draft::default();
    for (plugin, value) in state.learned() {
        if let Some(learned) = value.learned()
            && draft.begin(&plugin, &learned.format())
        {
            learned.export(endpoints, &mut |record| draft.add(record));
        }
    }
    draft
}

/// Entries that were read, each with its age in milliseconds.
pub(super) type Aged = Vec<(u64, Vec<u8>)>;

/// Imports entries but those of this origin, and counts. With a history they come from the newest to the oldest.
pub(super) fn import(
    state: &State,
    endpoints: &Snapshot,
    origin: u128,
    entries: &[(u64, Vec<u8>)],
    mut history: Option<&mut History>,
) -> Tally {
    let (mut tally, now_ms) = (Tally::default(), state.clock().now_ms());
    for (age_ms, bytes) in entries {
        let entry = match Entry::parse(bytes) {
            Ok(entry) if entry.origin == origin => continue,
            Ok(entry) => entry,
            Err(EntryError::Version) => {
                tally.foreign += 1;
                continue;
            }
            Err(EntryError::Malformed) => {
                tally.malformed += 1;
                continue;
            }
        };
        tally.bytes += bytes.len() as u64;
        if history.as_mut().is_some_and(|history| !history.wants(&entry)) {
            continue;
        }
        let cx = Import::new(endpoints, now_ms, entry.written_ms, *age_ms);
        import_one(state, &entry, &cx, &mut tally);
    }
    tally
}

fn import_one(state: &State, entry: &Entry<'_>, cx: &Import<'_>, tally: &mut Tally) {
    let all = state.learned();
    let learned = all.iter().filter(|(plugin, _)| plugin == entry.plugin).find_map(|(_, value)| {
        let learned = value.learned()?;
        (learned.format() == entry.format).then_some(learned)
    });
    let Some(learned) = learned else {
        tally.foreign += 1;
        return;
    };
    let (mut taken, mut is_malformed) = (0, false);
    for record in entry.records() {
        match learned.import(record, cx) {
            Ok(more) => taken += more,
            Err(_) => is_malformed = true,
        }
    }
    tally.malformed += u64::from(is_malformed);
    if taken > 0 {
        *tally.imported.entry(entry.plugin.to_owned()).or_default() += taken;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use usher_plugin::{Learned, MalformedRecord, Persistent};

    use super::*;

    /// Numbers that were learned, in a format of this version; 13 is none.
    struct Numbers(u32, Mutex<Vec<u8>>);

    impl Persistent for Numbers {
        fn sweep(&self, _: &Snapshot, _: u64) {}

        fn learned(&self) -> Option<&dyn Learned> {
            Some(self)
        }
    }

    impl Learned for Numbers {
        fn format(&self) -> String {
            format!("numbers/{}", self.0)
        }

        fn export(&self, _: &Snapshot, record: &mut dyn FnMut(&[u8]) -> bool) {
            let numbers = self.1.lock().unwrap();
            let _ = numbers.iter().all(|number| record(&[*number]));
        }

        fn import(&self, record: &[u8], _: &Import<'_>) -> Result<u64, MalformedRecord> {
            match record {
                [13] => Err(MalformedRecord),
                [number] => {
                    self.1.lock().unwrap().push(*number);
                    Ok(1)
                }
                _ => Ok(0),
            }
        }
    }

    fn state(plugins: &[(&str, u32, &[u8])]) -> (State, Vec<Arc<Numbers>>) {
        let state = State::default();
        let make = |(name, version, numbers): &(&str, u32, &[u8])| {
            state.of(name, || Numbers(*version, Mutex::new(numbers.to_vec())))
        };
        let kept = plugins.iter().map(make).collect();
        (state, kept)
    }

    fn entries(state: &State, origin: u128, number: u64) -> Aged {
        let draft = export(state, &Snapshot::new(1, Vec::new()));
        draft.entries(origin, number, || 5).map(|entry| (0, entry)).collect()
    }

    fn read(state: &State, entries: &[(u64, Vec<u8>)], history: Option<&mut History>) -> Tally {
        import(state, &Snapshot::new(1, Vec::new()), 1, entries, history)
    }

    #[test]
    fn records_go_to_the_plugin_of_their_name_and_format() {
        let (writer, _) = state(&[("a", 1, &[1, 2]), ("b", 1, &[3]), ("c", 1, &[4])]);
        let (reader, kept) = state(&[("a", 1, &[]), ("b", 2, &[])]);
        let written = entries(&writer, 2, 1);
        let tally = read(&reader, &written, None);
        assert_eq!(tally.imported, BTreeMap::from([("a".to_owned(), 2)]));
        assert_eq!((tally.foreign, tally.malformed), (2, 0));
        assert_eq!(tally.bytes as usize, written.iter().map(|(_, entry)| entry.len()).sum::<usize>());
        assert_eq!(*kept[0].1.lock().unwrap(), [1, 2]);
    }

    #[test]
    fn own_and_older_snapshots_are_left_out() {
        let (writer, _) = state(&[("a", 1, &[1])]);
        let (reader, kept) = state(&[("a", 1, &[])]);
        assert_eq!(read(&reader, &entries(&writer, 1, 1), None), Tally::default());
        let mut history = History::default();
        for number in [9, 8] {
            read(&reader, &entries(&writer, 2, number), Some(&mut history));
        }
        assert_eq!(*kept[0].1.lock().unwrap(), [1]);
    }

    #[test]
    fn damage_costs_no_more_than_itself() {
        let (writer, _) = state(&[("a", 1, &[1, 13, 2])]);
        let (reader, kept) = state(&[("a", 1, &[])]);
        let damage = [&b""[..], b"\x01", b"\x02version", &[0xff; 100_000], &[1; 70_000]];
        let mut all: Aged = damage.into_iter().map(|bytes| (0, bytes.to_vec())).collect();
        all.extend(entries(&writer, 2, 1));
        let tally = read(&reader, &all, None);
        assert_eq!((tally.foreign, tally.malformed), (2, 4));
        assert_eq!(*kept[0].1.lock().unwrap(), [1, 2]);
    }
}
