//! Snapshots that were read from the stream's end towards its beginning. No I/O.

use std::collections::HashMap;

use super::entry::Entry;

/// The newest snapshot of each replica, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Number of the snapshot, and parts that were not read, by origin.
    newest: HashMap<u128, (u64, u16)>,
}

impl History {
    /// Takes the next older entry. Returns `false` if all of a newer snapshot of its replica was read; the end of that may be
    /// missing, as the replica was killed, or a part damaged.
    pub(super) fn wants(&mut self, entry: &Entry<'_>) -> bool {
        let (number, left) = self.newest.entry(entry.origin).or_insert((entry.number, entry.parts));
        if *number == entry.number {
            *left = left.saturating_sub(1);
            return true;
        }
        *left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Draft;
    use super::*;

    #[test]
    fn older_snapshots_count_while_the_newest_has_gaps() {
        let snapshot = |origin, number, parts: usize| {
            let mut draft = Draft::default();
            for part in 0..parts {
                assert!(draft.begin(&part.to_string(), "f") && draft.add(b"r"));
            }
            draft.entries(origin, number, || 0).collect::<Vec<_>>()
        };
        // From the newest to the oldest: the last part of origin 1 was never written.
        let [newest, middle, oldest] = [3, 2, 1].map(|number| snapshot(1, number, 2));
        let other = snapshot(2, 9, 1);
        let mut history = History::default();
        let mut wants = |entry: &Vec<u8>| history.wants(&Entry::parse(entry).unwrap());
        assert!(wants(&newest[0]) && wants(&other[0]));
        assert!(wants(&middle[1]) && wants(&middle[0]), "the newest is not whole");
        assert!(wants(&oldest[1]));
        let mut history = History::default();
        let mut wants = |entry: &Vec<u8>| history.wants(&Entry::parse(entry).unwrap());
        assert!(wants(&middle[1]) && wants(&middle[0]) && !wants(&oldest[1]) && wants(&other[0]));
    }
}
