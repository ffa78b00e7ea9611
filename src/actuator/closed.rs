//! Domains that take no more pods: none of their nodes is there, ready and schedulable. Pods that have to go to one
//! would wait for ever, and so would those that replace others there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::event::Kind;
use super::found::Homeless;
use super::hands::Hands;
use super::node::Needs;
use super::observe::Observed;
use super::places::{Places, place_of};
use super::pods::PodObject;
use crate::capacity::Policy;
use crate::capacity::rollout::Placement;
use crate::cluster::Problem;

/// For how long a domain that has nodes has to have taken no pod: a node may not be ready for a moment.
const CLOSED_FOR: Duration = Duration::from_secs(60);

/// Subject of complaints.
const ABOUT: &str = "pods that no domain takes";

/// Whether a node of a domain takes pods with these needs, room or not. `None`: it has no nodes.
fn takes<'n>(
    nodes: impl Iterator<Item = &'n super::node::NodeObject>,
    at: &Placement,
    needs: &Needs,
) -> Option<bool> {
    let there = nodes.filter(|node| node.labels().get(&at.layer) == Some(&at.domain));
    there.map(|node| node.takes(needs)).reduce(|one, other| one | other)
}

impl Hands {
    /// Notes which pods of a policy need another domain, as they have to be in one that takes none any more. `needs` are
    /// those of a pod of each role.
    pub(super) fn note_homeless(
        &mut self,
        policy: &Policy,
        needs: &[Option<Needs>],
        observed: &mut Observed,
        now: Duration,
    ) {
        let Some(rollout) = &policy.rollout else { return };
        let is_required = rollout.topology.as_ref().is_some_and(|topology| topology.is_required);
        for (place, role) in policy.roles.iter().enumerate() {
            let key = (policy.name.clone(), role.name.clone());
            let pods = observed.objects.get(place).map_or(&[][..], Vec::as_slice);
            let homeless = match needs.get(place) {
                Some(Some(needs)) if is_required && rollout.is_coordinated(place) => {
                    self.homeless(&key, pods, needs, observed.provisioning, now)
                }
                _ => {
                    self.closed.remove(&key);
                    Homeless::default()
                }
            };
            observed.homeless.push(homeless);
        }
    }

    fn homeless(
        &mut self,
        role: &(String, String),
        pods: &[Arc<PodObject>],
        needs: &Needs,
        is_adding: bool,
        now: Duration,
    ) -> Homeless {
        let all: Vec<&PodObject> = pods.iter().map(Arc::as_ref).collect();
        let there = Places::of(&all);
        let known = self.places.get(role).unwrap_or(&there);
        let domains: BTreeSet<Placement> = there.all().chain(known.all()).cloned().collect();
        let past = all.iter().filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32;
        let before = self.let_through.get(role).copied().unwrap_or(0);
        let missing = before.saturating_sub(past);
        let unknown = missing.saturating_sub(known.missing(&there, |_| true));
        let mut since = self.closed.remove(role).unwrap_or_default();
        {
            let nodes = self.nodes.as_ref().map(|all| all.nodes.objects());
            let nodes = || nodes.iter().flat_map(|nodes| nodes.iter()).flat_map(|nodes| nodes.values());
            since.retain(|at, _| domains.contains(at));
            for at in domains {
                match takes(nodes().map(Arc::as_ref), &at, needs) {
                    Some(true) => drop(since.remove(&at)),
                    Some(false) => drop(since.entry(at).or_insert(now)),
                    None => drop(since.insert(at, Duration::ZERO)),
                }
            }
        }
        let is_closed = |since: &Duration| since.is_zero() || now.saturating_sub(*since) >= CLOSED_FOR;
        // New nodes may be such of it.
        let closed: BTreeSet<Placement> = since
            .iter()
            .filter(|(_, since)| !is_adding && is_closed(since))
            .map(|(at, _)| at.clone())
            .collect();
        let is_stranded = |pod: &&Arc<PodObject>| {
            pod.wants_node() && !pod.has_own_volume() && place_of(pod).is_some_and(|at| closed.contains(&at))
        };
        let stranded: Vec<Arc<PodObject>> = pods.iter().filter(is_stranded).cloned().collect();
        // Their volumes are where they were.
        let lost = match all.iter().any(|pod| pod.has_own_volume()) {
            true => 0,
            false => known.missing(&there, |at| closed.contains(at)).saturating_add(unknown).min(missing),
        };
        let homeless = lost.saturating_add(stranded.len() as u32);
        self.closed.insert(role.clone(), since);
        Homeless { closed, stranded, pods: homeless }
    }

    /// Gives back pods of a role that wait for a node of a domain that takes none: others, that wait at their gate, are
    /// made in their place, and go where there is room.
    pub(super) async fn recall(&mut self, policy: &Policy, place: usize, seen: &Observed) {
        let (Some(role), Some(Some(target)), Some(homeless)) =
            (policy.roles.get(place), seen.targets.get(place), seen.homeless.get(place))
        else {
            return;
        };
        let mut given = 0;
        for pod in &homeless.stranded {
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
                "{given} pods of {} wait for a domain that takes none, and are made again in another by policy {}",
                role.name, policy.name
            );
            tracing::info!(policy = policy.name, role = role.name, given, "pods go to another domain");
            self.tell(&policy.name, target, Kind::Normal, "StepTrimmed", &message);
        }
    }
}
