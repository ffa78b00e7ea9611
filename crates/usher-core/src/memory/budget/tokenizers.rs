//! Room for tokenizers, which stay as long as their configuration.

use std::sync::Arc;

use super::{Budget, Kind, UNCOUNTED};
use crate::memory::Reservation;

/// Error of a tokenizer that doesn't fit into the budget; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Memory that it may take.
    pub room: u64,
    /// The least budget of a process that has room for it beside what is there.
    pub least: u64,
}

impl Budget {
    /// Reserves memory for a tokenizer that takes `loading` bytes while it is read, and `loaded` of these afterwards.
    /// Together tokenizers take at most three quarters of what is counted: the rest is for requests.
    ///
    /// # Errors
    /// `NoRoom` if the budget has no room.
    pub fn reserve_tokenizer(self: &Arc<Self>, loading: u64, loaded: u64) -> Result<Reservation, NoRoom> {
        self.check();
        let (others, all) = (self.used(Kind::Tokenizers), self.total());
        let most = self.process.map_or(u64::MAX, |process| Self::counted(process) / 4 * 3);
        let limit = self.limit().unwrap_or(u64::MAX);
        let (now, then) = (all.saturating_add(loading), others.saturating_add(loaded));
        if now > limit || then > most {
            let room = limit.saturating_sub(all).min(most.saturating_sub(others));
            let needed = now.max(then.div_ceil(3).saturating_mul(4));
            return Err(NoRoom { room, least: Self::least_budget(needed) });
        }
        let mut held = Reservation::new(self, Kind::Tokenizers);
        // No request is aborted for it.
        held.set(loading);
        Ok(held)
    }

    /// The least budget of a process of which so many bytes are [counted](Self::counted).
    fn least_budget(bytes: u64) -> u64 {
        if bytes < UNCOUNTED / 3 {
            return bytes * 4;
        }
        bytes.saturating_add(UNCOUNTED).max(bytes.div_ceil(3).saturating_mul(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    #[test]
    fn tokenizers_leave_a_quarter_to_requests() {
        // Budget, bytes while it is read and then, room or `None`: it fits, and the least budget, in MiB. Of 256, 192 are
        // counted.
        for (process, loading, loaded, expected) in [
            (256, 192, 144, None),
            (256, 193, 100, Some((144, 258))),
            (256, 150, 145, Some((144, 258))),
            (1024, 768, 576, None),
            (1024, 769, 1, Some((576, 1026))),
            (48, 12, 9, None),
            (48, 13, 9, Some((9, 52))),
        ] {
            let budget = Arc::new(Budget::of_process(process * MI, None));
            let held = budget.reserve_tokenizer(loading * MI, loaded * MI);
            let result =
                held.as_ref().map(Reservation::bytes).map_err(|no| (no.room / MI, no.least.div_ceil(MI)));
            assert_eq!(result, expected.map_or(Ok(loading * MI), Err), "{process} {loading} {loaded}");
            if let Err(NoRoom { least, .. }) = held {
                let larger = Arc::new(Budget::of_process(least, None));
                assert!(larger.reserve_tokenizer(loading * MI, loaded * MI).is_ok(), "{least}");
            }
        }
        assert!(Arc::new(Budget::default()).reserve_tokenizer(1 << 50, 1 << 50).is_ok());
    }

    #[test]
    fn a_second_tokenizer_counts_beside_the_first() {
        let budget = Arc::new(Budget::of_process(256 * MI, None));
        let mut first = budget.reserve_tokenizer(150 * MI, 100 * MI).unwrap();
        first.set(100 * MI);
        assert_eq!(budget.used(Kind::Tokenizers), 100 * MI);
        assert!(budget.reserve_tokenizer(60 * MI, 45 * MI).is_err());
        assert!(budget.reserve_tokenizer(60 * MI, 44 * MI).is_ok());
        drop(first);
        assert_eq!(budget.used(Kind::Tokenizers), 0);
        assert!(budget.reserve_tokenizer(60 * MI, 45 * MI).is_ok());
    }

    #[test]
    fn prefix_index_gets_a_third_beside_tokenizers() {
        let budget = Arc::new(Budget::of_process(256 * MI, None));
        assert_eq!(budget.prefix_index(), 64 * MI);
        let _tokenizer = budget.reserve_tokenizer(102 * MI, 102 * MI).unwrap();
        assert_eq!(budget.prefix_index(), 30 * MI);
        let mut index = Reservation::new(&budget, Kind::PrefixIndex);
        index.set(29 * MI);
        assert!(budget.has_room_for_prefixes());
        index.set(30 * MI);
        assert!(!budget.has_room_for_prefixes());
        // No more than half of it, whatever was asked for.
        let budget = Arc::new(Budget::of_process(256 * MI, Some(96 * MI)));
        let _tokenizer = budget.reserve_tokenizer(102 * MI, 102 * MI).unwrap();
        assert_eq!(budget.prefix_index(), 45 * MI);
    }
}
