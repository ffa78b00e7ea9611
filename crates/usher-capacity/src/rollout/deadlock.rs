//! Deadlocks: groups that each hold nodes that another one needs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Placement;

/// A group with unschedulable pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedGroup {
    /// Required domain of its pods; `None`: any.
    pub place: Option<Placement>,
    /// Unschedulable pods.
    pub asks: u32,
    /// Pods beyond complete groups.
    pub spare: u32,
    /// Time since which it is known, on any clock: the youngest group gives way.
    pub born: Duration,
}

/// Groups that remove pods beyond complete groups so that others progress: among those that wait for the same
/// domain the youngest, one after the other, until the removed pods are enough for the rest, or one group is
/// left. Unschedulable pods of several groups mean a lack of nodes.
pub fn groups_to_trim(groups: &[BlockedGroup]) -> Vec<usize> {
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
            // A group without spare pods blocks no other.
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
        assert_eq!(groups_to_trim(&pair), [1]);
        let same = [waiting("r1", 3, 3, 10), waiting("r1", 3, 3, 10)];
        assert_eq!(groups_to_trim(&same), [1], "by place where they are of one age");
        let elsewhere = [waiting("r1", 3, 3, 10), waiting("r2", 3, 3, 20), waiting("", 3, 3, 5)];
        assert!(groups_to_trim(&elsewhere).is_empty());
        assert!(groups_to_trim(&pair[..1]).is_empty(), "who waits alone waits for nodes");
        assert!(groups_to_trim(&[waiting("r1", 0, 3, 10), waiting("r1", 3, 3, 20)]).is_empty());
    }

    #[test]
    fn smallest_number_of_groups_gives_way() {
        let three = |spare| [waiting("", 4, spare, 1), waiting("", 4, spare, 2), waiting("", 4, spare, 3)];
        assert_eq!(groups_to_trim(&three(8)), [2], "what it gives back is enough for two");
        assert_eq!(groups_to_trim(&three(4)), [1, 2]);
        assert!(groups_to_trim(&three(0)).is_empty(), "nobody has anything to give back");
    }
}
