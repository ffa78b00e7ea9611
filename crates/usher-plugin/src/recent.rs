//! Items by when they were used last; for plugins that remember a bounded number of them.

use std::collections::{BTreeMap, HashMap};

/// A set of items that knows which of them was not used for the longest time.
#[derive(Debug, Default)]
pub struct Recent {
    stamps: HashMap<u64, u64>,
    /// The items by their stamps, the oldest first.
    order: BTreeMap<u64, u64>,
    next: u64,
}

impl Recent {
    /// Uses an item. Returns whether it is new.
    pub fn touch(&mut self, item: u64) -> bool {
        let stamp = self.next;
        self.next += 1;
        let before = self.stamps.insert(item, stamp);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(stamp, item);
        before.is_none()
    }

    /// Removes the item that was not used for the longest time, if there are more than so
    /// many.
    pub fn evict(&mut self, capacity: usize) -> Option<u64> {
        if self.stamps.len() <= capacity {
            return None;
        }
        let (_, item) = self.order.pop_first()?;
        self.stamps.remove(&item);
        Some(item)
    }

    /// Time at which an item was used last, as a number that grows with every use; `None` for an
    /// item that is not there.
    #[inline]
    pub fn stamp(&self, item: u64) -> Option<u64> {
        self.stamps.get(&item).copied()
    }

    /// Removes an item.
    pub fn remove(&mut self, item: u64) {
        if let Some(stamp) = self.stamps.remove(&item) {
            self.order.remove(&stamp);
        }
    }

    /// All items.
    pub fn items(&self) -> impl Iterator<Item = u64> {
        self.stamps.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn most_recently_used_items_are_kept(
            uses in prop::collection::vec(0u64..20, 0..200),
            capacity in 0usize..15,
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut recent = Recent::default();
            let mut reference: Vec<u64> = Vec::new();
            for item in uses {
                let known = reference.contains(&item);
                reference.retain(|other| *other != item);
                reference.push(item);
                prop_assert_eq!(recent.touch(item), !known);
                let want = (reference.len() > capacity).then(|| reference.remove(0));
                prop_assert_eq!(recent.evict(capacity), want);
                let mut items: Vec<u64> = recent.items().collect();
                items.sort_unstable();
                let mut want = reference.clone();
                want.sort_unstable();
                prop_assert_eq!(items, want);
            }
            for index in removed {
                let mut by_stamp: Vec<u64> = recent.items().collect();
                by_stamp.sort_unstable_by_key(|item| recent.stamp(*item));
                prop_assert_eq!(&by_stamp, &reference);
                let item = index.index(20) as u64;
                reference.retain(|other| *other != item);
                recent.remove(item);
                prop_assert_eq!(recent.stamp(item), None);
            }
            prop_assert_eq!(recent.evict(0), reference.first().copied());
        }
    }
}
