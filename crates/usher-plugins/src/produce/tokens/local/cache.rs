//! Tokens of pieces of text that were seen before.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use usher_core::memory::{Budget, Kind, Reservation};
use xxhash_rust::xxh3::Xxh3Builder;

/// Bytes that a piece takes beside its text and its tokens: entries of the map and the order, and both counts.
const ENTRY: usize = 160;

/// Tokens of pieces of text, within so many bytes: the piece that was asked for longest ago goes first.
#[derive(Debug)]
pub(super) struct PieceCache {
    limit: usize,
    // Taken for a look-up or an insertion, by threads that tokenize.
    pieces: Mutex<Pieces>,
}

#[derive(Debug)]
struct Pieces {
    by_text: HashMap<Arc<str>, Piece, Xxh3Builder>,
    /// Oldest first.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    bytes: usize,
    held: Reservation,
}

#[derive(Debug)]
struct Piece {
    ids: Arc<[u32]>,
    used: u64,
}

impl PieceCache {
    /// An empty cache, counted in this budget.
    pub(super) fn new(limit: usize, budget: &Arc<Budget>) -> Self {
        // Clients choose the text.
        let hasher = Xxh3Builder::new().with_seed(rand::random());
        let pieces = Pieces {
            by_text: HashMap::with_hasher(hasher),
            by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            held: Reservation::new(budget, Kind::PrefixIndex),
        };
        Self { limit, pieces: Mutex::new(pieces) }
    }

    /// Tokens of a piece.
    pub(super) fn get(&self, text: &str) -> Option<Arc<[u32]>> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let Pieces { by_text, by_use, uses, .. } = &mut *pieces;
        let piece = by_text.get_mut(text)?;
        *uses += 1;
        if let Some(key) = by_use.remove(&std::mem::replace(&mut piece.used, *uses)) {
            by_use.insert(*uses, key);
        }
        Some(Arc::clone(&piece.ids))
    }

    /// Keeps the tokens of a piece, unless it alone is too large.
    pub(super) fn insert(&self, text: &str, ids: &[u32]) {
        let bytes = size(text, ids);
        if bytes > self.limit {
            return;
        }
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if pieces.by_text.contains_key(text) {
            return;
        }
        while pieces.bytes + bytes > self.limit {
            let Some((_, oldest)) = pieces.by_use.pop_first() else { break };
            if let Some(piece) = pieces.by_text.remove(&oldest) {
                pieces.bytes -= size(&oldest, &piece.ids);
            }
        }
        pieces.uses += 1;
        let (used, text) = (pieces.uses, Arc::from(text));
        pieces.by_use.insert(used, Arc::clone(&text));
        pieces.by_text.insert(text, Piece { ids: ids.into(), used });
        pieces.bytes += bytes;
        let held = pieces.bytes as u64;
        pieces.held.set(held);
    }

    /// Bytes that it takes.
    #[cfg(test)]
    fn bytes(&self) -> (usize, u64) {
        let pieces = self.pieces.lock().unwrap();
        (pieces.bytes, pieces.held.bytes())
    }
}

fn size(text: &str, ids: &[u32]) -> usize {
    text.len() + size_of_val(ids) + ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_piece_is_evicted() {
        let cache = PieceCache::new(3 * (ENTRY + 8), &Arc::default());
        for (text, id) in [("aaaa", 1), ("bbbb", 2), ("cccc", 3)] {
            cache.insert(text, &[id]);
        }
        assert_eq!(cache.get("aaaa").as_deref(), Some(&[1][..]));
        cache.insert("dddd", &[4]);
        let found = ["aaaa", "bbbb", "cccc", "dddd"].map(|text| cache.get(text).is_some());
        assert_eq!(found, [true, false, true, true]);
        let full = 3 * (ENTRY + 8);
        assert_eq!(cache.bytes(), (full, full as u64));
        cache.insert(&"x".repeat(full), &[5]);
        cache.insert("aaaa", &[1]);
        assert_eq!(cache.bytes(), (full, full as u64), "what is too large is not kept");
    }
}
