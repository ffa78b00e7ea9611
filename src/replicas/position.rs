//! Place of a replica in the stream, without I/O.

use usher_core::prefix::share::{EntryId, WarmUp};

/// Up to where the stream was read, and whether it still has what this replica added.
///
/// A store may lose the stream (it keeps nothing on disk, or somebody deletes the key), and a replica that was away
/// for long may find that the entries behind its last one were trimmed.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// Last entry that was read; `None`: new entries are read once the end of the stream was; 0-0: the whole stream is new.
    last: Option<EntryId>,
    /// Last entry that this replica added.
    added: Option<EntryId>,
    /// Entry that it added before the last look at the beginning of the stream, or had read when it added the first since. One
    /// that is added later is in the stream again, even if it was lost.
    witness: Option<EntryId>,
    /// Reading from the end towards the beginning, until it is over.
    pub(super) warm_up: Option<WarmUp>,
}

impl Position {
    /// Has the stream read from its end: an index came.
    pub(super) fn begin(&mut self) {
        self.warm_up = Some(WarmUp::default());
    }

    /// Id behind which new entries are; `None`: it is not known yet.
    pub(super) fn after(&self) -> Option<EntryId> {
        self.last
    }

    /// Takes an id of a new entry. Returns `false` for one that was read before.
    pub(super) fn read(&mut self, id: EntryId) -> bool {
        let is_new = self.last < Some(id);
        if is_new {
            self.last = Some(id);
        }
        is_new
    }

    /// Takes a look at the end of the stream, from which new entries are read.
    pub(super) fn found_end(&mut self, newest: EntryId) {
        self.last.get_or_insert(newest);
    }

    /// This replica has added an entry. Returns `true` if all has to be published again: the entry is in another stream than what
    /// was read, as ids grow. That one is read from its beginning.
    pub(super) fn added(&mut self, id: EntryId) -> bool {
        self.added = Some(id);
        // Behind what was read: where that is lost, this may be all that there is.
        let read = self.last.filter(|last| *last != EntryId::default());
        self.witness.get_or_insert(read.unwrap_or(id));
        let is_other = self.last.is_some_and(|last| id <= last);
        if is_other {
            (self.last, self.witness) = (Some(EntryId::default()), Some(id));
        }
        is_other
    }

    /// Compares with the oldest entry of the stream; `None`: it has none. Returns `true` if all that this replica
    /// had added at the last look is gone, or, where it had added nothing, all that it had read. After a gap the stream is
    /// read from its beginning, as all of it is new.
    pub(super) fn is_lost(&mut self, oldest: Option<EntryId>) -> bool {
        let is_gone = |id: EntryId| oldest.is_none_or(|oldest| id < oldest);
        // Behind 0-0 is the whole stream, whatever its beginning is.
        let has_gap = self.last.is_some_and(|last| last != EntryId::default() && is_gone(last));
        let is_lost = self.witness.map_or(has_gap, is_gone);
        if is_lost {
            self.added = None;
        }
        self.witness = self.added;
        if has_gap {
            self.last = Some(EntryId::default());
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    /// A position behind entry 10, with the last own entry 8, that has read the end.
    fn position() -> Position {
        let mut position = Position::default();
        position.begin();
        position.found_end(id(7));
        position.warm_up = None;
        assert!(!position.added(id(8)) && !position.is_lost(Some(id(7))));
        assert!(position.read(id(8)) && position.read(id(10)));
        position
    }

    #[test]
    fn reading_resumes_behind_the_last_entry() {
        let mut position = position();
        assert!(!position.read(id(10)) && !position.read(id(9)));
        for oldest in [1, 8] {
            assert!(!position.is_lost(Some(id(oldest))));
            assert_eq!((position.after(), position.warm_up.is_some()), (Some(id(10)), false));
        }
        position.found_end(id(20));
        assert_eq!(position.after(), Some(id(10)), "an end that is read again skips nothing");
    }

    #[test]
    fn stream_is_read_from_its_beginning_after_a_gap() {
        let mut position = position();
        assert!(!position.added(id(30)) && !position.is_lost(Some(id(8))));
        assert!(!position.is_lost(Some(id(20))), "the last of our entries is there");
        assert_eq!((position.after(), position.warm_up.is_some()), (Some(EntryId::default()), false));
        assert!(position.read(id(20)));
    }

    #[test]
    fn lost_stream_is_noticed_once_if_it_was_replaced() {
        let mut position = position();
        assert!(position.is_lost(None));
        assert_eq!(position.after(), Some(EntryId::default()));
        assert!(!position.is_lost(None), "nothing has been added since");
        let mut position = self::position();
        assert!(position.read(id(20)) && position.is_lost(Some(id(20))));
        assert_eq!(position.after(), Some(id(20)), "all behind the last entry was read");
    }

    #[test]
    fn replica_that_has_added_nothing_notices_a_lost_stream_by_what_it_read() {
        let read = || {
            let mut position = Position::default();
            position.found_end(id(7));
            position
        };
        for oldest in [None, Some(id(9))] {
            let mut position = read();
            assert!(position.is_lost(oldest) && !position.is_lost(oldest), "once");
        }
        assert!(!read().is_lost(Some(id(7))));
        // What it adds then is all that there is.
        let mut position = read();
        assert!(!position.added(id(20)) && position.read(id(20)));
        assert!(position.is_lost(Some(id(20))) && !position.is_lost(Some(id(20))));
    }

    #[test]
    fn lost_stream_is_noticed_in_spite_of_what_was_added_since() {
        let mut position = position();
        assert!(!position.is_lost(Some(id(1))));
        assert!(!position.added(id(20)) && position.read(id(20)));
        assert!(position.is_lost(Some(id(20))));
        assert!(!position.added(id(21)) && !position.is_lost(Some(id(20))));
    }

    #[test]
    fn stream_of_a_clock_that_went_back_is_another_one() {
        let mut position = position();
        assert!(position.added(id(3)));
        assert_eq!(position.after(), Some(EntryId::default()));
    }

    #[test]
    fn stream_that_was_empty_has_no_gap_before_its_first_entry() {
        let mut position = Position::default();
        position.found_end(EntryId::default());
        assert!(!position.is_lost(Some(id(5))));
        assert_eq!((position.after(), position.warm_up.is_some()), (Some(EntryId::default()), false));
    }
}
