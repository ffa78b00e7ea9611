//! Small stable numbers for endpoints, so that indexes can use arrays and bit
//! sets instead of names.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
struct Numbers {
    free: BTreeSet<u32>,
    next: u32,
}

/// Gives out slots, the smallest free number first.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    // Guards the free numbers; taken when endpoints come and go, never by a request.
    numbers: Arc<Mutex<Numbers>>,
}

impl Slots {
    pub(super) fn take(&self) -> Arc<Slot> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.free.pop_first().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        Arc::new(Slot { number, home: self.clone() })
    }
}

/// An endpoint's number. It becomes free when the last holder lets go of it:
/// the endpoint itself, snapshots that still list it, and every index that has
/// entries under it and so keeps a clone.
#[derive(Debug)]
pub struct Slot {
    number: u32,
    home: Slots,
}

impl Slot {
    /// The number; below the largest number of endpoints that existed at once.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut numbers = self.home.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.free.insert(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn slot_is_reused_only_after_its_last_holder() {
        let slots = Slots::default();
        let (a, b) = (slots.take(), slots.take());
        assert_eq!((a.number(), b.number()), (0, 1));
        let index = std::sync::Arc::clone(&a);
        drop(a);
        assert_eq!(slots.take().number(), 2, "an index still holds 0");
        drop(index);
        assert_eq!(slots.take().number(), 0);
    }
}
