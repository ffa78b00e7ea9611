//! Domains that take no more pods: none of their nodes is there, ready and schedulable. Pods that have to go to one
//! would wait for ever, and so would those that replace others there.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::event::Kind;
use super::found::Objects;
use super::hands::Hands;
use super::node::Needs;
use super::observe::Observed;
use super::places::{Places, place_of};
use super::pods::PodObject;
use crate::capacity::Policy;
use crate::capacity::rollout::Placement;
use crate::cluster::Problem;

/// Subject of complaints.
const ABOUT: &str = "pods that no domain takes";

impl Hands {
    /// Domain of pods of a role that replace others of which nobody knows where they were: the one with most of its
    /// pods, or else of its group's.
    pub(super) fn beside<'a>(
        &'a self,
        policy: &str,
        now: &'a Places,
        closed: &BTreeSet<Placement>,
    ) -> Option<&'a Placement> {
        let mut of_group = self.places.iter().filter(|((name, _), _)| name == policy);
        now.most(closed).or_else(|| of_group.find_map(|(_, places)| places.most(closed)))
    }

    /// Notes where a policy's pods were sent and none can go any more, if they have to be in one domain, and how many
    /// of them have a place left. `needs` are those of a pod of each role.
    pub(super) fn note_closed(&mut self, policy: &Policy, needs: &[Option<Needs>], observed: &mut Observed) {
        let Some(rollout) = &policy.rollout else { return };
        let is_required = rollout.topology.as_ref().is_some_and(|topology| topology.is_required);
        for (place, role) in policy.roles.iter().enumerate() {
            let key = (policy.name.clone(), role.name.clone());
            let needs = needs.get(place).and_then(Option::as_ref);
            let pods = observed.objects.get(place).map_or(&[][..], Vec::as_slice);
            let pods: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
            let (Some(needs), true) = (needs, is_required && rollout.is_coordinated(place)) else {
                self.closed.remove(&key);
                observed.placed.push(u32::MAX);
                continue;
            };
            let now = Places::of(&pods);
            let known = self.places.get(&key).unwrap_or(&now);
            let of_group = self.places.iter().filter(|((name, _), _)| *name == policy.name);
            let all = now.all().chain(known.all()).chain(of_group.flat_map(|(_, places)| places.all()));
            let all: BTreeSet<Placement> = all.filter(|at| !self.takes(at, needs)).cloned().collect();
            self.closed.insert(key.clone(), all);
            let before = self.let_through.get(&key).copied().unwrap_or(0);
            let lost = self.lost(&key, &pods, before);
            let stranded = self.stranded(&key, &observed.objects, place, observed.provisioning);
            let lost = lost.saturating_add(stranded.len() as u32);
            observed.placed.push(if lost > 0 { before.saturating_sub(lost) } else { u32::MAX });
            if !stranded.is_empty() {
                // Others will wait at a gate in their place.
                let names: BTreeSet<&str> = stranded.iter().map(|pod| pod.name()).collect();
                let all = Arc::make_mut(&mut observed.pods).iter_mut();
                all.filter(|pod| pod.role == place && names.contains(&*pod.name))
                    .for_each(|pod| pod.state.is_gated = true);
            }
        }
    }

    /// Pods of a role, of `before` that were let through, that are missing and can't be made again where they were.
    pub(super) fn lost(&self, role: &(String, String), pods: &[&PodObject], before: u32) -> u32 {
        let Some(closed) = self.closed.get(role).filter(|closed| !closed.is_empty()) else { return 0 };
        let now = Places::of(pods);
        let past = pods.iter().filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32;
        let missing = before.saturating_sub(past);
        let known = self.places.get(role).unwrap_or(&now);
        // Of those it isn't known where they were.
        let others = missing.saturating_sub(known.missing(&now, |_| true));
        let others = if self.beside(&role.0, &now, closed).is_some() { 0 } else { others };
        known.missing(&now, |at| closed.contains(at)).saturating_add(others).min(missing)
    }

    /// Pods of a role that wait for a node of a domain that takes none. While nodes are added, these may be such of it.
    fn stranded(
        &self,
        role: &(String, String),
        objects: &Objects,
        place: usize,
        is_adding: bool,
    ) -> Vec<Arc<PodObject>> {
        let Some(closed) = self.closed.get(role).filter(|closed| !closed.is_empty() && !is_adding) else {
            return Vec::new();
        };
        let is_stranded =
            |pod: &&Arc<PodObject>| pod.wants_node() && place_of(pod).is_some_and(|at| closed.contains(&at));
        objects.get(place).into_iter().flatten().filter(is_stranded).cloned().collect()
    }

    /// Whether a node of a domain takes pods with these needs, room or not. Where it isn't known it may.
    fn takes(&self, at: &Placement, needs: &Needs) -> bool {
        let nodes = self.nodes.as_ref().map(|all| all.nodes.objects());
        let Some(nodes) = nodes.as_ref().and_then(|nodes| nodes.as_ref()) else { return true };
        let mut there = nodes.values().filter(|node| node.labels().get(&at.layer) == Some(&at.domain));
        there.any(|node| node.takes(needs))
    }

    /// Gives back pods of a role that wait for a node of a domain that takes none: others, that wait at their gate, are
    /// made in their place.
    pub(super) async fn recall(&mut self, policy: &Policy, place: usize, seen: &Observed) {
        let (Some(role), Some(Some(target))) = (policy.roles.get(place), seen.targets.get(place)) else {
            return;
        };
        let key = (policy.name.clone(), role.name.clone());
        let stranded = self.stranded(&key, &seen.objects, place, seen.provisioning);
        let mut given = 0;
        for pod in &stranded {
            // It may have got its node by now.
            match self.evicts(pod, Some(&pod.metadata.resource_version), false).await {
                Ok(()) => given += 1,
                Err(Problem::NotFound(_) | Problem::Conflict(_)) => {}
                Err(problem) => {
                    self.fails(ABOUT, &problem);
                    return;
                }
            }
        }
        if given > 0 {
            self.works(ABOUT);
            let message = format!(
                "{given} pods of {} wait for a domain that takes none, and are given back by policy {}",
                role.name, policy.name
            );
            tracing::info!(
                policy = policy.name,
                role = role.name,
                given,
                "pods given back that no domain takes"
            );
            self.tell(&policy.name, target, Kind::Normal, "StepTrimmed", &message);
        }
    }
}
