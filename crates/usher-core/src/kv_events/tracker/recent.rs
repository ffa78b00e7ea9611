//! Digests of the last messages, to distinguish a duplicate from a restarted engine.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64;

/// Digests of consecutive messages, up to the last one.
#[derive(Debug, Default)]
pub(super) struct RecentMessages {
    digests: VecDeque<u64>,
    /// Number of the message behind the last.
    end: u64,
}

/// Messages that are remembered: more than a live message may lag behind its replay.
const REMEMBERED: usize = 1024;

impl RecentMessages {
    pub(super) fn push(&mut self, sequence: u64, payload: &[u8]) {
        if sequence != self.end {
            self.digests.clear();
        }
        if self.digests.len() == REMEMBERED {
            self.digests.pop_front();
        }
        self.digests.push_back(xxh3_64(payload));
        self.end = sequence + 1;
    }

    /// Returns `true` if this very message was taken. A restarted engine uses its number for another one: batches
    /// have a time in them.
    pub(super) fn has(&self, sequence: u64, payload: &[u8]) -> bool {
        let back = self.end.checked_sub(sequence).and_then(|back| usize::try_from(back).ok());
        let at = back.and_then(|back| self.digests.len().checked_sub(back));
        at.and_then(|at| self.digests.get(at)).is_some_and(|digest| *digest == xxh3_64(payload))
    }

    pub(super) fn clear(&mut self) {
        self.digests.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_messages_are_known_by_number_and_content() {
        let mut recent = RecentMessages::default();
        assert!(!recent.has(0, b""));
        let payload = |sequence: u64| sequence.to_le_bytes();
        (5..5 + 2 * REMEMBERED as u64).for_each(|sequence| recent.push(sequence, &payload(sequence)));
        let last = 4 + 2 * REMEMBERED as u64;
        assert!(recent.has(last, &payload(last)) && !recent.has(last, &payload(5)));
        assert!(!recent.has(last + 1, &payload(last)));
        let first = last + 1 - REMEMBERED as u64;
        assert!(recent.has(first, &payload(first)) && !recent.has(first - 1, &payload(first - 1)));
        recent.push(3, b"x");
        assert!(recent.has(3, b"x") && !recent.has(last, &payload(last)));
        recent.clear();
        assert!(!recent.has(3, b"x"));
    }
}
