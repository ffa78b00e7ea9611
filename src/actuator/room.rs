//! Free capacity of nodes: how many more pods of each role fit into each domain.
//!
//! A node's free capacity is its allocatable resources less the requests of its pods. Whole steps are packed
//! onto the nodes of a domain, largest pods first, each where it leaves the least (best fit); so the slots of
//! a domain can be used together.

use std::collections::{BTreeMap, HashMap};

use super::node::{Amounts, Needs, NodeObject};
use crate::capacity::rollout::{Domain, Layers};

/// Most pods packed into one domain: more than any step has.
const MOST_SLOTS: u32 = 4096;

/// Free resources of nodes.
#[derive(Debug, Default)]
pub struct Room<'a> {
    nodes: Vec<(&'a NodeObject, Amounts)>,
}

impl<'a> Room<'a> {
    /// Free resources of these nodes, less the requests of pods, each with its node's name.
    pub fn of<'p>(
        nodes: impl IntoIterator<Item = &'a NodeObject>,
        pods: impl IntoIterator<Item = (&'p str, &'p Needs)>,
    ) -> Self {
        let mut left: Vec<(&NodeObject, Amounts)> =
            nodes.into_iter().map(|node| (node, node.allocatable())).collect();
        let place = |(place, (node, _)): (usize, &(&'a NodeObject, Amounts))| (node.name(), place);
        let places: HashMap<&'a str, usize> = left.iter().enumerate().map(place).collect();
        for (node, needs) in pods {
            let Some((_, left)) = places.get(node).and_then(|place| left.get_mut(*place)) else { continue };
            for (name, amount) in needs.requests() {
                if let Some(left) = left.get_mut(&name) {
                    *left = left.saturating_sub(amount);
                }
            }
        }
        Self { nodes: left }
    }

    /// Reserves capacity for pods sent to a domain (layer and name) that have no node yet.
    pub fn reserve<'p>(&mut self, pods: impl IntoIterator<Item = (&'p Needs, &'p str, &'p str)>) {
        for (needs, layer, domain) in pods {
            let is_there = |node: &NodeObject| node.labels().get(layer).is_some_and(|name| name == domain);
            let nodes = self
                .nodes
                .iter_mut()
                .filter(|(node, _)| is_there(node) && node.takes(needs))
                .map(|(_, left)| left);
            take(nodes, &needs.requests());
        }
    }

    /// Domains of these layers, with their slots for steps of these parts, one per role. A node without a
    /// layer's label is in none of its domains. A role with unknown requirements fits everywhere.
    pub fn layers(&self, keys: &[String], step: &[Part]) -> Layers {
        let step: Vec<Wanted> = step
            .iter()
            .map(|Part { pods, most, first, needs }| Wanted {
                pods: *pods,
                most: *most,
                first: *first,
                requests: needs.as_ref().map(Needs::requests),
                takes: self
                    .nodes
                    .iter()
                    .map(|(node, _)| needs.as_ref().is_some_and(|needs| node.takes(needs)))
                    .collect(),
            })
            .collect();
        let layer = |key: &String| {
            let mut domains: BTreeMap<&str, Vec<(usize, Amounts)>> = BTreeMap::new();
            for (place, (node, left)) in self.nodes.iter().enumerate() {
                if let Some(value) = node.labels().get(key) {
                    domains.entry(value).or_default().push((place, left.clone()));
                }
            }
            let domain = |(name, nodes): (&str, Vec<(usize, Amounts)>)| {
                let (slots, spare) = pack(nodes, &step);
                Domain { name: name.to_owned(), slots, spare }
            };
            (key.clone(), domains.into_iter().map(domain).collect())
        };
        keys.iter().map(layer).collect()
    }
}

/// Part of a step: pods of one role.
#[derive(Clone, Debug)]
pub struct Part {
    /// Pods of the role in a step.
    pub pods: u32,
    /// Limit of useful slots: the next step needs no more ([`needed`](super::need::needed)).
    pub most: u32,
    /// Pods to place before any step, together with those of the other roles.
    pub first: u32,
    /// Requirements of each pod; `None` if unknown.
    pub needs: Option<Needs>,
}

/// Part of a step: pods of one role, and the nodes that accept them.
struct Wanted {
    pods: u32,
    most: u32,
    first: u32,
    /// Resource requests of each pod; `None` if unknown.
    requests: Option<Amounts>,
    /// Nodes that accept them, by index.
    takes: Vec<bool>,
}

/// Pods of each role that fit, step after step, as far as needed; and the further pods of each role alone.
fn pack(mut nodes: Vec<(usize, Amounts)>, step: &[Wanted]) -> (Vec<u32>, Vec<u32>) {
    let mut slots = vec![0u32; step.len()];
    // The largest pods first, by what is scarcest: devices before CPU and memory.
    let mut order: Vec<(usize, &Wanted, &Amounts)> = step
        .iter()
        .enumerate()
        .filter_map(|(place, wanted)| Some((place, wanted, wanted.requests.as_ref()?)))
        .collect();
    order.sort_by_key(|(_, _, requests)| {
        let of = |name: &str| requests.get(name).copied().unwrap_or(0);
        let devices = requests.iter().filter(|(name, _)| name.contains('/'));
        let devices = devices.fold(0i64, |sum, (_, amount)| sum.saturating_add(*amount));
        std::cmp::Reverse((devices, of("memory"), of("cpu")))
    });
    let place = |nodes: &mut [(usize, Amounts)], slots: &mut [u32], pods: fn(&Wanted) -> u32| {
        let mut is_whole = true;
        for (place, wanted, requests) in &order {
            for _ in 0..pods(wanted) {
                let takes = |node: &usize| wanted.takes.get(*node).copied().unwrap_or(false);
                let those = nodes.iter_mut().filter(|(node, _)| takes(node)).map(|(_, left)| left);
                if take(those, requests) {
                    slots[*place] += 1;
                } else {
                    is_whole = false;
                }
            }
        }
        is_whole
    };
    if order.iter().any(|(_, wanted, _)| wanted.first > 0) {
        let before = (nodes.clone(), slots.clone());
        if !place(&mut nodes, &mut slots, |wanted| wanted.first) {
            // A step may fit where they don't.
            (nodes, slots) = before;
        }
    }
    let mut is_whole = true;
    let is_enough = |slots: &[u32]| {
        order.iter().all(|(place, wanted, _)| {
            wanted.pods == 0 || slots.get(*place).is_none_or(|slots| *slots >= wanted.most)
        })
    };
    while is_whole && !is_enough(&slots) && slots.iter().sum::<u32>() < MOST_SLOTS {
        is_whole = place(&mut nodes, &mut slots, |wanted| wanted.pods);
    }
    for (slots, wanted) in slots.iter_mut().zip(step) {
        if wanted.requests.is_none() {
            *slots = MOST_SLOTS;
        }
    }
    let spare = |wanted: &Wanted| {
        let Some(requests) = wanted.requests.as_ref().filter(|_| wanted.pods > 0) else { return 0 };
        let takes = |node: &usize| wanted.takes.get(*node).copied().unwrap_or(false);
        let fit = nodes.iter().filter(|(node, _)| takes(node)).map(|(_, left)| fits(left, requests));
        fit.fold(0, u32::saturating_add)
    };
    let spare = step.iter().map(spare).collect();
    (slots, spare)
}

/// Pods with these requests that fit into free resources; one without requests fits once.
fn fits(left: &Amounts, requests: &Amounts) -> u32 {
    let of =
        |(name, amount): (&String, &i64)| left.get(name).copied().unwrap_or(0).max(0).checked_div(*amount);
    let least = requests.iter().filter_map(of).min().unwrap_or(1);
    u32::try_from(least).unwrap_or(u32::MAX)
}

/// Places a pod onto the node that it leaves the least on. Returns `false` if it fits on none.
fn take<'n>(nodes: impl Iterator<Item = &'n mut Amounts>, requests: &Amounts) -> bool {
    let left_after = |left: &Amounts| {
        let mut least = i64::MAX;
        for (name, amount) in requests {
            let rest = left.get(name).copied().unwrap_or(0).checked_sub(*amount).filter(|rest| *rest >= 0)?;
            // Counted in pods with these requests.
            least = least.min(rest / amount);
        }
        Some(least)
    };
    let best = nodes.filter_map(|left| Some((left_after(left)?, left))).min_by_key(|(rest, _)| *rest);
    let Some((_, left)) = best else { return false };
    for (name, amount) in requests {
        if let Some(left) = left.get_mut(name) {
            *left -= amount;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, rack: &str, gpus: u32, more: &Value) -> NodeObject {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "rack": rack}},
            "spec": {},
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            node["spec"][key] = value.clone();
        }
        serde_json::from_value(node).unwrap()
    }

    fn needs(gpus: u32, more: &Value) -> Needs {
        let mut needs = json!({"containers": [
            {"resources": {"requests": {"nvidia.com/gpu": gpus.to_string(), "cpu": "4", "memory": "32Gi"}}},
            {"resources": {}},
        ]});
        for (key, value) in more.as_object().into_iter().flatten() {
            needs[key] = value.clone();
        }
        serde_json::from_value(needs).unwrap()
    }

    fn part(pods: u32, needs: Option<&Needs>) -> Part {
        Part { pods, most: MOST_SLOTS, first: 0, needs: needs.cloned() }
    }

    #[test]
    fn packing_stops_at_the_size_of_the_step() {
        let nodes = [node("a", "r1", 8, &json!({}))];
        let needs = needs(1, &json!({}));
        for (most, expected) in [(3, 4), (4, 4), (5, 6), (100, 8)] {
            let step = [Part { most, ..part(2, Some(&needs)) }];
            let layers = Room::of(&nodes, []).layers(&["rack".to_owned()], &step);
            assert_eq!(layers["rack"][0].slots, [expected], "{most}");
            assert_eq!(layers["rack"][0].spare, [8 - expected], "{most}");
        }
    }

    #[test]
    fn prioritized_pods_need_no_whole_step() {
        let nodes = [node("a", "r1", 8, &json!({})), node("b", "r2", 7, &json!({}))];
        let needs = needs(1, &json!({}));
        let part = |pods, first| Part { first, most: 12, ..part(pods, Some(&needs)) };
        let layers = Room::of(&nodes, []).layers(&["rack".to_owned()], &[part(4, 8), part(2, 0)]);
        let found: Vec<_> = layers["rack"].iter().map(|domain| domain.slots.clone()).collect();
        // The other has no room for them, and for a step.
        assert_eq!(found, [vec![8, 0], vec![5, 2]]);
    }

    fn slots(room: &Room<'_>, step: &[(u32, &Needs)]) -> Vec<(String, Vec<u32>)> {
        let step: Vec<Part> = step.iter().map(|(pods, needs)| part(*pods, Some(needs))).collect();
        let layers = room.layers(&["rack".to_owned()], &step);
        layers["rack"].iter().map(|domain| (domain.name.clone(), domain.slots.clone())).collect()
    }

    #[test]
    fn steps_are_packed_onto_the_nodes_of_a_domain() {
        let nodes = [
            node("a", "r1", 8, &json!({})),
            node("b", "r1", 8, &json!({})),
            node("c", "r2", 8, &json!({})),
            node("d", "", 8, &json!({})),
        ];
        let (decode, prefill) = (needs(2, &json!({})), needs(4, &json!({})));
        // Six of the GPUs of c are taken.
        let pods = [("c", &decode), ("c", &prefill), ("elsewhere", &prefill)];
        let room = Room::of(&nodes, pods);
        // A step is 4 decode and 2 prefill: 16 GPUs.
        let found = slots(&room, &[(4, &decode), (2, &prefill)]);
        let expected = [("", vec![0, 2]), ("r1", vec![4, 2]), ("r2", vec![1, 0])];
        assert_eq!(found, expected.map(|(name, slots)| (name.to_owned(), slots)));
        assert!(slots(&room, &[(0, &decode)]).iter().all(|(_, slots)| slots == &[0]));
    }

    fn affinity(rack: &str) -> Value {
        let expression = json!({"key": "rack", "operator": "In", "values": [rack]});
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}],
        }}})
    }

    #[test]
    fn pods_bound_for_a_domain_take_room_there() {
        let nodes = [node("a", "r1", 8, &json!({})), node("b", "r2", 8, &json!({}))];
        let needs = needs(2, &json!({}));
        let mut room = Room::of(&nodes, []);
        room.reserve([(&needs, "rack", "r1"), (&needs, "rack", "r1"), (&needs, "rack", "r3")]);
        let found = slots(&room, &[(1, &needs)]);
        assert_eq!(found, [("r1", vec![2]), ("r2", vec![4])].map(|(name, slots)| (name.to_owned(), slots)));
        // More than there is room for: another scheduler's mistake.
        room.reserve([(&needs, "rack", "r1"); 9]);
        assert_eq!(slots(&room, &[(1, &needs)])[0].1, [0]);
    }

    #[test]
    fn role_with_unknown_requests_has_room_everywhere() {
        let nodes = [node("a", "r1", 8, &json!({}))];
        let needs = needs(2, &json!({}));
        let layers =
            Room::of(&nodes, []).layers(&["rack".to_owned()], &[part(3, Some(&needs)), part(2, None)]);
        assert_eq!(layers["rack"][0].slots, [4, MOST_SLOTS]);
    }

    #[test]
    fn tainted_or_unschedulable_nodes_have_no_room() {
        let taint = json!({"taints": [{"key": "gpu", "value": "h100", "effect": "NoSchedule"}]});
        let soft = json!({"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]});
        for (spec, more, expected) in [
            (json!({}), json!({}), 4),
            (json!({"unschedulable": true}), json!({}), 0),
            (soft, json!({}), 4),
            (taint.clone(), json!({}), 0),
            (taint.clone(), json!({"tolerations": [{"key": "gpu", "value": "h100"}]}), 4),
            (taint.clone(), json!({"tolerations": [{"key": "gpu", "value": "a100"}]}), 0),
            (
                taint.clone(),
                json!({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}),
                0,
            ),
            (taint, json!({"tolerations": [{"operator": "Exists"}]}), 4),
            (json!({}), json!({"nodeSelector": {"rack": "r1"}}), 4),
            (json!({}), json!({"nodeSelector": {"rack": "r2"}}), 0),
            (json!({}), json!({"affinity": affinity("r1")}), 4),
            (json!({}), json!({"affinity": affinity("r2")}), 0),
        ] {
            let nodes = [node("a", "r1", 8, &spec)];
            let needs = needs(2, &more);
            let found = slots(&Room::of(&nodes, []), &[(1, &needs)]);
            assert_eq!(found[0].1, [expected], "{needs:?}");
        }
    }

    #[test]
    fn larger_init_container_requests_count() {
        let needs = needs(
            1,
            &json!({
                "initContainers": [
                    {"resources": {"requests": {"cpu": "6", "memory": "1Gi"}}},
                    {"resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Always"},
                ],
                "overhead": {"memory": "1Gi"},
            }),
        );
        let requests = needs.requests();
        assert_eq!((requests["cpu"], requests["memory"]), (7_000, 33 * (1 << 30) * 1000));
    }
}
