//! Start of a replica with what the stream has.

use super::bound::EntryId;
use super::exchange::Exchange;

/// Reading the stream from its end at the start, so that the most recent blocks are there first.
///
/// Pages are read with `XREVRANGE` up to [`before`](Self::before); from the first page on new entries are read with `XREAD`
/// from [`after`](Self::after). It begins when endpoints were discovered: blocks of others wait, but not many. To read
/// something twice changes nothing.
#[derive(Debug, Default)]
pub struct WarmUp {
    newest: Option<EntryId>,
    oldest: Option<EntryId>,
    is_over: bool,
}

impl WarmUp {
    /// Takes a page of entries, the newest first; an empty one is behind the stream's beginning.
    pub fn page<'a>(
        &mut self,
        exchange: &mut Exchange,
        entries: impl IntoIterator<Item = (EntryId, &'a [u8])>,
        now_ms: u64,
    ) {
        let before = self.begin(exchange);
        for (id, payload) in entries {
            self.entry(id, || exchange.restore(id, payload, now_ms));
        }
        self.is_over |= self.oldest == before;
    }

    /// Takes a page of one entry that was not read, as it is longer than any of a replica.
    pub fn skip(&mut self, exchange: &mut Exchange, id: EntryId, bytes: u64) {
        let before = self.begin(exchange);
        self.entry(id, || exchange.skip_older(id, bytes));
        self.is_over |= self.oldest == before;
    }

    fn begin(&self, exchange: &mut Exchange) -> Option<EntryId> {
        if self.oldest.is_none() {
            exchange.restart_reading();
        }
        self.oldest
    }

    /// Takes an entry that is older than those before. `restore` returns `false` if nothing older is of use.
    fn entry(&mut self, id: EntryId, restore: impl FnOnce() -> bool) {
        self.newest = self.newest.or(Some(id));
        if self.oldest.is_none_or(|oldest| id < oldest) {
            self.oldest = Some(id);
            self.is_over |= !restore();
        }
    }

    /// Id that the next page's entries have to be before; `None`: the stream's end.
    pub fn before(&self) -> Option<EntryId> {
        self.oldest
    }

    /// Id behind which new entries are; `0-0` for a stream that was empty.
    pub fn after(&self) -> EntryId {
        self.newest.unwrap_or_default()
    }

    /// Returns `true` if no more pages have to be read.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
#[path = "warm_up_tests.rs"]
mod tests;
