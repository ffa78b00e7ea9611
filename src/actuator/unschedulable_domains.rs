//! Topology domains without a schedulable node: no node of the domain exists, is ready and accepts pods. Pods
//! bound to such a domain, and their replacements, are moved to another one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::cached_pods::Displaced;
use super::domain_counts::{DomainCounts, placement_of};
use super::event::Kind;
use super::node::Needs;
use super::observe::Observed;
use super::pods::PodObject;
use super::state::Actuator;
use crate::capacity::Policy;
use crate::capacity::policy::Mode;
use crate::capacity::rollout::Placement;
use crate::cluster::Problem;

/// Time after which a domain whose nodes accept no pods counts as closed: a node may be unready for a moment.
const CLOSED_FOR: Duration = Duration::from_secs(60);

/// Subject of problems with these evictions.
const SUBJECT: &str = "evictions of pods in closed domains";

/// Returns `true` if a node of a domain accepts pods with these needs, whatever its free capacity. `None`:
/// the domain has no nodes.
fn takes<'n>(
    nodes: impl Iterator<Item = &'n super::node::NodeObject>,
    at: &Placement,
    needs: &Needs,
) -> Option<bool> {
    let there = nodes.filter(|node| node.labels().get(&at.layer) == Some(&at.domain));
    there.map(|node| node.takes(needs)).reduce(|one, other| one | other)
}

impl Actuator {
    /// Records the pods of a policy that need another domain, because theirs is closed. `needs` are by role.
    pub(super) fn note_displaced(
        &mut self,
        policy: &Policy,
        needs: &[Option<Needs>],
        observed: &mut Observed,
        now: Duration,
    ) {
        let Some(rollout) = &policy.rollout else { return };
        let is_required = rollout.topology.as_ref().is_some_and(|topology| topology.is_required);
        let is_ours = policy.mode == Mode::Apply;
        let mut stay = Vec::new();
        for (place, role) in policy.roles.iter().enumerate() {
            let key = (policy.name.clone(), role.name.clone());
            let pods = observed.objects.get(place).map_or(&[][..], Vec::as_slice);
            let (displaced, staying) = match needs.get(place) {
                Some(Some(needs))
                    if is_required && is_ours && role.target.is_some() && rollout.is_coordinated(place) =>
                {
                    let body = observed.bodies.get(place).and_then(Option::as_ref);
                    let templates = body.and_then(|body| body.pointer("/spec/volumeClaimTemplates"));
                    let has_volumes = templates.and_then(Value::as_array).is_some_and(|all| !all.is_empty());
                    self.displaced(&key, pods, needs, (has_volumes, observed.provisioning), now)
                }
                _ => {
                    self.closed_since.remove(&key);
                    self.closed_domains.remove(&key);
                    (Displaced::default(), 0)
                }
            };
            observed.displaced.push(displaced);
            stay.push(staying);
        }
        // Their new domain needs capacity for pods of other roles still running there.
        if observed.displaced.iter().any(|of| of.pods > 0) {
            for (displaced, staying) in observed.displaced.iter_mut().zip(stay) {
                displaced.pods = displaced.pods.saturating_add(staying);
            }
        }
    }

    /// Closed domains of a role at the last observation that still don't accept one of its gated pods.
    pub(super) fn still_closed(&self, role: &(String, String), pods: &[&PodObject]) -> BTreeSet<Placement> {
        let mut shut = self.closed_domains.get(role).cloned().unwrap_or_default();
        let waits = pods.iter().find(|pod| pod.is_gated()).filter(|_| !shut.is_empty());
        if let (Some(pod), Some(all)) = (waits, &self.nodes) {
            let (needs, nodes) = (pod.own_needs(), all.nodes.objects());
            let nodes = || nodes.iter().flat_map(|nodes| nodes.values()).map(Arc::as_ref);
            shut.retain(|at| takes(nodes(), at, &needs) != Some(true));
        }
        shut
    }

    /// Pods of a role that need another domain, and the number that still run in closed domains.
    fn displaced(
        &mut self,
        role: &(String, String),
        pods: &[Arc<PodObject>],
        needs: &Needs,
        (has_volumes, is_adding): (bool, bool),
        now: Duration,
    ) -> (Displaced, u32) {
        let all: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
        let there = DomainCounts::of(&all);
        // Pods that wait for a node count in that domain: once evicted, they are missing there.
        let known = self.domain_counts.entry(role.clone()).or_insert_with(|| there.clone()).clone();
        let domains: BTreeSet<Placement> = there.all().chain(known.all()).cloned().collect();
        let mut since = self.closed_since.remove(role).unwrap_or_default();
        since.retain(|at, _| domains.contains(at));
        let listed = self.nodes.as_ref().map(|all| all.nodes.objects());
        let nodes =
            || listed.iter().flat_map(|nodes| nodes.iter()).flat_map(|nodes| nodes.values()).map(Arc::as_ref);
        for at in domains {
            match takes(nodes(), &at, needs) {
                Some(true) => drop(since.remove(&at)),
                Some(false) => {
                    let since = since.entry(at).or_insert(now);
                    *since = if since.is_zero() { now } else { *since };
                }
                None => drop(since.insert(at, Duration::ZERO)),
            }
        }
        let is_closed = |since: &Duration| since.is_zero() || now.saturating_sub(*since) >= CLOSED_FOR;
        // New nodes may belong to the domain.
        let closed: BTreeSet<Placement> = since
            .iter()
            .filter(|(_, since)| !is_adding && is_closed(since))
            .map(|(at, _)| at.clone())
            .collect();
        let is_in_closed = |pod: &PodObject| placement_of(pod).filter(|at| closed.contains(at));
        let is_stranded = |pod: &&Arc<PodObject>| {
            let at = Some(pod)
                .filter(|pod| pod.wants_node() && !pod.has_own_volume())
                .and_then(|pod| is_in_closed(pod));
            // Pods of another revision may have other requirements.
            at.is_some_and(|at| takes(nodes(), &at, &pod.own_needs()) != Some(true))
        };
        let stranded: Vec<Arc<PodObject>> = pods.iter().filter(is_stranded).cloned().collect();
        let past = all.iter().filter(|pod| pod.is_alive() && !pod.is_gated());
        // Admitted pods that never existed are not lost.
        let before = self.let_through(&role.0, &role.1).unwrap_or(0);
        let missing = before.saturating_sub(past.clone().count() as u32);
        let mut of_group = self.domain_counts.iter().filter(|((name, _), _)| *name == role.0);
        let has_beside =
            there.most(&closed).is_some() || of_group.any(|(_, counts)| counts.most(&closed).is_some());
        let unknown = missing.saturating_sub(known.missing(&there, |_| true));
        let unknown = if has_beside { 0 } else { unknown };
        let lost = known.missing(&there, |at| closed.contains(at)).saturating_add(unknown).min(missing);
        // Volumes are where they were, and of whom no pod is seen that isn't known.
        let is_bound = has_volumes || all.iter().any(|pod| pod.has_own_volume());
        let lost = if is_bound || all.is_empty() { 0 } else { lost };
        // Pods still running there will need capacity beside them.
        let there = past.filter(|pod| is_in_closed(pod).is_some()).count() as u32;
        let stay = if is_bound { 0 } else { there.saturating_sub(stranded.len() as u32) };
        drop(listed);
        self.closed_since.insert(role.clone(), since);
        match is_bound {
            true => drop(self.closed_domains.remove(role)),
            false => drop(self.closed_domains.insert(role.clone(), closed.clone())),
        }
        let pods = lost.saturating_add(stranded.len() as u32);
        (Displaced { closed, stranded, pods }, stay)
    }

    /// Evicts pods of a role that wait for a node of a closed domain. Their replacements wait at the gate
    /// until another domain is chosen.
    pub(super) async fn evict_displaced(&mut self, policy: &Policy, place: usize, seen: &Observed) {
        let (Some(role), Some(Some(target)), Some(displaced)) =
            (policy.roles.get(place), seen.targets.get(place), seen.displaced.get(place))
        else {
            return;
        };
        let mut evicted = 0;
        for pod in &displaced.stranded {
            // The pod may have a node by now.
            match self.evicts(pod, Some(&pod.metadata.resource_version), false).await {
                Ok(()) => evicted += 1,
                Err(Problem::NotFound(_) | Problem::Conflict(_)) => {}
                Err(problem) => {
                    self.report_failure(SUBJECT, &problem);
                    return;
                }
            }
        }
        if evicted > 0 {
            self.clear_problem(SUBJECT);
            let message = format!(
                "policy {} evicted {evicted} pods of role {}: their topology domain has no schedulable node",
                policy.name, role.name
            );
            tracing::info!(
                policy = policy.name,
                role = role.name,
                evicted,
                "pods evicted to move to another domain"
            );
            self.record_event(&policy.name, target, Kind::Normal, "StepTrimmed", &message);
        }
    }
}
