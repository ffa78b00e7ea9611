//! Cost blocks: roles of a group of a given size by cost alone (as kthena's AutoscalingPolicy with a
//! heterogeneous target).

/// Bounds and cost of a role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleCost {
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Cost of a pod relative to those of other roles.
    pub cost: f64,
}

/// Shares `total` pods: each role gets its minimum, then the cheapest blocks follow. Blocks grow: the first
/// is one pod, each next one `expansion_percent` of the one before, so that a cheap role isn't filled before
/// others get any. A growing total never takes a pod from a role.
///
/// Below 200 percent blocks don't grow, as sizes are rounded down: the cheapest role is filled first.
///
/// `total` is clamped to the sum of the roles' bounds.
pub fn allocate(total: u32, roles: &[RoleCost], expansion_percent: u32) -> Vec<u32> {
    let mut shares: Vec<u32> = roles.iter().map(|role| role.min).collect();
    let fewest: u64 = shares.iter().copied().map(u64::from).sum();
    let mut left = u64::from(total).saturating_sub(fewest);
    for block in blocks(roles, expansion_percent) {
        if left == 0 {
            break;
        }
        let take = u64::from(block.size).min(left);
        left -= take;
        if let Some(share) = shares.get_mut(block.role) {
            *share += take as u32;
        }
    }
    shares
}

/// Least percentage by which a block of one pod grows.
const GROWS: u32 = 200;

#[derive(Debug)]
struct Block {
    role: usize,
    size: u32,
    cost: f64,
}

/// All blocks of all roles, cheapest first; ties go to the first role.
fn blocks(roles: &[RoleCost], expansion_percent: u32) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (role, RoleCost { min, max, cost }) in roles.iter().copied().enumerate() {
        let mut left = max.saturating_sub(min);
        if expansion_percent < GROWS && left > 0 {
            // Blocks of one pod each, which cost the same and so come in a row.
            blocks.push(Block { role, size: left, cost });
            continue;
        }
        let mut size = 1;
        while left > 0 {
            let taken = size.min(left);
            blocks.push(Block { role, size: taken, cost: cost * f64::from(taken) });
            left -= taken;
            size = u32::try_from(u64::from(size) * u64::from(expansion_percent) / 100).unwrap_or(u32::MAX);
        }
    }
    blocks.sort_by(|a, b| a.cost.total_cmp(&b.cost).then(a.role.cmp(&b.role)));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn priced(min: u32, max: u32, cost: f64) -> RoleCost {
        RoleCost { min, max, cost }
    }

    #[test]
    fn cheapest_blocks_come_first_within_bounds() {
        let roles = [priced(0, 4, 100.0), priced(1, 8, 60.0)];
        for (total, shares) in [(3, [1, 2]), (5, [2, 3]), (8, [4, 4]), (12, [4, 8])] {
            assert_eq!(allocate(total, &roles, 200), shares, "{total}");
        }
        let equal = [priced(1, 8, 100.0), priced(1, 8, 100.0)];
        assert_eq!(allocate(8, &equal, 100), [7, 1]);
        assert_eq!(allocate(8, &[], 200), [0; 0]);
        assert_eq!(allocate(0, &equal, 200), [1, 1], "minima hold");
        assert_eq!(allocate(99, &equal, 200), [8, 8], "and maxima");
    }

    /// kthena's table of restored replicas (`optimizer_test.go`).
    #[test]
    fn allocation_matches_kthenas_test_table() {
        let table: [(&[RoleCost], u32, &[u32]); 5] = [
            (&[priced(1, 4, 10.0), priced(1, 3, 5.0)], 5, &[2, 3]),
            (&[priced(2, 5, 10.0)], 0, &[2]),
            (&[priced(1, 3, 10.0)], 999, &[3]),
            (&[priced(1, 4, 10.0)], 4, &[4]),
            (&[priced(1, 3, 100.0), priced(2, 5, 60.0)], 8, &[3, 5]),
        ];
        for (roles, total, shares) in table {
            assert_eq!(allocate(total, roles, 100), shares, "{total} {roles:?}");
        }
    }

    proptest! {
        #[test]
        fn larger_total_shrinks_no_role(
            roles in prop::collection::vec((0u32..6, 0u32..20, 0u32..4), 1..5),
            expansion in prop::sample::select(vec![0u32, 50, 100, 150, 200, 1000]),
        ) {
            let roles: Vec<RoleCost> = roles.iter().map(|(min, more, cost)| priced(*min, min + more, f64::from(*cost))).collect();
            let (fewest, most) = roles.iter().fold((0, 0), |(low, high), role| (low + role.min, high + role.max));
            let mut before = allocate(fewest, &roles, expansion);
            for total in fewest..=most {
                let shares = allocate(total, &roles, expansion);
                prop_assert_eq!(shares.iter().sum::<u32>(), total);
                for ((share, role), before) in shares.iter().zip(&roles).zip(&before) {
                    prop_assert!(share >= before && *share <= role.max);
                }
                before = shares;
            }
        }
    }
}
