//! Pods that wait at our gate and that no policy is for: found, and let go.

use std::collections::BTreeMap;

use serde_json::Value;

use super::objects::{PolicyObject, policy_of};
use crate::actuator::gates;
use crate::actuator::pods::PodObject;
use crate::actuator::pools::{Pools, may_have};
use crate::capacity::policy::Mode;
use crate::capacity::resource::status::{PolicyStatus, StatusCondition};
use crate::capacity::resource::{GROUP, POLICIES, VERSION};
use crate::capacity::{Condition, Policy};
use crate::cluster::{Cluster, Collection, PatchType, Problem};

/// Which pods are let go.
#[derive(Clone, Debug)]
pub struct Release {
    /// Where they are.
    pub namespace: String,
    /// Their labels, in the syntax of `kubectl -l`; empty: any.
    pub labels: String,
    /// Includes pods that a CapacityPolicy is for.
    pub all: bool,
    /// Nothing is changed.
    pub dry_run: bool,
}

/// Outcome for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// It may be scheduled, or could be if this were no dry run.
    Free,
    /// It is left to a policy, which may stand still.
    Kept {
        /// The policy.
        policy: String,
        /// Why it stands still, as its status says; empty: it doesn't.
        held: Vec<String>,
    },
    /// It could not be changed.
    Failed(Problem),
}

impl Release {
    /// Lets pods go. Returns what became of each that waited, by name.
    ///
    /// # Errors
    /// When pods or policies can't be listed. Where the cluster has no policies, there are none.
    pub async fn run(&self, cluster: &Cluster) -> Result<BTreeMap<String, Released>, Problem> {
        let pods = Collection::new("", "v1", &self.namespace, "pods").with_labels(&self.labels);
        let (pods, _) = cluster.list::<PodObject>(&pods).await?;
        let waiting: Vec<PodObject> =
            pods.into_iter().filter(|pod| pod.is_alive() && pod.is_gated()).collect();
        let policies =
            if self.all || waiting.is_empty() { Vec::new() } else { self.policies(cluster).await? };
        // Where they may not be read, a pod of any pool may be a policy's.
        let pools = match policies.is_empty() {
            true => Pools::default(),
            false => Pools::list(cluster, &self.namespace).await.unwrap_or_default(),
        };
        let mut became = BTreeMap::new();
        for pod in &waiting {
            let released = match policies.iter().find(|known| known.is_for(pod, &pools)) {
                Some(Known { policy, held, .. }) => {
                    Released::Kept { policy: policy.name.clone(), held: held.clone() }
                }
                None if self.dry_run => Released::Free,
                None => self.open(cluster, pod).await,
            };
            became.insert(pod.name().to_owned(), released);
        }
        Ok(became)
    }

    /// The policies of the namespace.
    async fn policies(&self, cluster: &Cluster) -> Result<Vec<Known>, Problem> {
        let policies = Collection::new(GROUP, VERSION, &self.namespace, POLICIES);
        match cluster.list::<PolicyObject>(&policies).await {
            Ok((found, _)) => Ok(found.iter().map(Known::of).collect()),
            Err(Problem::NotFound(_)) => Ok(Vec::new()),
            Err(problem) => Err(problem),
        }
    }

    async fn open(&self, cluster: &Cluster, pod: &PodObject) -> Released {
        let Some(patch) = gates::opening(pod, None, false) else { return Released::Free };
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, pod.name());
        let patched: Result<Value, Problem> = cluster.patch(&path, PatchType::Json, &patch).await;
        match patched {
            Ok(_) => Released::Free,
            Err(problem) => Released::Failed(problem),
        }
    }
}

/// A policy of the namespace.
struct Known {
    policy: Policy,
    /// The pool that it names.
    pool: Option<String>,
    /// Why it stands still.
    held: Vec<String>,
}

impl Known {
    fn of(object: &PolicyObject) -> Self {
        let pool = object.spec.pointer("/poolRef/name").and_then(Value::as_str).map(str::to_owned);
        Self { policy: policy_of(object), pool, held: held(&object.status) }
    }

    /// Whether it opens the gate of this pod. One that only recommends opens those of pods that replace others.
    fn is_for(&self, pod: &PodObject, pools: &Pools) -> bool {
        let pools = pools.of(self.pool.as_deref());
        let mut roles = self.policy.roles.iter();
        self.policy.mode == Mode::Apply
            && roles.any(|role| may_have(&role.selector, role.target.as_ref(), &pools, pod))
    }
}

/// Why a policy stands still, as its status says.
fn held(status: &PolicyStatus) -> Vec<String> {
    let freezes = |name: &str| Condition::ALL.into_iter().any(|of| of.freezes() && format!("{of:?}") == name);
    let held = |condition: &StatusCondition| match (condition.of.as_str(), condition.status.as_str()) {
        ("Accepted", "False") => Some(condition.reason.clone()),
        (name, "True") if freezes(name) => Some(name.to_owned()),
        _ => None,
    };
    status.conditions.iter().filter_map(held).collect()
}
