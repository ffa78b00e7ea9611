//! ClusterTopology: node labels of topology domains, from the smallest to the largest, and their check
//! against nodes.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::{Conditions, StatusCondition};

/// Specification of a ClusterTopology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct TopologyObjectSpec {
    /// Keys of node labels, from the smallest domains to the largest: each domain lies within one domain of
    /// the next.
    pub layers: Vec<String>,
}

/// Status of a ClusterTopology. Written by the leaders whose policies name it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyStatus {
    /// Generation of the object that this is about.
    pub observed_generation: Option<i64>,
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Findings for each layer.
    pub layers: Vec<LayerStatus>,
    /// Conditions, for example on the match of the nodes' labels with the layers.
    pub conditions: Vec<StatusCondition>,
}

/// Findings for a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["key"]))]
pub struct LayerStatus {
    /// Key of the label.
    pub key: String,
    /// Number of domains.
    pub domains: u32,
    /// Nodes without the label.
    pub missing: u32,
    /// Domains within more than one domain of a wider layer.
    pub broken: u32,
}

/// Name and labels of a node.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Labels of the node.
    pub labels: &'a BTreeMap<String, String>,
}

impl<'a> Placed<'a> {
    fn domain(&self, key: &str) -> Option<&'a str> {
        self.labels.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Most names in a message.
const SOME: usize = 3;

/// Status by the nodes' labels. `before` is the previous status, `now` the time in RFC 3339.
pub fn status(
    layers: &[String],
    nodes: &[Placed<'_>],
    generation: Option<i64>,
    before: &TopologyStatus,
    now: &str,
) -> TopologyStatus {
    let mut problems = Vec::new();
    let (mut is_missing, mut is_broken) = (false, false);
    let mut found = Vec::new();
    for (place, key) in layers.iter().enumerate() {
        let without: Vec<&str> =
            nodes.iter().filter(|node| node.domain(key).is_none()).map(|node| node.name).collect();
        if !without.is_empty() {
            is_missing = true;
            let (count, of) = (without.len(), nodes.len());
            problems.push(format!("{key} is absent on {count} of {of} nodes ({})", some(&without)));
        }
        let domains: BTreeSet<&str> = nodes.iter().filter_map(|node| node.domain(key)).collect();
        let mut apart: BTreeSet<&str> = BTreeSet::new();
        for wider in layers.iter().skip(place + 1) {
            let broken = spread(nodes, key, wider);
            if !broken.is_empty() {
                is_broken = true;
                let each: Vec<String> = broken
                    .iter()
                    .map(|(domain, within)| format!("{domain} in {}", within.join(" and ")))
                    .collect();
                let each: Vec<&str> = each.iter().map(String::as_str).collect();
                let is = if broken.len() == 1 { "domain of" } else { "domains of" };
                problems.push(format!(
                    "{} {is} {key} in more than one of {wider} ({})",
                    broken.len(),
                    some(&each)
                ));
            }
            apart.extend(broken.into_keys());
        }
        found.push(LayerStatus {
            key: key.clone(),
            domains: count(domains.len()),
            missing: count(without.len()),
            broken: count(apart.len()),
        });
    }
    let mut conditions = Conditions { before: &before.conditions, generation, now, all: Vec::new() };
    match (nodes.is_empty(), is_missing, is_broken) {
        (true, ..) => conditions.put("Valid", "Unknown", "NoNodes", "there are no nodes"),
        (_, _, true) => conditions.say("Valid", false, "ContainmentBroken", &problems.join("; ")),
        (_, true, _) => conditions.say("Valid", false, "LabelsMissing", &problems.join("; ")),
        _ => conditions.say(
            "Valid",
            true,
            "Valid",
            "every node has all labels, and domains are within each other",
        ),
    }
    TopologyStatus {
        observed_generation: generation,
        nodes: Some(count(nodes.len())),
        layers: found,
        conditions: conditions.all,
    }
}

/// Domains of a layer within several domains of a wider one.
fn spread<'a>(nodes: &[Placed<'a>], key: &str, wider: &str) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut within: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in nodes {
        if let (Some(domain), Some(around)) = (node.domain(key), node.domain(wider)) {
            within.entry(domain).or_default().insert(around);
        }
    }
    within.retain(|_, around| around.len() > 1);
    within.into_iter().map(|(domain, around)| (domain, around.into_iter().collect())).collect()
}

fn some(names: &[&str]) -> String {
    let more = names.len().saturating_sub(SOME);
    let listed = names.iter().take(SOME).copied().collect::<Vec<_>>().join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: &[(&str, &[(&str, &str)])], layers: &[&str]) -> TopologyStatus {
        let labels: Vec<BTreeMap<String, String>> = nodes
            .iter()
            .map(|(_, labels)| labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
            .collect();
        let placed: Vec<Placed<'_>> =
            nodes.iter().zip(&labels).map(|((name, _), labels)| Placed { name, labels }).collect();
        let layers: Vec<String> = layers.iter().map(|layer| (*layer).to_owned()).collect();
        status(&layers, &placed, Some(1), &TopologyStatus::default(), "t1")
    }

    const LAYERS: [&str; 3] = ["host", "rack", "zone"];

    fn counts(status: &TopologyStatus) -> Vec<(u32, u32, u32)> {
        status.layers.iter().map(|layer| (layer.domains, layer.missing, layer.broken)).collect()
    }

    #[test]
    fn domains_within_each_other_are_valid() {
        let status = of(
            &[
                ("n1", &[("host", "n1"), ("rack", "r1"), ("zone", "a")]),
                ("n2", &[("host", "n2"), ("rack", "r1"), ("zone", "a")]),
                ("n3", &[("host", "n3"), ("rack", "r2"), ("zone", "b")]),
            ],
            &LAYERS,
        );
        assert_eq!(counts(&status), [(3, 0, 0), (2, 0, 0), (2, 0, 0)]);
        assert_eq!((status.conditions[0].status.as_str(), status.nodes), ("True", Some(3)));
    }

    #[test]
    fn labels_that_are_absent_or_empty_are_counted() {
        let status = of(
            &[
                ("n1", &[("host", "n1"), ("rack", ""), ("zone", "a")]),
                ("n2", &[("host", "n2"), ("zone", "a")]),
                ("n3", &[("host", "n3"), ("rack", "r2"), ("zone", "b")]),
            ],
            &LAYERS,
        );
        assert_eq!(counts(&status), [(3, 0, 0), (1, 2, 0), (2, 0, 0)]);
        let valid = &status.conditions[0];
        assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "LabelsMissing"));
        assert_eq!(valid.message, "rack is absent on 2 of 3 nodes (n1, n2)");
    }

    #[test]
    fn containment_is_checked_across_absent_layers() {
        let status = of(
            &[
                ("n1", &[("host", "n1"), ("rack", "r1"), ("zone", "a")]),
                ("n2", &[("host", "n2"), ("rack", "r1"), ("zone", "b")]),
                ("n3", &[("host", "n3"), ("zone", "b")]),
                ("n4", &[("host", "n3"), ("zone", "a")]),
            ],
            &LAYERS,
        );
        // The host n3 has no rack, and is in two zones all the same.
        assert_eq!(counts(&status), [(3, 0, 1), (1, 2, 1), (2, 0, 0)]);
        let valid = &status.conditions[0];
        assert_eq!(valid.reason, "ContainmentBroken");
        assert!(
            valid.message.contains("1 domain of rack in more than one of zone (r1 in a and b)"),
            "{}",
            valid.message
        );
        assert!(valid.message.contains("rack is absent on 2 of 4 nodes (n3, n4)"), "{}", valid.message);
    }

    #[test]
    fn message_names_few_nodes_and_no_nodes_are_unknown() {
        let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
        let nodes: Vec<(&str, &[(&str, &str)])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
        let status = of(&nodes, &["zone"]);
        assert_eq!(status.conditions[0].message, "zone is absent on 9 of 9 nodes (n0, n1, n2 and 6 more)");
        let none = of(&[], &["zone"]);
        assert_eq!((none.conditions[0].status.as_str(), none.nodes), ("Unknown", Some(0)));
    }
}
