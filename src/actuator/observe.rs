//! To look: how many replicas there are, which pods, and what room nodes have.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::affinity::sent_to;
use super::drain::PodLoad;
use super::hands::{Hands, OLDEST, OLDEST_INTERVALS};
use super::knobs;
use super::need::{Standing, needed};
use super::node::{Needs, NodeObject};
use super::pods::{PodObject, newest};
use super::room::{Part, Room};
use super::subject::Subject;
use super::target::{Target, template};
use super::whose::{both, is_of_role};
use crate::capacity::policy::{Mode, Role, TargetRef};
use crate::capacity::rollout::{Layers, Pace, Rollout};
use crate::capacity::{PodState, Policy};
use crate::cluster::{Collection, Problem};

/// Reasons of events about pods for which nodes are being added: of the cluster autoscaler, and of
/// Karpenter.
const ADDING: [&str; 2] = ["TriggeredScaleUp", "Nominated"];

/// Pods of each role, shared with the mirrors that they are of.
pub(super) type Objects = Vec<Vec<Arc<PodObject>>>;

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
    /// Whether pods are to go to domains, and what room those have may not be seen.
    pub is_blind: bool,
    /// Loads of pods, by name. `None`: not known, and controllers choose which pods go.
    pub loads: Option<HashMap<String, PodLoad>>,
    /// Roles, by place, of whose pods nobody knows yet what they will ask for.
    pub(super) unknown: Vec<usize>,
    /// The targets as objects, where more of them counts than their replicas.
    pub(super) bodies: Vec<Option<Value>>,
    pub(super) targets: Vec<Option<Target>>,
    /// Whether nobody else writes a role's replicas.
    pub(super) may_write: Vec<bool>,
    /// Roles, by place, whose last write had no response and was not carried out.
    pub lost: Vec<usize>,
    /// The objects of the pods, by role.
    pub(super) objects: Objects,
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

/// Whether more of a target counts than its replicas: how far its updates go, and what its pods will ask
/// for where none waits at its gate.
fn is_read_whole(policy: &Policy, has_waiting: bool) -> bool {
    let is_placed = |rollout: &Rollout| rollout.topology.is_some() && !has_waiting;
    policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some() || is_placed(rollout))
}

impl Hands {
    /// Looks at what a policy is about. `None`: not enough is known, or it is too old; nothing is to be
    /// done then.
    pub async fn observe(&mut self, policy: &Policy, now: Duration) -> Option<Observed> {
        self.begin();
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
                let writers = self.writers.entry(key).or_default();
                let may_write = writers.see(replicas, now, policy.interval);
                if writers.is_lost() {
                    observed.lost.push(place);
                }
                may_write
            };
            let waits = |pods: &Vec<Arc<PodObject>>| pods.iter().any(|pod| pod.is_gated());
            let has_waiting = observed.objects.get(place).is_some_and(waits);
            let body = match &target {
                Some(target) if is_read_whole(policy, has_waiting) => self.body(target).await,
                _ => None,
            };
            observed.replicas.push(replicas);
            observed.bodies.push(body);
            observed.targets.push(target);
            observed.may_write.push(may_write);
        }
        self.states(policy, &mut observed);
        if let Some(rollout) = policy.rollout.as_ref().filter(|rollout| rollout.topology.is_some()) {
            observed.domains = self.room(policy, rollout, &mut observed).await;
            // A moment after the start they are only not known yet: a step would go anywhere.
            if observed.domains.is_none() && self.may_see_nodes().await {
                self.problems.extend(self.nodes_lack());
                return None;
            }
            observed.is_blind = observed.domains.is_none();
        }
        if observed.pods.iter().any(|pod| pod.state.is_unschedulable) {
            let within =
                policy.rollout.as_ref().map_or(Duration::ZERO, |rollout| rollout.provisioning_timeout);
            observed.provisioning = self.adds_nodes(&observed, within).await;
        }
        Some(observed)
    }

    /// The pods of each role: those of the pool that have its labels, and aren't another target's. A pod
    /// belongs to the first role, by name, that it could.
    pub(super) fn pods_of(&mut self, policy: &Policy) -> Option<Objects> {
        if self.pool.has_changed().unwrap_or(false) {
            self.follow_pods();
        }
        let pool = self.pool.borrow().clone()?;
        let oldest = OLDEST.max(policy.interval * OLDEST_INTERVALS);
        let mut roles: Objects = Vec::with_capacity(policy.roles.len());
        for (place, role) in policy.roles.iter().enumerate() {
            let mirror = self.pods.get(&both(&role.selector, &pool))?;
            if mirror.age().is_none_or(|age| age > oldest) {
                self.complain(Subject::pods(policy), &Problem::TimedOut(oldest));
                return None;
            }
            let before = policy.roles.get(..place).unwrap_or_default();
            let is_of = |pod: &PodObject, role: &Role| is_of_role(pod, &role.selector, role.target.as_ref());
            let is_own =
                |pod: &&Arc<PodObject>| is_of(pod, role) && !before.iter().any(|other| is_of(pod, other));
            // Copies of a thousand pods would take longer than all the rest of a tick.
            roles.push(mirror.objects().as_ref()?.values().filter(is_own).cloned().collect());
        }
        self.works(Subject::pods(policy));
        Some(roles)
    }

    async fn target(&mut self, reference: &TargetRef) -> Option<Target> {
        let about = Subject::target("", reference);
        let read = match self.kinds.of(&self.cluster, reference).await {
            Ok(kind) => Target::read(&self.cluster, &kind, &self.namespace, reference).await,
            Err(problem) => Err(problem),
        };
        match read {
            Ok(target) => {
                self.works(about);
                Some(target)
            }
            Err(problem) => {
                self.kinds.forget(reference);
                self.complain(about, &problem);
                None
            }
        }
    }

    /// Where pods are on their way.
    fn states(&self, policy: &Policy, observed: &mut Observed) {
        let follows_updates = policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some());
        for (role, pods) in observed.objects.iter().enumerate() {
            let target = observed.targets.get(role).and_then(Option::as_ref).map(|target| &target.reference);
            let object = target.zip(observed.bodies.get(role).and_then(Option::as_ref));
            let said = object.and_then(|(at, object)| knobs::revision(&at.api_version, &at.kind, object));
            let youngest = || newest(pods.iter().map(Arc::as_ref));
            let newest = if follows_updates { said.or_else(youngest) } else { None };
            // What somebody else's partition keeps as it is, is as it should be.
            let kept = object
                .and_then(|(at, object)| Some(knobs::kept(object, knobs::of(&at.api_version, &at.kind)?)));
            let is_kept = |pod: &PodObject| pod.ordinal().is_some_and(|ordinal| ordinal < kept.unwrap_or(0));
            observed.pods.extend(pods.iter().map(|pod| ObservedPod {
                role,
                name: pod.name().to_owned(),
                is_ready: pod.is_ready(),
                state: pod.state(newest.filter(|_| !is_kept(pod))),
            }));
        }
    }

    /// An object as it is.
    async fn body(&mut self, target: &Target) -> Option<Value> {
        let about = Subject::target("the whole ", &target.reference);
        let read: Result<Value, Problem> = self.cluster.get(&target.path).await;
        match read {
            Ok(object) => {
                self.works(about);
                Some(object)
            }
            Err(problem) => {
                self.complain(about, &problem);
                None
            }
        }
    }

    /// The room that domains have for steps of a policy; `None`: it isn't known. Notes the roles of whose
    /// pods nothing is known. Packs on a thread of its own: a thousand nodes take long.
    async fn room(&self, policy: &Policy, rollout: &Rollout, observed: &mut Observed) -> Option<Layers> {
        let topology = rollout.topology.as_ref()?;
        let (nodes, pods) = {
            let all = self.nodes.as_ref()?;
            if self.nodes_lack().is_some() {
                return None;
            }
            let nodes: Vec<Arc<NodeObject>> = all.nodes.objects().as_ref()?.values().cloned().collect();
            let pods: Vec<Arc<(String, Needs)>> = all.pods.objects().as_ref()?.values().cloned().collect();
            (nodes, pods)
        };
        let mut sent: Vec<Arc<PodObject>> = Vec::new();
        for mirror in self.pods.values() {
            let known = mirror.objects();
            sent.extend(known.iter().flat_map(BTreeMap::values).filter(|pod| pod.wants_node()).cloned());
        }
        // What is to come is like what waits, like its template, or else like what is there.
        let example = |(pods, body): (&Vec<Arc<PodObject>>, &Option<Value>)| {
            let waits = pods.iter().find(|pod| pod.is_gated()).map(|pod| pod.spec.needs.clone());
            let template = || body.as_ref().and_then(template);
            waits.or_else(template).or_else(|| pods.first().map(|pod| pod.own_needs()))
        };
        let examples = observed.objects.iter().zip(&observed.bodies).map(example);
        let roles = policy.roles.iter().enumerate().map(|(place, role)| {
            let pods = observed.objects.get(place).into_iter().flatten();
            let before = self.let_through.get(&(policy.name.clone(), role.name.clone()));
            Standing {
                past: pods.filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32,
                replicas: observed.replicas.get(place).copied().unwrap_or(0),
                before: before.copied().unwrap_or(0),
                max: role.range.max,
            }
        });
        let most = needed(rollout.pace.as_ref(), &roles.collect::<Vec<_>>());
        let step = examples.enumerate().zip(most).map(|((role, needs), most)| {
            let pods = match &rollout.pace {
                Some(Pace::Steps(steps)) => steps.get(role).copied().unwrap_or(0),
                Some(Pace::Skew(_)) => 1,
                None => 0,
            };
            Part { pods, most, needs }
        });
        let step: Vec<Part> = step.collect();
        let is_unknown =
            |(role, part): (usize, &Part)| (part.pods > 0 && part.needs.is_none()).then_some(role);
        observed.unknown = step.iter().enumerate().filter_map(is_unknown).collect();
        let layers = topology.layers.clone();
        let packing = tokio::task::spawn_blocking(move || {
            let pods = pods.iter().map(|pod| (pod.0.as_str(), &pod.1));
            let mut room = Room::of(nodes.iter().map(Arc::as_ref), pods);
            room.reserve(sent.iter().filter_map(|pod| {
                let (layer, domain) = sent_to(pod.spec.needs.affinity.as_ref(), &layers)?;
                Some((&pod.spec.needs, layer, domain))
            }));
            room.layers(&layers, &step)
        });
        packing.await.ok()
    }

    /// Why it isn't known what room nodes have, in a sentence; `None`: it is.
    fn nodes_lack(&self) -> Option<String> {
        let all = self.nodes.as_ref()?;
        let known = [
            ("nodes", all.nodes.age(), all.nodes.objects().is_some()),
            ("pods of all namespaces", all.pods.age(), all.pods.objects().is_some()),
        ];
        known.into_iter().find_map(|(what, age, is_listed)| match age.filter(|_| is_listed) {
            None => Some(format!("{what}: not listed yet")),
            Some(age) if age > OLDEST => {
                Some(format!("{what}: the API server has said nothing of them for {} s", age.as_secs()))
            }
            Some(_) => None,
        })
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
