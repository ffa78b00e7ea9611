//! Leftovers of deleted policies: scheduling gates, low deletion costs of pods, and paused updates.

use std::collections::BTreeMap;

use serde_json::Value;

use super::objects::{PolicyObject, policy_of};
use crate::actuator::held_back::{HeldBack, held_back};
use crate::actuator::pods::PodObject;
use crate::actuator::pools::{Pools, may_have};
use crate::actuator::{gates, is_marked, marking};
use crate::capacity::policy::Mode;
use crate::capacity::resource::status::{PolicyStatus, StatusCondition};
use crate::capacity::resource::{GROUP, POLICIES, VERSION};
use crate::capacity::{Condition, Policy};
use crate::cluster::{Cluster, Collection, PatchType, Problem};

/// Selection of the pods and workloads that are released.
#[derive(Clone, Debug)]
pub struct Release {
    /// Namespace of the pods.
    pub namespace: String,
    /// Their labels, in the syntax of `kubectl -l`; empty: any.
    pub labels: String,
    /// `true` if pods and workloads of existing CapacityPolicies are included.
    pub all: bool,
    /// `true` if nothing is changed.
    pub dry_run: bool,
}

/// Outcome for a pod or a workload; in a dry run the one that it would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The scheduling gate of a pod was removed.
    Free,
    /// The deletion cost of a pod was removed.
    Unmarked,
    /// The update of a workload was resumed.
    Resumed,
    /// Left to a policy, which may be blocked.
    Kept {
        /// The policy.
        policy: String,
        /// Conditions that block it, from its status; empty: it acts.
        held: Vec<String>,
    },
    /// The API server did not change it.
    Failed(Problem),
}

impl Release {
    /// Removes gates and deletion costs and resumes updates. Returns the outcomes, by a pod's name or a workload's
    /// `Kind/name`, and the errors of kinds of workloads that can't be listed.
    ///
    /// # Errors
    /// `Problem` if pods or policies can't be listed. A cluster without the policies' CRD has none.
    pub async fn run(
        &self,
        cluster: &Cluster,
    ) -> Result<(BTreeMap<String, Released>, Vec<Problem>), Problem> {
        let pods = Collection::new("", "v1", &self.namespace, "pods").with_labels(&self.labels);
        let (pods, _) = cluster.list::<PodObject>(&pods).await?;
        let is_left = |pod: &PodObject| pod.is_alive() && (pod.is_gated() || is_marked(pod));
        let left: Vec<PodObject> = pods.into_iter().filter(is_left).collect();
        let (held, unlisted) = held_back(cluster, &self.namespace, &self.labels).await;
        let is_clean = left.is_empty() && held.is_empty();
        let policies = if self.all || is_clean { Vec::new() } else { self.policies(cluster).await? };
        // If RBAC forbids reading pools, a pod of any pool may belong to a policy.
        let pools = match policies.is_empty() {
            true => Pools::default(),
            false => Pools::list(cluster, &self.namespace).await.unwrap_or_default(),
        };
        let mut became = BTreeMap::new();
        for pod in &left {
            let released = match policies.iter().find(|known| known.is_for(pod, &pools)) {
                Some(known) => known.keeps(),
                None => self.let_go(cluster, pod).await,
            };
            became.insert(pod.name().to_owned(), released);
        }
        for workload in &held {
            let released = match policies.iter().find(|known| known.updates(workload)) {
                Some(known) => known.keeps(),
                None => self.done(cluster, &workload.path, &workload.patch, Released::Resumed).await,
            };
            became.insert(format!("{}/{}", workload.target.kind, workload.target.name), released);
        }
        Ok((became, unlisted))
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

    async fn let_go(&self, cluster: &Cluster, pod: &PodObject) -> Released {
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, pod.name());
        if let Some(patch) = gates::opening(pod, None, false) {
            return self.done(cluster, &path, &(PatchType::Json, patch), Released::Free).await;
        }
        let Some(patch) = marking(pod, false) else { return Released::Unmarked };
        self.done(cluster, &path, &(PatchType::Merge, patch), Released::Unmarked).await
    }

    async fn done(
        &self,
        cluster: &Cluster,
        path: &str,
        (of, patch): &(PatchType, Value),
        came_to: Released,
    ) -> Released {
        if self.dry_run {
            return came_to;
        }
        let patched: Result<Value, Problem> = cluster.patch(path, *of, patch).await;
        patched.map_or_else(Released::Failed, |_| came_to)
    }
}

/// A policy of the namespace.
struct Known {
    policy: Policy,
    /// The pool that it names.
    pool: Option<String>,
    /// Conditions that block it, from its status.
    held: Vec<String>,
}

impl Known {
    fn of(object: &PolicyObject) -> Self {
        let pool = object.spec.pointer("/poolRef/name").and_then(Value::as_str).map(str::to_owned);
        Self { policy: policy_of(object), pool, held: held(&object.status) }
    }

    fn keeps(&self) -> Released {
        Released::Kept { policy: self.policy.name.clone(), held: self.held.clone() }
    }

    /// Returns `true` if it decides how far the update of a workload goes.
    fn updates(&self, workload: &HeldBack) -> bool {
        let targets = self.policy.roles.iter().filter_map(|role| role.target.as_ref());
        self.policy.holds_updates() && targets.into_iter().any(|target| target.is_same(&workload.target))
    }

    /// Returns `true` if it opens the gate of this pod. One that only recommends opens those of pods that
    /// replace others.
    fn is_for(&self, pod: &PodObject, pools: &Pools) -> bool {
        let pools = pools.of(self.pool.as_deref());
        let mut roles = self.policy.roles.iter();
        self.policy.mode == Mode::Apply
            && roles.any(|role| may_have(&role.selector, role.target.as_ref(), &pools, pod))
    }
}

/// Conditions that keep a policy from acting, from its status.
fn held(status: &PolicyStatus) -> Vec<String> {
    let freezes = |name: &str| Condition::ALL.into_iter().any(|of| of.freezes() && format!("{of:?}") == name);
    let held = |condition: &StatusCondition| match (condition.of.as_str(), condition.status.as_str()) {
        ("Accepted", "False") => Some(condition.reason.clone()),
        (name, "True") if freezes(name) => Some(name.to_owned()),
        _ => None,
    };
    status.conditions.iter().filter_map(held).collect()
}
