//! Nodes, and the requirements of pods.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::affinity;
use super::condition::ObjectCondition;
use super::quantity::milli;
use crate::cluster::{Metadata, Watched};

/// Resource amounts by name, in thousandths.
pub(super) type Amounts = BTreeMap<String, i64>;

/// Requirements of a pod: resource requests, node selector, affinity and tolerations.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Needs {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    overhead: BTreeMap<String, Value>,
    node_selector: BTreeMap<String, String>,
    tolerations: Vec<Toleration>,
    /// Required and preferred node affinity.
    pub(super) affinity: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    resources: Resources,
    restart_policy: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

/// Node, as read from the API server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    pub(super) metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    allocatable: BTreeMap<String, Value>,
    conditions: Vec<ObjectCondition>,
}

impl Watched for NodeObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl NodeObject {
    /// Name of the node.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Labels of the node.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    /// Returns `true` if pods can start there now.
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|known| known.kind == "Ready" && known.status == "True")
    }

    /// Allocatable resources.
    pub(super) fn allocatable(&self) -> Amounts {
        amounts(&self.status.allocatable)
    }

    /// Returns `true` if it accepts pods with these requirements.
    pub(super) fn takes(&self, needs: &Needs) -> bool {
        let has = |(key, value): (&String, &String)| self.metadata.labels.get(key) == Some(value);
        let keeps_away = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        !self.spec.unschedulable
            && self.is_ready()
            && affinity::takes(needs.affinity.as_ref(), self.name(), self.labels())
            && needs.node_selector.iter().all(has)
            && self.spec.taints.iter().filter(keeps_away).all(|taint| needs.tolerate(taint))
    }
}

fn amounts(written: &BTreeMap<String, Value>) -> Amounts {
    let read = |value: &Value| match value {
        Value::String(text) => milli(text),
        Value::Number(number) => milli(&number.to_string()),
        _ => None,
    };
    written.iter().filter_map(|(name, value)| Some((name.clone(), read(value)?))).collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

impl Needs {
    /// Requirements without preferences.
    pub(super) fn without_wishes(self) -> Self {
        Self {
            containers: self.containers,
            init_containers: self.init_containers,
            overhead: self.overhead,
            ..Self::default()
        }
    }

    /// Effective resource requests: the sum of containers and sidecars, or the largest init container if
    /// more; and one pod.
    pub(super) fn requests(&self) -> Amounts {
        let mut all = amounts(&self.overhead);
        for container in &self.containers {
            add(&mut all, &amounts(&container.resources.requests));
        }
        for container in &self.init_containers {
            let own = amounts(&container.resources.requests);
            if container.restart_policy == "Always" {
                add(&mut all, &own);
                continue;
            }
            for (name, amount) in own {
                let most = all.entry(name).or_default();
                *most = (*most).max(amount);
            }
        }
        all.insert("pods".to_owned(), 1000);
        all.retain(|_, amount| *amount > 0);
        all
    }

    fn tolerate(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| {
            let is_effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
            let is_key = match toleration.operator.as_str() {
                "Exists" => toleration.key.is_empty() || toleration.key == taint.key,
                _ => toleration.key == taint.key && toleration.value == taint.value,
            };
            is_effect && is_key
        })
    }
}
