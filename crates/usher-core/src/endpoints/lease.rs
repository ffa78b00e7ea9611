//! Places in every endpoint's load that belong to a name for as long as a lease holds
//! them. There are few, and configurations come and go.

use std::sync::{Arc, Weak};

/// A place that belongs to a name. Clones share it; when the last one is gone, another
/// name may have it.
#[derive(Clone, Debug)]
pub struct Lease<Id> {
    id: Id,
    _held: Arc<()>,
}

impl<Id: Copy> Lease<Id> {
    /// The place.
    pub fn id(&self) -> Id {
        self.id
    }
}

impl<Id> From<Id> for Lease<Id> {
    /// A place outside of the table.
    fn from(id: Id) -> Self {
        Self { id, _held: Arc::default() }
    }
}

impl<Id: PartialEq> PartialEq for Lease<Id> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<Id: Eq> Eq for Lease<Id> {}

/// All places of a kind, and whose they are.
#[derive(Debug)]
pub struct Leases<Id, Name>(Vec<Place<Id, Name>>);

#[derive(Debug)]
struct Place<Id, Name> {
    id: Id,
    /// Name that the place belongs to, or belonged to last; `None`: unused.
    name: Option<Name>,
    held: Weak<()>,
}

impl<Id: Copy, Name: PartialEq> Leases<Id, Name> {
    /// Free places with these numbers.
    pub fn of(ids: impl IntoIterator<Item = Id>) -> Self {
        Self(ids.into_iter().map(|id| Place { id, name: None, held: Weak::new() }).collect())
    }

    /// The place of this name: the one that it has or had last, if it is still free,
    /// or a free one. `None`: others hold them all.
    pub fn take(&mut self, name: Name) -> Option<Lease<Id>> {
        let named = self.0.iter().position(|place| place.name.as_ref() == Some(&name));
        let empty = || self.0.iter().position(|place| place.name.is_none());
        let left = || self.0.iter().position(|place| place.held.strong_count() == 0);
        let index = named.or_else(empty).or_else(left)?;
        let place = self.0.get_mut(index)?;
        let held = place.held.upgrade().unwrap_or_default();
        (place.name, place.held) = (Some(name), Arc::downgrade(&held));
        Some(Lease { id: place.id, _held: held })
    }

    /// Forgets the names without leases. Each of their places is given to `clear`
    /// first, so that the next name finds nothing there.
    pub fn forget(&mut self, mut clear: impl FnMut(Id)) {
        for place in &mut self.0 {
            if place.name.is_some() && place.held.strong_count() == 0 {
                clear(place.id);
                place.name = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_of_a_name_lasts_until_its_last_holder_drops() {
        let mut leases = Leases::of([10, 11]);
        let (a, b) = (leases.take("a").unwrap(), leases.take("b").unwrap());
        assert_eq!((a.id(), b.id()), (10, 11));
        assert_eq!(leases.take("c"), None);
        let again = leases.take("a").unwrap();
        drop(a);
        assert_eq!(leases.take("c"), None, "there is another one");
        drop(again);
        assert_eq!(leases.take("a").unwrap().id(), 10, "nobody got it since");
        assert_eq!(leases.take("c").unwrap().id(), 10);
        drop(b);
        assert_eq!(leases.take("b").unwrap().id(), 11);
    }

    #[test]
    fn cleared_slots_are_reused_first() {
        let mut leases = Leases::of([10, 11, 12]);
        let [a, b, c] = ["a", "b", "c"].map(|name| leases.take(name).unwrap());
        drop(a);
        let mut cleared = Vec::new();
        leases.forget(|id| cleared.push(id));
        assert_eq!(cleared, [10]);
        drop((b, c));
        assert_eq!(leases.take("d").unwrap().id(), 10);
        leases.forget(|id| cleared.push(id));
        assert_eq!(cleared, [10, 10, 11, 12]);
        leases.forget(|id| cleared.push(id));
        assert_eq!(cleared.len(), 4, "there is nothing in them");
    }
}
