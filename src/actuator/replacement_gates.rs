//! Opens gates of replacement pods while nothing else is written: a pod that replaces an admitted one is
//! admitted immediately.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::domain_counts::{DomainCounts, GateAdmission};
use super::gates;
use super::owner_refs::is_of_role;
use super::pods::PodObject;
use super::selector::both;
use super::state::{Actuator, Retired};
use crate::capacity::Policy;
use crate::capacity::policy::{Mode, Role};
use crate::capacity::resource::status::{DomainStatus, RoleStatus};
use crate::capacity::rollout::Placement;
use crate::cluster::{PatchType, Problem};

/// Time for which a deleted policy without pods is remembered: controllers replace deleted pods sooner.
const REMEMBERED: Duration = Duration::from_secs(600);

impl Actuator {
    /// Opens gates of a policy's replacement pods, while nothing else is written.
    pub async fn open_replacement_gates(&mut self, policy: &Policy) {
        self.begin();
        if let Some(objects) = self.pods_of(policy) {
            let objects = self.without_foreign_pods(policy, &objects);
            self.open_replacement_gates_of(policy, &objects, &[]).await;
        }
    }

    /// Pods per role. For a policy that doesn't act, excludes pods of an acting policy: that one decides
    /// about their gates.
    pub(super) fn without_foreign_pods(
        &self,
        policy: &Policy,
        objects: &[Vec<Arc<PodObject>>],
    ) -> Vec<Vec<Arc<PodObject>>> {
        let acts = |known: &&Arc<Policy>| known.mode == Mode::Apply;
        if self.policies.iter().filter(acts).any(|known| known.name == policy.name) {
            return objects.to_vec();
        }
        let others: Vec<&Role> = self.policies.iter().filter(acts).flat_map(|other| &other.roles).collect();
        let is_left = |pod: &&Arc<PodObject>| {
            !others.iter().any(|role| is_of_role(pod, &role.selector, role.target.as_ref()))
        };
        objects.iter().map(|pods| pods.iter().filter(is_left).cloned().collect()).collect()
    }

    /// Opens gates of replacement pods of all policies, up to the number admitted at the last observation:
    /// between ticks half an hour may pass. New pods of a step wait for the next observation, which records
    /// their gates.
    pub async fn open_all_replacement_gates(&mut self) {
        self.begin();
        for policy in self.policies.clone() {
            if !self.has_waiting(&policy) {
                continue;
            }
            let Some(objects) = self.pods_of(&policy) else { continue };
            let objects = self.without_foreign_pods(&policy, &objects);
            for (role, pods) in policy.roles.iter().zip(objects.iter()) {
                let key = (policy.name.clone(), role.name.clone());
                let Some(admitted) = self.passing.get(&key).copied() else { continue };
                let is_sized = admitted != u32::MAX;
                let pods: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
                // Displaced pods wait until a domain is chosen.
                let closed = self.still_closed(&key, &pods);
                let now = DomainCounts::of(&pods);
                let known =
                    self.domain_counts.get(&key).map_or(0, |all| all.missing(&now, |at| closed.contains(at)));
                let alive = pods.iter().filter(|pod| pod.is_alive()).count() as u32;
                let admitted = admitted.saturating_sub(known).min(alive);
                if gates::to_open(&pods, admitted).is_empty() {
                    continue;
                }
                let domains = (&closed, &closed);
                let before = self.replaced(&key, is_sized, admitted);
                let placements =
                    self.next_placements(&policy, &role.name, &pods, (before, admitted), None, domains);
                let opened = self.open(&policy, &pods, admitted, &placements).await;
                let opened = self.passed(&policy, &role.name, &pods, &opened, &closed);
                log_opened(&policy, &role.name, opened);
            }
            // The runtime has others to serve between two of many policies.
            tokio::task::yield_now().await;
        }
    }

    /// Returns `true` if a pod of a policy is at our gate.
    fn has_waiting(&self, policy: &Policy) -> bool {
        let Some(pool) = self.pool.borrow().clone() else { return false };
        policy
            .roles
            .iter()
            .filter_map(|role| self.pods.get(&both(&role.selector, &pool)))
            .any(|mirror| mirror.objects().iter().flat_map(|pods| pods.values()).any(|pod| pod.is_gated()))
    }

    /// Returns `true` if a policy may have gated pods.
    pub fn may_have_gates(&self) -> bool {
        !self.policies.is_empty()
            || !self.unusable.is_empty()
            || !self.retired.is_empty()
            || !self.resumed.is_empty()
    }

    /// Policies without a usable version.
    pub fn unusable(&self) -> &[Arc<Policy>] {
        &self.unusable
    }

    /// Opens gates of replacement pods for policies without a usable version.
    pub async fn open_gates_of_unusable(&mut self) {
        self.begin();
        for policy in self.unusable.clone() {
            if let Some(objects) = self.pods_of(&policy) {
                let objects = self.without_foreign_pods(&policy, &objects);
                self.open_replacement_gates_of(&policy, &objects, &[]).await;
                for pods in &objects {
                    self.unmark(pods).await;
                }
            }
        }
    }

    /// Opens gates of replacement pods for deleted policies until their pods are gone.
    pub async fn open_gates_of_retired(&mut self) {
        self.begin();
        let now = self.clock.elapsed();
        for mut retired in std::mem::take(&mut self.retired) {
            let objects = self.pods_of(&retired.policy);
            let objects = objects.map(|objects| self.without_foreign_pods(&retired.policy, &objects));
            match &objects {
                Some(objects) if objects.iter().all(Vec::is_empty) => {}
                _ => retired.seen = now,
            }
            if let Some(objects) = objects {
                self.open_replacement_gates_of(&retired.policy, &objects, &[]).await;
                for pods in objects.iter() {
                    self.unmark(pods).await;
                }
            }
            if now.saturating_sub(retired.seen) < REMEMBERED {
                self.retired.push(retired);
            }
        }
    }

    /// Opens gates of each role's replacement pods, up to `replicas` if given.
    pub(super) async fn open_replacement_gates_of(
        &mut self,
        policy: &Policy,
        objects: &[Vec<Arc<PodObject>>],
        replicas: &[u32],
    ) {
        for (place, (role, pods)) in policy.roles.iter().zip(objects).enumerate() {
            let most = replicas.get(place).copied().unwrap_or(u32::MAX);
            self.open_role_replacement_gates(policy, role, pods, most, None).await;
        }
    }

    /// Opens gates of a role's replacement pods, up to `most`. If another writer sets the role's replicas,
    /// opens the gates of all pods, those of a step for its domain.
    pub(super) async fn open_role_replacement_gates(
        &mut self,
        policy: &Policy,
        role: &Role,
        pods: &[Arc<PodObject>],
        most: u32,
        step: Option<&Placement>,
    ) {
        let pods: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
        let alive = pods.iter().filter(|pod| pod.is_alive()).count() as u32;
        let past = pods.iter().filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32;
        let key = (policy.name.clone(), role.name.clone());
        let before = self.let_through.get(&key).copied().unwrap_or(0);
        let is_sized = policy.mode != Mode::Apply || role.target.is_some();
        let admitted = if is_sized { past.max(before).min(most) } else { alive };
        self.passing.insert(key.clone(), if is_sized { admitted } else { u32::MAX });
        let late = self.still_closed(&key, &pods);
        let before = self.replaced(&key, is_sized, admitted);
        self.let_through.insert(key, admitted);
        let none = BTreeSet::new();
        let placements =
            self.next_placements(policy, &role.name, &pods, (before, admitted), step, (&none, &late));
        let opened = self.open(policy, &pods, admitted, &placements).await;
        let opened = self.passed(policy, &role.name, &pods, &opened, &none);
        log_opened(policy, &role.name, opened);
    }

    /// Admitted pods of a role that are replacements. If another writer sets the role's replicas, pods beyond
    /// the earlier ones are new.
    fn replaced(&self, role: &(String, String), is_sized: bool, admitted: u32) -> u32 {
        let before = self.let_through.get(role).copied().unwrap_or(0);
        if is_sized { admitted } else { before.min(admitted) }
    }

    /// Domains of a role's next pods to pass the gate, one per pod until `admitted` are past it. `step` is
    /// the domain for new pods, and for those that leave `closed` domains; `late` domains come last.
    pub(super) fn next_placements(
        &mut self,
        policy: &Policy,
        role: &str,
        pods: &[&PodObject],
        (before, admitted): (u32, u32),
        step: Option<&Placement>,
        (closed, late): (&BTreeSet<Placement>, &BTreeSet<Placement>),
    ) -> Vec<Option<Placement>> {
        let past = pods.iter().filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32;
        let now = DomainCounts::of(pods);
        let key = (policy.name.clone(), role.to_owned());
        let mut of_group = self.domain_counts.iter().filter(|((name, _), _)| *name == policy.name);
        let beside =
            now.most(closed).or_else(|| of_group.find_map(|(_, counts)| counts.most(closed))).cloned();
        let is_placed = policy.rollout.as_ref().is_some_and(|rollout| {
            let place = policy.roles.iter().position(|known| known.name == role);
            rollout.topology.is_some() && place.is_some_and(|place| rollout.is_coordinated(place))
        });
        // A step without a domain gets no placement.
        let beside = beside.filter(|_| is_placed && admitted <= before);
        let admission = GateAdmission { past, admitted, step, beside: beside.as_ref(), closed, late };
        self.domain_counts.entry(key).or_insert_with(|| now.clone()).next(&now, admission)
    }

    /// Records the domains of pods that have passed their gate. Returns their number.
    pub(super) fn passed(
        &mut self,
        policy: &Policy,
        role: &str,
        pods: &[&PodObject],
        opened: &[Option<Placement>],
        closed: &BTreeSet<Placement>,
    ) -> u32 {
        if let Some(known) = self.domain_counts.get_mut(&(policy.name.clone(), role.to_owned())) {
            known.passed(&DomainCounts::of(pods), opened, closed);
        }
        opened.len() as u32
    }

    /// Opens gates until `admitted` pods are past theirs, each for its domain. Returns the domains of the
    /// opened ones.
    pub(super) async fn open(
        &mut self,
        policy: &Policy,
        pods: &[&PodObject],
        admitted: u32,
        placements: &[Option<Placement>],
    ) -> Vec<Option<Placement>> {
        let topology = policy.rollout.as_ref().and_then(|rollout| rollout.topology.as_ref());
        let is_required = topology.is_some_and(|topology| topology.is_required);
        let mut opened = Vec::new();
        for (nth, pod) in gates::to_open(pods, admitted).into_iter().enumerate() {
            let placement = placements.get(nth).and_then(Option::as_ref);
            let Some(patch) = gates::opening(pod, placement, is_required).filter(|_| self.term.lasts())
            else {
                continue;
            };
            let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, pod.name());
            let patched: Result<Value, Problem> =
                self.term.write(self.cluster.patch(&path, PatchType::Json, &patch)).await;
            match patched {
                Ok(_) => opened.push(placement.cloned()),
                // The pod changed since it was read; the next tick reads it again.
                Err(Problem::NotFound(_) | Problem::Conflict(_) | Problem::Refused { code: 422, .. }) => {}
                Err(problem) => {
                    self.report_failure("scheduling gates of pods", &problem);
                    return opened;
                }
            }
        }
        if !opened.is_empty() {
            self.clear_problem("scheduling gates of pods");
        }
        opened
    }

    /// Forgets writers and admissions: another replica leads now.
    pub fn forget(&mut self) {
        self.writers.clear();
        self.let_through.clear();
        self.passing.clear();
        self.domain_counts.clear();
        self.closed_since.clear();
        self.closed_domains.clear();
        self.drains.clear();
        self.leaving.clear();
        self.unready_since.clear();
        self.events.clear();
        self.scalers = Arc::default();
        self.owned.clear();
    }

    /// Forgets the admissions of a role, by policy and role name.
    pub(super) fn forget_passed(&mut self, role: &(String, String)) {
        self.let_through.remove(role);
        self.passing.remove(role);
        self.domain_counts.remove(role);
        self.closed_since.remove(role);
        self.closed_domains.remove(role);
    }

    /// Restores the admissions of a policy's roles from its status, written by the previous leader, if the
    /// role selects the same pods.
    pub fn restore_admissions(&mut self, policy: &Policy, roles: &[RoleStatus]) {
        for role in &policy.roles {
            let key = (policy.name.clone(), role.name.clone());
            let Some(known) = roles.iter().find(|known| known.is_of(role)) else { continue };
            if let (Some(pods), false) = (known.let_through, self.let_through.contains_key(&key)) {
                self.let_through.insert(key.clone(), pods);
                if !known.domains.is_empty() {
                    let counts = known.domains.iter();
                    let counts = counts.map(|of| {
                        (Placement { layer: of.layer.clone(), domain: of.domain.clone() }, of.pods)
                    });
                    self.domain_counts.insert(key, DomainCounts::from_status(counts));
                }
            }
        }
    }

    /// Domains of a role's admitted pods, with the number in each.
    pub fn domains(&self, policy: &str, role: &str) -> Vec<DomainStatus> {
        let known = self.domain_counts.get(&(policy.to_owned(), role.to_owned()));
        let of = |(at, pods): (&Placement, u32)| {
            (pods > 0).then(|| DomainStatus { layer: at.layer.clone(), domain: at.domain.clone(), pods })
        };
        known.map(|known| known.counts().filter_map(of).collect()).unwrap_or_default()
    }

    /// Admitted pods of a role, without those that never existed; `None` if unknown.
    pub fn let_through(&self, policy: &str, role: &str) -> Option<u32> {
        let key = (policy.to_owned(), role.to_owned());
        let passing = self.passing.get(&key).copied().unwrap_or(u32::MAX);
        self.let_through.get(&key).map(|admitted| passing.min(*admitted))
    }

    /// Retires policies no longer in force, unless others now own their pods, and forgets admissions of roles
    /// with other pods. `unusable` are policies without a usable version.
    pub(super) fn retire(&mut self, now: &[Arc<Policy>], mut unusable: Vec<Arc<Policy>>) {
        // Their pods belong to policies in force, which decide about gates.
        unusable.retain(|policy| !shares_all_pods(policy, now.iter()));
        let all = || now.iter().chain(&unusable);
        let others = |(policy, role): &(&Arc<Policy>, &Role)| {
            let next = all().filter(|next| next.name == policy.name).flat_map(|next| &next.roles);
            let mut next = next.filter(|next| next.name == role.name);
            next.any(|next| !next.has_pods_of(role))
        };
        let known = self.policies.iter().chain(&self.unusable);
        let roles = known.flat_map(|policy| policy.roles.iter().map(move |role| (policy, role)));
        let changed: Vec<(String, String)> =
            roles.filter(others).map(|(policy, role)| (policy.name.clone(), role.name.clone())).collect();
        changed.iter().for_each(|role| self.forget_passed(role));
        let is_named = |policy: &Policy| all().any(|known| known.name == policy.name);
        let seen = self.clock.elapsed();
        let in_force: Vec<Arc<Policy>> = all().cloned().collect();
        let old: Vec<Arc<Policy>> = self.policies.iter().chain(&self.unusable).cloned().collect();
        self.note_updates_to_resume(&old, &in_force);
        // A policy without steps opens gates as well.
        let before = self.policies.drain(..).chain(self.unusable.drain(..));
        self.retired.extend(before.map(|policy| Retired { policy, seen }));
        self.retired.retain(|retired| !is_named(&retired.policy) && !shares_all_pods(&retired.policy, all()));
        (self.policies, self.unusable) = (now.to_vec(), unusable);
    }
}

/// Returns `true` if other policies have roles with the pods of each of a policy's roles. Pods of two targets
/// are told apart by their owners.
fn shares_all_pods<'a>(policy: &Policy, others: impl Iterator<Item = &'a Arc<Policy>>) -> bool {
    let others: Vec<&Role> = others.flat_map(|other| &other.roles).collect();
    let shares = |own: &Role, other: &Role| match (&own.target, &other.target) {
        (Some(own), Some(other)) => own == other,
        _ => own.selector == other.selector,
    };
    policy.roles.iter().all(|own| others.iter().any(|other| shares(own, other)))
}

fn log_opened(policy: &Policy, role: &str, opened: u32) {
    if opened > 0 {
        tracing::info!(policy = policy.name, role, opened, "scheduling gates opened for replacement pods");
    }
}
