//! Memory that finding tokens takes.

use std::sync::Arc;

use usher_core::memory::{Budget, BudgetFull, Kind, Reservation};

/// Memory that finding the tokens of a request takes, estimated before it is allocated.
#[derive(Debug)]
pub(super) struct Room(Reservation);

impl Room {
    /// None yet.
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self(Reservation::new(budget, Kind::Bodies))
    }

    /// Takes so many bytes more.
    ///
    /// # Errors
    /// `BudgetFull` if the budget has no room for the tokens.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), BudgetFull> {
        self.0.grow_optional(self.0.bytes().saturating_add(bytes as u64))
    }

    /// Keeps so many bytes, if it has more.
    pub(super) fn keep(&mut self, bytes: usize) {
        self.0.set(self.0.bytes().min(bytes as u64));
    }

    /// Gives back so many.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.0.set(self.0.bytes().saturating_sub(bytes as u64));
    }
}

/// Bytes of JSON with the values that it becomes, each with its place in a list or a map.
pub(super) fn parsed(json: &[u8]) -> usize {
    /// Bytes of a value that may take two of JSON: an empty list, or a number.
    const VALUE: usize = 256;
    let values = json.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    json.len().saturating_mul(4).saturating_add(values.saturating_mul(VALUE))
}
