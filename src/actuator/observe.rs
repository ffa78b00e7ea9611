//! To look: how many replicas there are, which pods, and what room nodes have.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::hands::{Hands, OLDEST, OLDEST_INTERVALS, selector};
use super::pods::{PodObject, newest};
use super::room::{Needs, Room};
use super::target::Target;
use crate::capacity::policy::{Mode, TargetRef};
use crate::capacity::rollout::{Layers, Pace, Rollout};
use crate::capacity::{PodState, Policy};
use crate::cluster::{Collection, Problem};

/// Reasons of events about pods for which nodes are being added: of the cluster autoscaler, and of
/// Karpenter.
const ADDING: [&str; 2] = ["TriggeredScaleUp", "Nominated"];

/// What there is of a policy's roles.
#[derive(Debug, Default)]
pub struct Observed {
    /// How many replicas each role is to have, as its target says; where nothing is to be written, how many
    /// pods there are.
    pub replicas: Vec<u32>,
    /// Its pods.
    pub pods: Vec<ObservedPod>,
    /// What room domains have; `None`: not known.
    pub domains: Option<Layers>,
    /// Whether nodes are being added for pods that none takes.
    pub provisioning: bool,
    pub(super) targets: Vec<Option<Target>>,
    /// Whether nobody else writes a role's replicas.
    pub(super) may_write: Vec<bool>,
    /// The objects of the pods, by role.
    pub(super) objects: Vec<Vec<PodObject>>,
}

/// A pod, whether it serves or not.
#[derive(Clone, Debug)]
pub struct ObservedPod {
    /// Its role, by place.
    pub role: usize,
    /// Its name.
    pub name: String,
    /// Whether it says that it is ready.
    pub is_ready: bool,
    /// Where it is on its way.
    pub state: PodState,
}

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

impl Hands {
    /// Looks at what a policy is about. `None`: not enough is known, or it is too old; nothing is to be
    /// done then.
    pub async fn observe(&mut self, policy: &Policy, now: Duration) -> Option<Observed> {
        let objects = self.pods_of(policy)?;
        let mut observed = Observed { objects, ..Observed::default() };
        for (place, role) in policy.roles.iter().enumerate() {
            let target = match (&role.target, policy.mode) {
                (Some(reference), Mode::Apply) => Some(self.target(reference).await?),
                _ => None,
            };
            let pods = observed.objects.get(place).map_or(0, Vec::len);
            let replicas = target.as_ref().map_or(pods as u32, |target| target.replicas);
            let may_write = target.is_some() && {
                let key = (policy.name.clone(), role.name.clone());
                self.writers.entry(key).or_default().see(replicas, now, policy.interval)
            };
            observed.replicas.push(replicas);
            observed.targets.push(target);
            observed.may_write.push(may_write);
        }
        self.states(policy, &mut observed);
        if let Some(rollout) = policy.rollout.as_ref().filter(|rollout| rollout.topology.is_some()) {
            observed.domains = self.room(rollout, &observed);
            // A moment after the start they are only not known yet: a step would go anywhere.
            if observed.domains.is_none() && self.may_see_nodes().await {
                return None;
            }
        }
        if observed.pods.iter().any(|pod| pod.state.is_unschedulable) {
            let within =
                policy.rollout.as_ref().map_or(Duration::ZERO, |rollout| rollout.provisioning_timeout);
            observed.provisioning = self.adds_nodes(&observed, within).await;
        }
        Some(observed)
    }

    /// The pods of each role; a pod belongs to the first, by name, whose labels it has.
    fn pods_of(&mut self, policy: &Policy) -> Option<Vec<Vec<PodObject>>> {
        let oldest = OLDEST.max(policy.interval * OLDEST_INTERVALS);
        let mut roles: Vec<Vec<PodObject>> = Vec::with_capacity(policy.roles.len());
        for (place, role) in policy.roles.iter().enumerate() {
            let mirror = self.pods.get(&selector(&role.selector))?;
            if mirror.age().is_none_or(|age| age > oldest) {
                let about = format!("pods of {}", policy.name);
                self.complain(&about, &Problem::TimedOut(oldest));
                return None;
            }
            let before = policy.roles.get(..place).unwrap_or_default();
            let is_own = |pod: &&PodObject| !before.iter().any(|other| pod.matches(&other.selector));
            roles.push(mirror.objects().as_ref()?.values().filter(is_own).cloned().collect());
        }
        self.works(&format!("pods of {}", policy.name));
        Some(roles)
    }

    async fn target(&mut self, reference: &TargetRef) -> Option<Target> {
        let about = format!("{} {}", reference.kind, reference.name);
        let read = match self.kinds.of(&self.cluster, reference).await {
            Ok(kind) => Target::read(&self.cluster, &kind, &self.namespace, reference).await,
            Err(problem) => Err(problem),
        };
        match read {
            Ok(target) => {
                self.works(&about);
                Some(target)
            }
            Err(problem) => {
                self.kinds.forget(reference);
                self.complain(&about, &problem);
                None
            }
        }
    }

    /// Where pods are on their way.
    fn states(&self, policy: &Policy, observed: &mut Observed) {
        let follows_updates = policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some());
        for (role, pods) in observed.objects.iter().enumerate() {
            let newest = if follows_updates { newest(pods.iter()) } else { None };
            observed.pods.extend(pods.iter().map(|pod| ObservedPod {
                role,
                name: pod.name().to_owned(),
                is_ready: pod.is_ready(),
                state: pod.state(newest),
            }));
        }
    }

    /// The room that domains have for steps of a policy; `None`: it isn't known.
    fn room(&self, rollout: &Rollout, observed: &Observed) -> Option<Layers> {
        let topology = rollout.topology.as_ref()?;
        let (nodes, pods) = {
            let all = self.nodes.as_ref()?;
            let is_old =
                [all.nodes.age(), all.pods.age()].iter().any(|age| age.is_none_or(|age| age > OLDEST));
            if is_old {
                return None;
            }
            (all.nodes.objects(), all.pods.objects())
        };
        let (nodes, pods) = (nodes.as_ref()?, pods.as_ref()?);
        let room = Room::of(nodes.values(), pods.values().map(|(node, needs)| (node.as_str(), needs)));
        let none = Needs::default();
        let step: Vec<(u32, &Needs)> = observed
            .objects
            .iter()
            .enumerate()
            .map(|(role, pods)| {
                let size = match &rollout.pace {
                    Some(Pace::Steps(steps)) => steps.get(role).copied().unwrap_or(0),
                    Some(Pace::Skew(_)) => 1,
                    None => 0,
                };
                // What is to come is like what is there; a role without pods asks for nothing yet.
                let example = pods.iter().find(|pod| pod.is_gated()).or_else(|| pods.first());
                example.map_or((0, &none), |pod| (size, &pod.spec.needs))
            })
            .collect();
        Some(room.layers(&topology.layers, &step))
    }

    /// Whether nodes and all pods may be seen. Where they may not, the scheduler decides.
    async fn may_see_nodes(&self) -> bool {
        for path in ["/api/v1/nodes?limit=1", "/api/v1/pods?limit=1"] {
            let seen: Result<IgnoredAny, Problem> = self.cluster.get(path).await;
            if matches!(seen, Err(Problem::Denied(_))) {
                return false;
            }
        }
        true
    }

    /// Whether somebody adds nodes for these pods.
    async fn adds_nodes(&mut self, observed: &Observed, within: Duration) -> bool {
        let events = Collection::new("", "v1", &self.namespace, "events");
        let listed = self.cluster.list::<EventObject>(&events).await;
        let about = "events";
        let events = match listed {
            Ok((events, _)) => events,
            Err(problem) => {
                self.complain(about, &problem);
                return false;
            }
        };
        self.works(about);
        let is_young = |event: &EventObject| {
            let at = event.last_timestamp.as_ref().or(event.event_time.as_ref());
            let at = at.and_then(|at| at.parse::<Timestamp>().ok());
            at.is_some_and(|at| Timestamp::now().duration_since(at).unsigned_abs() <= within)
        };
        let is_ours = |event: &EventObject| {
            let waits =
                |pod: &ObservedPod| pod.state.is_unschedulable && pod.name == event.involved_object.name;
            observed.pods.iter().any(waits)
        };
        events
            .iter()
            .any(|event| ADDING.contains(&event.reason.as_str()) && is_ours(event) && is_young(event))
    }
}
