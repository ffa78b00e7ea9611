//! Location of an endpoint, and how near two of them are to each other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use crate::config::layers::PLACE_LABELS;

/// The narrowest place that two endpoints share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nearness {
    /// No shared place, or unknown.
    Apart,
    /// Both in one region.
    Region,
    /// Both in one zone.
    Zone,
    /// Both in one rack.
    Rack,
    /// Both on one host.
    Host,
}

impl Nearness {
    /// All, in their order: the farthest first.
    pub const ALL: [Self; PLACE_LABELS.len() + 1] =
        [Self::Apart, Self::Region, Self::Zone, Self::Rack, Self::Host];

    /// In the order of [`PLACE_LABELS`].
    const LEVELS: [Self; 4] = [Self::Host, Self::Rack, Self::Zone, Self::Region];
}

/// The places of an endpoint, as numbers: equal names have equal numbers among the
/// endpoints of a store's snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology([Option<NonZeroU64>; PLACE_LABELS.len()]);

impl Topology {
    /// Returns `true` if no place is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// The number of the place that endpoints have to share to be so near; `None` where it
    /// isn't known. Places of different kinds have different numbers.
    pub fn place(&self, nearness: Nearness) -> Option<NonZeroU64> {
        let level = Nearness::LEVELS.iter().position(|level| *level == nearness)?;
        self.0.get(level).copied().flatten()
    }

    /// The narrowest place that both share. Names are compared level by level, as
    /// llm-d-router does: a rack is known by its name alone, wherever it is. A place that isn't
    /// known is never shared, and neither is one of another snapshot.
    pub fn nearness(&self, other: &Self) -> Nearness {
        let shared = self.0.iter().zip(&other.0).position(|(ours, theirs)| ours.is_some() && ours == theirs);
        shared.and_then(|level| Nearness::LEVELS.get(level).copied()).unwrap_or(Nearness::Apart)
    }
}

/// The last number that a place was given. No number is given twice, in whatever store,
/// so that two places can't be taken for one.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Gives names of places their numbers.
#[derive(Debug, Default)]
pub(super) struct PlaceInterner {
    numbers: [HashMap<String, NonZeroU64>; PLACE_LABELS.len()],
}

impl PlaceInterner {
    /// The places that labels name. An empty name is none.
    pub(super) fn of(&mut self, labels: &BTreeMap<String, String>) -> Topology {
        let mut places = [None; PLACE_LABELS.len()];
        for ((place, numbers), label) in places.iter_mut().zip(&mut self.numbers).zip(PLACE_LABELS) {
            let Some(name) = labels.get(label).filter(|name| !name.is_empty()) else { continue };
            *place = numbers.get(name).copied().or_else(|| {
                let number = NonZeroU64::new(LAST.fetch_add(1, Relaxed) + 1)?;
                numbers.insert(name.clone(), number);
                Some(number)
            });
        }
        Topology(places)
    }

    /// Forgets the names of places without endpoints.
    pub(super) fn keep(&mut self, used: impl IntoIterator<Item = Topology>) {
        let used: HashSet<NonZeroU64> = used.into_iter().flat_map(|topology| topology.0).flatten().collect();
        for numbers in &mut self.numbers {
            numbers.retain(|_, number| used.contains(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(places: [&str; 4]) -> BTreeMap<String, String> {
        let pairs = PLACE_LABELS.iter().zip(places).filter(|(_, place)| *place != "-");
        pairs.map(|(label, place)| ((*label).to_owned(), place.to_owned())).collect()
    }

    #[test]
    fn narrowest_shared_layer_counts() {
        let here = ["host-1", "rack-1", "zone-1", "region-1"];
        // "-": no label
        let table = [
            (here, here, Nearness::Host),
            (here, ["host-2", "rack-1", "zone-1", "region-1"], Nearness::Rack),
            (here, ["host-2", "rack-2", "zone-1", "region-1"], Nearness::Zone),
            (here, ["host-2", "rack-2", "zone-2", "region-1"], Nearness::Region),
            (here, ["host-2", "rack-2", "zone-2", "region-2"], Nearness::Apart),
            (here, ["host-1", "rack-2", "zone-2", "region-2"], Nearness::Host),
            (here, ["host-2", "rack-1", "zone-2", "region-2"], Nearness::Rack),
            (["-", "rack-1", "zone-1", "-"], here, Nearness::Rack),
            (["-"; 4], ["-"; 4], Nearness::Apart),
            ([""; 4], [""; 4], Nearness::Apart),
            (["", "-", "zone-1", "-"], ["", "-", "zone-1", "-"], Nearness::Zone),
            // The same word for different places.
            (["a", "b", "c", "d"], ["b", "a", "d", "c"], Nearness::Apart),
        ];
        let mut places = PlaceInterner::default();
        for (one, other, nearness) in table {
            let [a, b] = [one, other].map(|names| places.of(&labels(names)));
            assert_eq!(a.nearness(&b), nearness, "{one:?} {other:?}");
            assert_eq!(b.nearness(&a), nearness, "{other:?} {one:?}");
        }
        assert!(Nearness::Host > Nearness::Rack && Nearness::Region > Nearness::Apart);
        assert!(places.of(&labels(["", "-", "-", ""])).is_unknown());
        assert!(!places.of(&labels(["", "-", "-", "r"])).is_unknown());
    }

    #[test]
    fn unused_topology_places_are_removed() {
        let mut places = PlaceInterner::default();
        let stays = places.of(&labels(["a", "-", "z", "-"]));
        let goes = places.of(&labels(["b", "-", "z", "-"]));
        places.keep([stays]);
        assert_eq!(places.numbers.each_ref().map(HashMap::len), [1, 0, 1, 0]);
        assert_eq!(places.of(&labels(["a", "-", "z", "-"])), stays);
        let back = places.of(&labels(["b", "-", "z", "-"]));
        assert_eq!(back.nearness(&stays), Nearness::Zone);
        assert_eq!(back.nearness(&goes), Nearness::Zone, "its host has a new number");
        let other = PlaceInterner::default().of(&labels(["a", "-", "z", "-"]));
        assert_eq!(other.nearness(&stays), Nearness::Apart, "each store has its own places");
    }
}
