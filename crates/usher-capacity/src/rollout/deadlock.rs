//! Groups that wait for each other: each holds part of the room that the other one needs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Placement;

/// A group that is blocked because no node takes its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedGroup {
    /// The domain that its pods have to go to; `None`: anywhere.
    pub place: Option<Placement>,
    /// Pods that no node takes.
    pub asks: u32,
    /// Pods that it would give back if it kept whole usable groups only.
    pub spare: u32,
    /// Since when it is known, on any clock: the younger one gives way.
    pub born: Duration,
}

/// Groups that give back what exceeds their whole usable groups, so that others get on: of those that wait
/// for the same domain one after the other from the youngest on, until what they give back is enough for
/// those that stay, or one is left. That nodes refuse pods of several says that there is no room for them.
pub fn give_way(groups: &[BlockedGroup]) -> Vec<usize> {
    let mut by_place: BTreeMap<Option<(&str, &str)>, Vec<(usize, &BlockedGroup)>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate().filter(|(_, group)| group.asks > 0) {
        let place = group.place.as_ref().map(|place| (place.layer.as_str(), place.domain.as_str()));
        by_place.entry(place).or_default().push((index, group));
    }
    let mut giving = Vec::new();
    for members in by_place.values_mut() {
        members.sort_by_key(|(index, group)| std::cmp::Reverse((group.born, *index)));
        let mut asked: u64 = members.iter().map(|(_, group)| u64::from(group.asks)).sum();
        let mut given = 0;
        for ((index, group), left) in members.iter().zip((1..=members.len()).rev()) {
            if left < 2 || asked <= given {
                break;
            }
            // Who has nothing to give back is in nobody's way.
            if group.spare > 0 {
                giving.push(*index);
                given += u64::from(group.spare);
            }
            asked -= u64::from(group.asks);
        }
    }
    giving.sort_unstable();
    giving
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(domain: &str, asks: u32, spare: u32, born: u64) -> BlockedGroup {
        let place = Placement { layer: "rack".to_owned(), domain: domain.to_owned() };
        let place = Some(place).filter(|place| !place.domain.is_empty());
        BlockedGroup { place, asks, spare, born: Duration::from_secs(born) }
    }

    #[test]
    fn younger_group_gives_way() {
        let pair = [waiting("r1", 3, 3, 10), waiting("r1", 3, 3, 20)];
        assert_eq!(give_way(&pair), [1]);
        let same = [waiting("r1", 3, 3, 10), waiting("r1", 3, 3, 10)];
        assert_eq!(give_way(&same), [1], "by place where they are of one age");
        let elsewhere = [waiting("r1", 3, 3, 10), waiting("r2", 3, 3, 20), waiting("", 3, 3, 5)];
        assert!(give_way(&elsewhere).is_empty());
        assert!(give_way(&pair[..1]).is_empty(), "who waits alone waits for nodes");
        assert!(give_way(&[waiting("r1", 0, 3, 10), waiting("r1", 3, 3, 20)]).is_empty());
    }

    #[test]
    fn smallest_number_of_groups_gives_way() {
        let three = |spare| [waiting("", 4, spare, 1), waiting("", 4, spare, 2), waiting("", 4, spare, 3)];
        assert_eq!(give_way(&three(8)), [2], "what it gives back is enough for two");
        assert_eq!(give_way(&three(4)), [1, 2]);
        assert!(give_way(&three(0)).is_empty(), "nobody has anything to give back");
    }
}
