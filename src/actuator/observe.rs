//! Observes replicas, pods and the free capacity of nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::affinity::sent_to;
use super::cached_pods::{CachedPods, Displaced, Objects, ObservedPod};
use super::drain::PodLoad;
use super::fetch::{Body, Fetched};
use super::need::{RolePods, needed};
use super::node::{Needs, NodeObject};
use super::owner_refs::is_of_role;
use super::pause;
use super::pods::{PodObject, newest};
use super::problem_subject::ProblemSubject;
use super::room::{Part, Room};
use super::selector::both;
use super::state::{Actuator, OLDEST, OLDEST_INTERVALS};
use super::target::{Target, template};
use crate::capacity::Policy;
use crate::capacity::policy::{Role, TargetRef};
use crate::capacity::rollout::{Layers, Pace, Rollout};
use crate::cluster::Problem;

/// Observed state of a policy's roles.
#[derive(Debug, Default)]
pub struct Observed {
    /// Replicas of each role's target; the number of its pods if there is no target.
    pub replicas: Vec<u32>,
    /// Pods of all roles.
    pub pods: Arc<Vec<ObservedPod>>,
    /// Free capacity of domains; `None` if unknown.
    pub domains: Option<Layers>,
    /// `true` if nodes are being added for unschedulable pods.
    pub provisioning: bool,
    /// `true` if pods are to be placed in domains whose capacity RBAC hides.
    pub is_blind: bool,
    /// Names of draining pods.
    pub leaving: BTreeSet<String>,
    /// Loads of pods, by name. `None`: unknown, and controllers choose which pods to delete.
    pub loads: Option<HashMap<String, PodLoad>>,
    /// Roles, by index, whose pods' resource requests are unknown.
    pub(super) unknown: Vec<usize>,
    /// Objects of the targets, where more than their replicas is needed.
    pub(super) bodies: Vec<Option<Value>>,
    pub(super) targets: Vec<Option<Target>>,
    /// `true` for roles without a foreign writer of their replicas.
    pub(super) may_write: Vec<bool>,
    /// Roles, by index, whose last write had a lost response and was not carried out.
    pub lost: Vec<usize>,
    /// Pods of each role that need another domain.
    pub(super) displaced: Vec<Displaced>,
    /// Objects of the pods, by role.
    pub(super) objects: Objects,
    /// Label selector of their pool.
    pool: Option<String>,
}

impl Observed {
    /// Pods of each role that need another domain.
    pub fn displaced(&self) -> Vec<u32> {
        self.displaced.iter().map(|of| of.pods).collect()
    }
}

impl Actuator {
    /// Observes a policy's pods and targets. `None`: too little is known, or it is too old, so nothing may be
    /// written.
    pub async fn observe(&mut self, policy: &Policy, now: Duration) -> Option<Observed> {
        let fetched = self.fetch_request(policy).send().await;
        self.observe_fetched(policy, fetched, now).await
    }

    /// Builds the observation from the results of a fetch, like [`observe`](Self::observe).
    pub async fn observe_fetched(
        &mut self,
        policy: &Policy,
        fetched: Fetched,
        now: Duration,
    ) -> Option<Observed> {
        self.begin();
        self.problems = fetched.problems;
        let mut observed = Observed { objects: fetched.objects?, pool: fetched.pool, ..Observed::default() };
        if !self.is_of_pool(&observed) {
            self.problems.push("the pool's labels changed while its pods were observed".to_owned());
            return None;
        }
        for ((place, role), read) in policy.roles.iter().enumerate().zip(fetched.targets) {
            let (target, body) = self.taken(role.target.as_ref(), read)?;
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
            observed.replicas.push(replicas);
            observed.bodies.push(body);
            observed.targets.push(target);
            observed.may_write.push(may_write);
        }
        self.states(policy, &mut observed);
        observed.leaving = self.leaving_of(policy, &observed.objects, now);
        observed.provisioning = match fetched.adds_nodes {
            Some(Ok(adds)) => {
                self.clear_problem("events");
                adds
            }
            Some(Err(problem)) => {
                self.report_problem("events", &problem);
                false
            }
            None => false,
        };
        if let Some(rollout) = policy.rollout.as_ref().filter(|rollout| rollout.topology.is_some()) {
            observed.domains = self.room(policy, rollout, &mut observed, now).await;
            // Shortly after the start they are not listed yet: a step would be placed anywhere.
            if observed.domains.is_none() && fetched.may_see_nodes != Some(false) {
                self.closed_domains.retain(|(name, _), _| *name != policy.name);
                self.problems.extend(self.nodes_lack());
                return None;
            }
            observed.is_blind = observed.domains.is_none();
        }
        if observed.domains.is_none() {
            self.closed_domains.retain(|(name, _), _| *name != policy.name);
        }
        Some(observed)
    }

    /// Returns `true` if the observed pods are those of the current pool.
    pub(super) fn is_of_pool(&self, observed: &Observed) -> bool {
        *self.pool.borrow() == observed.pool
    }

    /// A fetched target, and its object. `None`: it can't be read.
    fn taken(
        &mut self,
        reference: Option<&TargetRef>,
        read: Result<Option<Body>, Problem>,
    ) -> Option<(Option<Target>, Option<Value>)> {
        let (target, body) = match read {
            Ok(Some(read)) => read,
            Ok(None) => return Some((None, None)),
            Err(problem) => {
                let reference = reference?;
                self.kinds.forget(reference);
                self.report_problem(ProblemSubject::target("", reference), &problem);
                return None;
            }
        };
        self.kinds.know(&target.reference, &target.kind);
        self.clear_problem(ProblemSubject::target("", &target.reference));
        let subject = ProblemSubject::target("spec of ", &target.reference);
        let body = match body {
            None => None,
            Some(Ok(object)) => {
                self.clear_problem(subject);
                Some(object)
            }
            Some(Err(problem)) => {
                self.report_problem(subject, &problem);
                None
            }
        };
        Some((Some(target), body))
    }

    /// Pods of each role: those of the pool with its labels that no other target owns. A pod belongs to the
    /// first matching role, by name.
    pub(super) fn pods_of(&mut self, policy: &Policy) -> Option<Objects> {
        if self.pool.has_changed().unwrap_or(false) {
            self.follow_pods();
        }
        let pool = self.pool.borrow().clone()?;
        let oldest = OLDEST.max(policy.interval * OLDEST_INTERVALS);
        let mut mirrors = Vec::with_capacity(policy.roles.len());
        for role in &policy.roles {
            let mirror = self.pods.get(&both(&role.selector, &pool))?;
            if mirror.age().is_none_or(|age| age > oldest) {
                self.report_problem(ProblemSubject::pods(policy), &Problem::TimedOut(oldest));
                return None;
            }
            mirrors.push(mirror);
        }
        // Before the objects are read: a change in between is found the next time.
        let changes: Vec<u64> = mirrors.iter().map(|mirror| mirror.changes()).collect();
        let is_same = |cached: &&CachedPods| cached.changes == changes && cached.roles == policy.roles;
        if let Some(cached) = self.cached_pods.get(&policy.name).filter(is_same) {
            let objects = Arc::clone(&cached.objects);
            self.clear_problem(ProblemSubject::pods(policy));
            return Some(objects);
        }
        let mut roles: Vec<Vec<Arc<PodObject>>> = Vec::with_capacity(policy.roles.len());
        for ((place, role), mirror) in policy.roles.iter().enumerate().zip(mirrors) {
            let before = policy.roles.get(..place).unwrap_or_default();
            let is_of = |pod: &PodObject, role: &Role| is_of_role(pod, &role.selector, role.target.as_ref());
            let is_own =
                |pod: &&Arc<PodObject>| is_of(pod, role) && !before.iter().any(|other| is_of(pod, other));
            // Copies of a thousand pods would take longer than all the rest of a tick.
            roles.push(mirror.objects().as_ref()?.values().filter(is_own).cloned().collect());
        }
        let unschedulable = roles.iter().flatten().filter(|pod| pod.is_unschedulable());
        let unschedulable = unschedulable.map(|pod| pod.name().to_owned()).collect();
        let has_gated = roles.iter().map(|pods| pods.iter().any(|pod| pod.is_gated())).collect();
        let (objects, roles) = (Arc::new(roles), policy.roles.clone());
        let known = Arc::clone(&objects);
        let cached = CachedPods { roles, changes, objects: known, has_gated, unschedulable, pods: None };
        self.cached_pods.insert(policy.name.clone(), cached);
        self.clear_problem(ProblemSubject::pods(policy));
        Some(objects)
    }

    /// Sets the startup progress of pods.
    fn states(&mut self, policy: &Policy, observed: &mut Observed) {
        let follows_updates = policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some());
        let same =
            |cached: &&mut CachedPods| !follows_updates && Arc::ptr_eq(&cached.objects, &observed.objects);
        let mut cached = self.cached_pods.get_mut(&policy.name).filter(same);
        if let Some(known) = cached.as_ref().and_then(|cached| cached.pods.as_ref()) {
            observed.pods = Arc::clone(known);
            return;
        }
        let mut all = Vec::new();
        for (role, pods) in observed.objects.iter().enumerate() {
            let target = observed.targets.get(role).and_then(Option::as_ref).map(|target| &target.reference);
            let object = target.zip(observed.bodies.get(role).and_then(Option::as_ref));
            let said = object.and_then(|(at, object)| pause::revision(&at.api_version, &at.kind, object));
            let youngest = || newest(pods.iter().map(Arc::as_ref));
            let newest = if follows_updates { said.or_else(youngest) } else { None };
            // Pods kept by an owner's partition are not outdated.
            let kept = object
                .and_then(|(at, object)| Some(pause::kept(object, pause::of(&at.api_version, &at.kind)?)));
            let is_kept = |pod: &PodObject| pod.ordinal().is_some_and(|ordinal| ordinal < kept.unwrap_or(0));
            all.extend(pods.iter().map(|pod| ObservedPod {
                role,
                name: pod.name().to_owned(),
                is_ready: pod.is_ready(),
                state: pod.state(newest.filter(|_| !is_kept(pod))),
            }));
        }
        observed.pods = Arc::new(all);
        if let Some(cached) = &mut cached {
            cached.pods = Some(Arc::clone(&observed.pods));
        }
    }

    /// Free capacity of domains for steps of a policy; `None` if unknown. Records roles whose pods' requests
    /// are unknown. Packs on a blocking thread, as a thousand nodes take long.
    async fn room(
        &mut self,
        policy: &Policy,
        rollout: &Rollout,
        observed: &mut Observed,
        now: Duration,
    ) -> Option<Layers> {
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
        // Future pods have the requirements of gated ones, of the template, or of existing ones.
        let example = |(pods, body): (&Vec<Arc<PodObject>>, &Option<Value>)| {
            let waits = pods.iter().find(|pod| pod.is_gated()).map(|pod| pod.spec.needs.clone());
            let template = || body.as_ref().and_then(template);
            waits.or_else(template).or_else(|| pods.first().map(|pod| pod.own_needs()))
        };
        let examples: Vec<Option<Needs>> =
            observed.objects.iter().zip(&observed.bodies).map(example).collect();
        self.note_displaced(policy, &examples, observed, now);
        let roles = policy.roles.iter().enumerate().map(|(place, role)| {
            let pods = observed.objects.get(place).into_iter().flatten();
            let before = self.let_through.get(&(policy.name.clone(), role.name.clone()));
            let stranded = observed.displaced.get(place).map_or(0, |of| of.stranded.len() as u32);
            let past = pods.filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32;
            RolePods {
                past: past.saturating_sub(stranded),
                replicas: observed.replicas.get(place).copied().unwrap_or(0),
                before: before.copied().unwrap_or(0),
                max: role.range.max,
            }
        });
        let most = needed(rollout.pace.as_ref(), &roles.collect::<Vec<_>>());
        let displaced = observed.displaced().into_iter().chain(std::iter::repeat(0));
        let step = examples.into_iter().enumerate().zip(most).zip(displaced);
        let step = step.map(|(((role, needs), most), first)| {
            let pods = match &rollout.pace {
                Some(Pace::Steps(steps)) => steps.get(role).copied().unwrap_or(0),
                Some(Pace::Skew(_)) => 1,
                None => 0,
            };
            Part { pods, most: most.saturating_add(first), first, needs }
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

    /// Reason why the free capacity of nodes is unknown, as a sentence; `None` if known.
    pub(super) fn nodes_lack(&self) -> Option<String> {
        let all = self.nodes.as_ref()?;
        let known = [
            ("nodes", all.nodes.age(), all.nodes.objects().is_some()),
            ("pods of all namespaces", all.pods.age(), all.pods.objects().is_some()),
        ];
        known.into_iter().find_map(|(what, age, is_listed)| match age.filter(|_| is_listed) {
            None => Some(format!("{what}: not listed yet")),
            Some(age) if age > OLDEST => {
                Some(format!("{what}: no update from the API server for {} s", age.as_secs()))
            }
            Some(_) => None,
        })
    }
}
