//! Places a step into the tightest domain that has capacity for all of its pods.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Topology;

/// Domains of each layer, by the layer's key.
pub type Layers = BTreeMap<String, Vec<Domain>>;

/// A topology domain: nodes with the same value of a layer's label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Value of the label.
    pub name: String,
    /// Further pods of each role that its nodes have capacity for, in the policy's order.
    pub slots: Vec<u32>,
    /// Further pods of each role alone beside those, as slots are counted only as far as a step needs them.
    /// Empty: none.
    pub spare: Vec<u32>,
}

/// Domain of a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Placement {
    /// Key of the layer.
    pub layer: String,
    /// Name of the domain.
    pub domain: String,
}

/// Pods of a step that don't fit into a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortfall {
    /// Name of the domain.
    pub domain: String,
    /// Pods of each role, in the policy's order.
    pub missing: Vec<u32>,
}

/// Result of the search for a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A domain.
    In(Placement),
    /// No domain is large enough, and none is required.
    Anywhere,
    /// No domain is large enough; the shortfall of each.
    Nowhere(Vec<Shortfall>),
    /// Capacity of domains is unknown; the scheduler places pods.
    Unknown,
}

/// Finds the domain for these pods of each role. `last` is the domain of the step so far, preferred if it has
/// capacity for the rest.
pub(super) fn place(
    need: &[u32],
    topology: &Topology,
    layers: Option<&Layers>,
    last: Option<&Placement>,
) -> Place {
    let Some(layers) = layers else { return Place::Unknown };
    let domains = |key: &String| layers.get(key).map(Vec::as_slice).unwrap_or_default();
    if let Some(last) = last {
        let is_last = |domain: &&Domain| domain.name == last.domain;
        if domains(&last.layer).iter().find(is_last).is_some_and(|domain| left(domain, need).is_some()) {
            return Place::In(last.clone());
        }
    }
    let wider = topology.layers.iter().skip(topology.layer);
    for layer in wider.take(if topology.is_required { 1 } else { usize::MAX }) {
        let tightest =
            domains(layer).iter().filter_map(|domain| Some((left(domain, need)?, &domain.name))).min();
        if let Some((_, domain)) = tightest {
            return Place::In(Placement { layer: layer.clone(), domain: domain.clone() });
        }
    }
    if !topology.is_required {
        return Place::Anywhere;
    }
    let layer = topology.layers.get(topology.layer);
    let lacking = layer.map(domains).unwrap_or_default().iter().map(|domain| {
        let missing = need.iter().zip(slots(domain)).map(|(need, slots)| need.saturating_sub(slots));
        Shortfall { domain: domain.name.clone(), missing: missing.take(need.len()).collect() }
    });
    Place::Nowhere(lacking.collect())
}

/// Remaining capacity of a domain with these pods; `None` if they don't fit.
fn left(domain: &Domain, need: &[u32]) -> Option<u64> {
    let mut left = 0u64;
    let spare = domain.spare.iter().copied().chain(std::iter::repeat(0));
    for ((need, slots), spare) in need.iter().zip(slots(domain)).zip(spare) {
        // Capacity for roles without pods in the step is ignored.
        if *need > 0 {
            left += u64::from(slots.checked_sub(*need)?) + u64::from(spare);
        }
    }
    Some(left)
}

fn slots(domain: &Domain) -> impl Iterator<Item = u32> {
    domain.slots.iter().copied().chain(std::iter::repeat(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(is_required: bool) -> Topology {
        let layers = ["host", "rack", "zone"].map(str::to_owned).to_vec();
        Topology { layers, layer: 1, is_required }
    }

    fn layers(racks: &[(&str, [u32; 2])], zones: &[(&str, [u32; 2])]) -> Layers {
        let all = |domains: &[(&str, [u32; 2])]| {
            let domain = |(name, slots): &(&str, [u32; 2])| Domain {
                name: (*name).to_owned(),
                slots: slots.to_vec(),
                ..Domain::default()
            };
            domains.iter().map(domain).collect()
        };
        Layers::from([("rack".to_owned(), all(racks)), ("zone".to_owned(), all(zones))])
    }

    fn at(layer: &str, domain: &str) -> Placement {
        Placement { layer: layer.to_owned(), domain: domain.to_owned() }
    }

    #[test]
    fn step_goes_to_the_fitting_domain_with_least_to_spare() {
        let mut layers = layers(&[("a", [4, 2]), ("b", [4, 2]), ("c", [4, 0])], &[]);
        let spare = [vec![9, 1], vec![2, 5], vec![0, 0]];
        layers.get_mut("rack").unwrap().iter_mut().zip(spare).for_each(|(rack, spare)| rack.spare = spare);
        for (need, expected) in [([4, 2], "b"), ([0, 2], "a"), ([4, 0], "c")] {
            let found = place(&need, &topology(true), Some(&layers), None);
            assert_eq!(found, Place::In(at("rack", expected)), "{need:?}");
        }
    }

    #[test]
    fn the_tightest_domain_takes_the_whole_step() {
        let known = layers(&[("r1", [9, 9]), ("r2", [4, 2]), ("r3", [4, 3]), ("r0", [3, 9])], &[]);
        for (need, last, expected) in [
            ([4, 2], None, "r2"),
            ([4, 3], None, "r3"),
            // By name where two fit as well.
            ([0, 9], None, "r0"),
            // The rest of a step goes where the first of it went, if it fits.
            ([2, 1], Some("r1"), "r1"),
            ([4, 3], Some("r2"), "r3"),
        ] {
            let last = last.map(|domain| at("rack", domain));
            let found = place(&need, &topology(true), Some(&known), last.as_ref());
            assert_eq!(found, Place::In(at("rack", expected)), "{need:?}");
        }
        assert_eq!(place(&[4, 2], &topology(true), None, None), Place::Unknown);
    }

    #[test]
    fn wider_layers_need_a_preferred_constraint() {
        let known = layers(&[("r1", [4, 1]), ("r2", [1, 0])], &[("z1", [5, 1]), ("z2", [8, 8])]);
        let missing = |domain: &str, missing: [u32; 2]| Shortfall {
            domain: domain.to_owned(),
            missing: missing.to_vec(),
        };
        let need = [4, 2];
        let nowhere = Place::Nowhere(vec![missing("r1", [0, 1]), missing("r2", [3, 2])]);
        assert_eq!(place(&need, &topology(true), Some(&known), None), nowhere);
        assert_eq!(place(&need, &topology(false), Some(&known), None), Place::In(at("zone", "z2")));
        assert_eq!(place(&[9, 9], &topology(false), Some(&known), None), Place::Anywhere);
        // No node has the label.
        assert_eq!(place(&need, &topology(true), Some(&Layers::new()), None), Place::Nowhere(vec![]));
    }
}
