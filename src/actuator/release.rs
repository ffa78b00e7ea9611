//! Pods that wait at our gate and that no policy is for: found, and let go.

use std::collections::BTreeMap;

use serde_json::Value;

use super::gates;
use super::pods::PodObject;
use super::whose::is_of;
use crate::capacity::policy::Mode;
use crate::capacity::policy::spec::{API_VERSION, Document, KIND, Metadata, Spec};
use crate::capacity::resource::status::{PolicyStatus, StatusCondition};
use crate::capacity::resource::{GROUP, POLICIES, VERSION};
use crate::capacity::{Condition, Policy};
use crate::cluster::{Cluster, Collection, PatchType, Problem};
use crate::scaling::objects::PolicyObject;

/// Which pods are let go.
#[derive(Clone, Debug)]
pub struct Release {
    /// Where they are.
    pub namespace: String,
    /// Their labels, in the syntax of `kubectl -l`; empty: any.
    pub labels: String,
    /// Those as well that a CapacityPolicy is for.
    pub all: bool,
    /// Nothing is changed.
    pub dry_run: bool,
}

/// What became of a pod.
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
        let mut became = BTreeMap::new();
        for pod in &waiting {
            let released = match policies.iter().find(|(policy, _)| is_for(policy, pod)) {
                Some((policy, held)) => Released::Kept { policy: policy.name.clone(), held: held.clone() },
                None if self.dry_run => Released::Free,
                None => self.open(cluster, pod).await,
            };
            became.insert(pod.name().to_owned(), released);
        }
        Ok(became)
    }

    /// The policies of the namespace, each with why it stands still.
    async fn policies(&self, cluster: &Cluster) -> Result<Vec<(Policy, Vec<String>)>, Problem> {
        let policies = Collection::new(GROUP, VERSION, &self.namespace, POLICIES);
        match cluster.list::<PolicyObject>(&policies).await {
            Ok((found, _)) => Ok(found.iter().filter_map(policy).collect()),
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

fn policy(object: &PolicyObject) -> Option<(Policy, Vec<String>)> {
    let spec: Spec = serde_json::from_value(object.spec.clone()).ok()?;
    let metadata = Metadata { name: object.metadata.name.clone(), ..Metadata::default() };
    let document = Document { api_version: API_VERSION.to_owned(), kind: KIND.to_owned(), metadata, spec };
    Some((Policy::of(&document), held(&object.status)))
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

/// Whether a policy opens the gates of such pods. One that only recommends opens them for those that replace
/// others.
fn is_for(policy: &Policy, pod: &PodObject) -> bool {
    policy.mode == Mode::Apply
        && policy.roles.iter().any(|role| {
            pod.matches(&role.selector)
                && role.target.as_ref().is_none_or(|target| is_of(pod, target) != Some(false))
        })
}
