//! Reserved memory.

use std::sync::Arc;

use super::{Budget, BudgetFull, Kind};

/// Reserved memory. It counts until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    kind: Kind,
    bytes: u64,
}

impl Reservation {
    /// Empty reservation.
    pub fn new(budget: &Arc<Budget>, kind: Kind) -> Self {
        Self { budget: Arc::clone(budget), kind, bytes: 0 }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it so many bytes, if it has less. Where that is tight, requests that wait make room
    /// whose priority is at most this one; none do where it isn't known.
    ///
    /// # Errors
    /// `BudgetFull` if there is no room; the reservation is then unchanged.
    pub fn grow_to(&mut self, bytes: u64, priority: impl FnOnce() -> Option<i32>) -> Result<(), BudgetFull> {
        if bytes > self.bytes {
            self.budget.grow(self.kind, bytes - self.bytes, priority)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// The same for a request that is on its way, which may take a sixteenth of the limit more.
    ///
    /// # Errors
    /// `BudgetFull` if there is no room beyond the limit either; the reservation is then unchanged.
    pub fn grow_over_limit(
        &mut self,
        bytes: u64,
        priority: impl FnOnce() -> Option<i32>,
    ) -> Result<(), BudgetFull> {
        if bytes > self.bytes {
            self.budget.grow_over_limit(self.kind, bytes - self.bytes, priority)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Makes it so many bytes, if it has less and seven eighths of the budget have room. Nothing is aborted for it.
    ///
    /// # Errors
    /// `BudgetFull` if there is no room; the reservation is then unchanged.
    pub fn grow_optional(&mut self, bytes: u64) -> Result<(), BudgetFull> {
        if bytes > self.bytes {
            self.budget.grow_optional(self.kind, bytes - self.bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Makes it so many bytes, also where there is no room: for what is there already.
    pub fn set(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.budget.give_back(self.kind, self.bytes - bytes);
        } else {
            self.budget.add(self.kind, bytes - self.bytes);
        }
        self.bytes = bytes;
    }

    /// Takes over what another one of the same kind holds.
    pub fn join(&mut self, mut other: Self) {
        debug_assert_eq!(self.kind, other.kind);
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(self.kind, self.bytes);
        }
    }
}
