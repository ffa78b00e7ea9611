//! Requests to the API server before a tick, in a task of their own: slow responses for one policy delay no
//! other.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::cached_pods::Objects;
use super::kinds::Kinds;
use super::state::Actuator;
use super::target::Target;
use crate::capacity::Policy;
use crate::capacity::policy::{Mode, Role, TargetRef};
use crate::capacity::rollout::Rollout;
use crate::cluster::{Cluster, Collection, Problem};

/// Timeout of all requests of a fetch together.
const LIMIT: Duration = Duration::from_secs(10);

/// Reasons of events about pods for which nodes are added, by the cluster autoscaler and by Karpenter.
const ADDING: [&str; 2] = ["TriggeredScaleUp", "Nominated"];

/// Requests of one fetch for a policy.
#[derive(Debug)]
pub struct FetchRequest {
    cluster: Cluster,
    namespace: String,
    kinds: Kinds,
    /// Targets to read, by role, and whether with their spec.
    targets: Vec<Option<(TargetRef, bool)>>,
    /// `true` if access to nodes is checked.
    asks_nodes: bool,
    /// Names of unschedulable pods, and the greatest age of an event about them.
    unschedulable: (BTreeSet<String>, Duration),
    fetched: Fetched,
}

/// Results of a fetch.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Label selector of the pool of these pods.
    pub(super) pool: Option<String>,
    /// Pods of each role. `None`: unknown, or too old.
    pub(super) objects: Option<Objects>,
    /// Problems with the pods, as sentences.
    pub(super) problems: Vec<String>,
    /// Targets by role, up to the first that can't be read.
    pub(super) targets: Vec<Result<Option<Body>, Problem>>,
    /// `true` if RBAC allows nodes and pods of all namespaces. `None`: not checked.
    pub(super) may_see_nodes: Option<bool>,
    /// `true` if an autoscaler adds nodes for unschedulable pods. `None`: not checked, as there are no such
    /// pods.
    pub(super) adds_nodes: Option<Result<bool, Problem>>,
}

/// A target, with its object if more than its replicas is needed.
pub(super) type Body = (Target, Option<Result<Value, Problem>>);

#[derive(Deserialize, Clone, Default)]
#[serde(rename_all = "camelCase", default)]
struct EventObject {
    reason: String,
    involved_object: Involved,
    last_timestamp: Option<String>,
    event_time: Option<String>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default)]
struct Involved {
    name: String,
}

/// Returns `true` if the spec of a target is needed: for the pace of updates, and for the requests of its
/// pods while none is at its gate.
fn is_read_whole(policy: &Policy, has_waiting: bool) -> bool {
    let is_placed = |rollout: &Rollout| rollout.topology.is_some() && !has_waiting;
    policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some() || is_placed(rollout))
}

impl Actuator {
    /// Requests of a fetch for a policy, from its pods as they are known now.
    pub fn fetch_request(&mut self, policy: &Policy) -> FetchRequest {
        self.begin();
        // Read first, so that a change in between is detected at the end.
        let pool = self.pool.borrow().clone();
        let objects = self.pods_of(policy);
        // Cached with the pods: visiting each of them at every tick takes long.
        let cached = self.cached_pods.get(&policy.name).filter(|_| objects.is_some());
        let has_gated =
            |place: usize| cached.is_some_and(|cached| cached.has_gated.get(place) == Some(&true));
        let target = |(place, role): (usize, &Role)| {
            let reference = role.target.clone().filter(|_| policy.mode == Mode::Apply)?;
            Some((reference, is_read_whole(policy, has_gated(place))))
        };
        let targets = policy.roles.iter().enumerate().map(target).collect();
        let rollout = policy.rollout.as_ref();
        let unschedulable = cached.map(|cached| cached.unschedulable.clone()).unwrap_or_default();
        let is_placed = rollout.is_some_and(|rollout| rollout.topology.is_some());
        FetchRequest {
            cluster: self.watched.within(LIMIT),
            namespace: self.namespace.clone(),
            kinds: self.kinds.clone(),
            targets,
            asks_nodes: is_placed && (self.nodes.is_none() || self.nodes_lack().is_some()),
            unschedulable: (unschedulable, rollout.map_or(Duration::ZERO, |of| of.provisioning_timeout)),
            fetched: Fetched {
                pool,
                objects,
                problems: std::mem::take(&mut self.problems),
                ..Fetched::default()
            },
        }
    }
}

impl FetchRequest {
    /// Sends the requests. Ends within a time limit.
    pub async fn send(mut self) -> Fetched {
        if self.fetched.objects.is_none() {
            return self.fetched;
        }
        for wanted in std::mem::take(&mut self.targets) {
            let read = match wanted {
                Some((reference, is_whole)) => self.target(&reference, is_whole).await.map(Some),
                None => Ok(None),
            };
            let is_over = read.is_err();
            self.fetched.targets.push(read);
            if is_over {
                return self.fetched;
            }
        }
        if self.asks_nodes {
            self.fetched.may_see_nodes = Some(self.may_see_nodes().await);
        }
        if !self.unschedulable.0.is_empty() {
            self.fetched.adds_nodes = Some(self.adds_nodes().await);
        }
        self.fetched
    }

    async fn target(&mut self, reference: &TargetRef, is_whole: bool) -> Result<Body, Problem> {
        let kind = self.kinds.of(&self.cluster, reference).await?;
        let target = Target::read(&self.cluster, &kind, &self.namespace, reference).await?;
        let body = if is_whole { Some(self.cluster.get(&target.path).await) } else { None };
        Ok((target, body))
    }

    /// Returns `true` if RBAC allows nodes and pods of all namespaces. Otherwise the scheduler places pods.
    async fn may_see_nodes(&self) -> bool {
        for path in ["/api/v1/nodes?limit=1", "/api/v1/pods?limit=1"] {
            let seen: Result<IgnoredAny, Problem> = self.cluster.get(path).await;
            if matches!(seen, Err(Problem::Denied(_))) {
                return false;
            }
        }
        true
    }

    /// Returns `true` if an autoscaler adds nodes for the unschedulable pods.
    async fn adds_nodes(&self) -> Result<bool, Problem> {
        let (names, within) = &self.unschedulable;
        let is_young = |event: &EventObject| {
            let at = event.last_timestamp.as_ref().or(event.event_time.as_ref());
            let at = at.and_then(|at| at.parse::<Timestamp>().ok());
            at.is_some_and(|at| Timestamp::now().duration_since(at).unsigned_abs() <= *within)
        };
        let adds = |event: &EventObject| {
            ADDING.contains(&event.reason.as_str())
                && names.contains(&event.involved_object.name)
                && is_young(event)
        };
        // A namespace may have thousands of events.
        for reason in ADDING {
            let events = Collection::new("", "v1", &self.namespace, "events").with_field("reason", reason);
            let (events, _) = self.cluster.list::<EventObject>(&events).await?;
            if events.iter().any(adds) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
