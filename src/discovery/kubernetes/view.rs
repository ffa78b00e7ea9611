//! View of a pool, from the objects of the API server: which endpoints it has, whether
//! that is the whole picture, and the rules for its requests. No I/O and no clock.
//!
//! A pool that asks for other pods keeps the old ones until the new ones are listed, and
//! then changes over in one step, ports included. So there is no moment with endpoints
//! that belong to neither.

use std::collections::BTreeMap;

use crate::cluster::Change;
use crate::endpoints::{EndpointSpec, StartingPod};
use crate::request::Rules;
use crate::request::rules::{ModelRewrite, Rewrites};

use super::members::{active_ports, endpoints_of, starting};
use super::types::{
    AppProtocol, InferenceModelRewrite, InferenceObjective, InferencePool, Object, Pod, PoolReference,
};

/// Name of the pool that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolName {
    /// API group of the pool.
    pub group: String,
    /// Namespace of the pool.
    pub namespace: String,
    /// Name of the pool.
    pub name: String,
}

/// Update from the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Change of the pool.
    Pool(Change<InferencePool>),
    /// Change of the pods that were asked for under this number.
    Pods(Asked, Change<Pod>),
    /// Change of objectives. An empty list if the cluster has no such kind.
    Objectives(Change<InferenceObjective>),
    /// Change of rewrites. An empty list if the cluster has no such kind.
    Rewrites(Change<InferenceModelRewrite>),
}

/// The number of a question for pods: another selector, or a pool that is new again, is
/// another question.
pub type Asked = u64;

/// Parts of the view that an input changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The endpoints, or whether they are the whole picture.
    pub endpoints: bool,
    /// The rules.
    pub rules: bool,
}

impl std::ops::BitOrAssign for Changed {
    fn bitor_assign(&mut self, other: Self) {
        self.endpoints |= other.endpoints;
        self.rules |= other.rules;
    }
}

/// Labels, ports and protocol that a pool gives its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    selector: String,
    ports: Vec<u16>,
    protocol: Option<AppProtocol>,
}

/// The pods that are known, and what they were asked for as.
#[derive(Debug)]
struct Members {
    asked: Asked,
    shape: Shape,
    pods: BTreeMap<String, Pod>,
}

/// Objects that apply to this pool, by name; `None` until they were listed once.
type Known<S> = Option<BTreeMap<String, Object<S>>>;

/// State of a pool, as far as it is known.
#[derive(Debug)]
pub struct PoolView {
    name: PoolName,
    /// Shape of the endpoints that the pool asks for now, if there is one.
    wanted: Option<Shape>,
    asked: Asked,
    /// Pods that requests go to; `None`: there is no pool, or its pods were not listed yet.
    members: Option<Members>,
    objectives: Known<super::types::ObjectiveSpec>,
    rewrites: Known<super::types::RewriteSpec>,
}

impl PoolView {
    /// An InferencePool of which nothing is known yet.
    pub fn of_pool(name: PoolName) -> Self {
        Self { name, wanted: None, asked: 0, members: None, objectives: None, rewrites: None }
    }

    /// Pods by their labels, without an InferencePool and without rules.
    pub fn of_selector(name: PoolName, selector: String, ports: Vec<u16>) -> Self {
        let wanted = Some(Shape { selector, ports, protocol: None });
        let (objectives, rewrites) = (Some(BTreeMap::new()), Some(BTreeMap::new()));
        Self { name, wanted, asked: 1, members: None, objectives, rewrites }
    }

    /// Selector of the pods to follow now: those with these labels. A result of an earlier
    /// question still counts until this one has one.
    pub fn wants_pods(&self) -> Option<(Asked, &str)> {
        self.wanted.as_ref().map(|shape| (self.asked, shape.selector.as_str()))
    }

    /// The question whose result, the pods, requests get now.
    pub fn serves(&self) -> Option<Asked> {
        self.members.as_ref().map(|members| members.asked)
    }

    /// Takes in what the API server said.
    pub fn apply(&mut self, input: Input) -> Changed {
        match input {
            Input::Pool(change) => Changed { endpoints: self.pool(change), rules: false },
            Input::Pods(asked, change) => Changed { endpoints: self.pods(asked, change), rules: false },
            Input::Objectives(change) => {
                let first = self.objectives.is_none();
                let rules = keep(&self.name, &mut self.objectives, change, |spec| &spec.pool_ref);
                Changed { endpoints: first, rules }
            }
            Input::Rewrites(change) => {
                let first = self.rewrites.is_none();
                let rules = keep(&self.name, &mut self.rewrites, change, |spec| &spec.pool_ref);
                Changed { endpoints: first, rules }
            }
        }
    }

    fn pool(&mut self, change: Change<InferencePool>) -> bool {
        let pool = match change {
            // Asked for by its name, so there is one or none.
            Change::All(pools) => pools.into_iter().find(|pool| pool.metadata.name == self.name.name),
            Change::Put(pool) if pool.metadata.name == self.name.name => Some(pool),
            Change::Gone(pool) if pool.metadata.name == self.name.name => None,
            Change::Put(_) | Change::Gone(_) => return false,
        };
        let pool = pool.filter(|pool| pool.metadata.deletion_timestamp.is_none());
        let Some(pool) = pool else {
            self.wanted = None;
            return self.members.take().is_some();
        };
        let shape = Shape {
            selector: pool.spec.selector.to_query(),
            ports: pool.spec.target_ports.iter().map(|port| port.number).collect(),
            protocol: pool.spec.app_protocol,
        };
        if self.wanted.as_ref().is_none_or(|wanted| wanted.selector != shape.selector) {
            self.asked += 1;
        }
        self.wanted = Some(shape);
        self.reshape()
    }

    /// Applies changed ports or another protocol of the current pods at once.
    fn reshape(&mut self) -> bool {
        let (Some(members), Some(wanted)) = (&mut self.members, &self.wanted) else { return false };
        if members.asked != self.asked || members.shape == *wanted {
            return false;
        }
        members.shape.clone_from(wanted);
        true
    }

    fn pods(&mut self, asked: Asked, change: Change<Pod>) -> bool {
        let by_name = |pods: Vec<Pod>| pods.into_iter().map(|pod| (pod.name.clone(), pod)).collect();
        match (&mut self.members, change) {
            (Some(members), change) if members.asked == asked => match change {
                Change::All(pods) => {
                    let pods = by_name(pods);
                    let changed = members.pods != pods;
                    members.pods = pods;
                    changed
                }
                Change::Put(pod) => match members.pods.get_mut(&pod.name) {
                    Some(known) => {
                        let same = same_endpoints(known, &pod);
                        *known = pod;
                        !same
                    }
                    None => {
                        members.pods.insert(pod.name.clone(), pod);
                        true
                    }
                },
                Change::Gone(pod) => members.pods.remove(&pod.name).is_some(),
            },
            (_, Change::All(pods)) if asked == self.asked => {
                let Some(shape) = self.wanted.clone() else { return false };
                self.members = Some(Members { asked, shape, pods: by_name(pods) });
                true
            }
            // A result of a question that nobody asks any more.
            _ => false,
        }
    }

    /// The endpoints, in the order of their names.
    pub fn endpoints(&self) -> Vec<EndpointSpec> {
        let Some(members) = &self.members else { return Vec::new() };
        members.pods.values().flat_map(|pod| endpoints_of(pod, &members.shape.ports)).collect()
    }

    /// The pods that have no endpoint yet, in the order of their names.
    pub fn starting(&self) -> Vec<StartingPod> {
        let Some(members) = &self.members else { return Vec::new() };
        members.pods.values().filter_map(|pod| starting(pod, &members.shape.ports)).collect()
    }

    /// Returns `true` if the pool exists, and its pods and the rules for its requests are known.
    pub fn is_synced(&self) -> bool {
        self.members.is_some() && self.objectives.is_some() && self.rewrites.is_some()
    }

    /// Application protocol of the endpoints, where the pool says so.
    pub fn protocol(&self) -> Option<&AppProtocol> {
        self.members.as_ref().and_then(|members| members.shape.protocol.as_ref())
    }

    /// The rules for requests. They stay while the pool is gone: a request that waits for
    /// it to come back is the same request.
    pub fn rules(&self) -> Rules {
        let objectives = self.objectives.iter().flatten();
        let objectives = objectives.map(|(name, object)| (name.clone(), object.spec.priority.unwrap_or(0)));
        let rewrites: Vec<ModelRewrite> =
            self.rewrites.iter().flatten().map(|(_, object)| ModelRewrite::from(object)).collect();
        Rules { objectives: objectives.collect(), rewrites: Rewrites::new(&rewrites) }
    }

    /// Problems of pods, one line each, for the log.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let pods = self.members.iter().flat_map(|members| members.pods.values());
        pods.filter_map(|pod| {
            let (_, wrong) = active_ports(pod.active_ports.as_deref()?);
            let first = wrong.first()?;
            Some(format!(
                "pod {}: {first:?} in its annotation active-ports is not a port; it is ignored",
                pod.name
            ))
        })
    }
}

/// Returns `true` if two states of a pod make the same endpoints, or are as far from having some.
fn same_endpoints(known: &Pod, new: &Pod) -> bool {
    let Pod { name: _, namespace: _, version: _, uid, labels, active_ports, ip, node, ready, leaves } = known;
    *ready == new.ready
        && *uid == new.uid
        && *leaves == new.leaves
        && *ip == new.ip
        && *node == new.node
        && *active_ports == new.active_ports
        && *labels == new.labels
}

/// Keeps the objects that are about this pool. One that turns to another is gone. Says
/// whether anything changed.
fn keep<S: PartialEq>(
    pool: &PoolName,
    known: &mut Known<S>,
    change: Change<Object<S>>,
    reference: impl Fn(&S) -> &PoolReference,
) -> bool {
    let ours = |object: &Object<S>| {
        let reference = reference(&object.spec);
        reference.name == pool.name
            && reference.group == pool.group
            && object.metadata.deletion_timestamp.is_none()
    };
    let objects = known.get_or_insert_default();
    match change {
        Change::All(all) => {
            let all = all.into_iter().filter(ours);
            let all: BTreeMap<_, _> = all.map(|object| (object.metadata.name.clone(), object)).collect();
            let same = all.len() == objects.len()
                && all
                    .iter()
                    .all(|(name, object)| objects.get(name).is_some_and(|old| says_the_same(old, object)));
            *objects = all;
            !same
        }
        Change::Put(object) if ours(&object) => {
            let name = object.metadata.name.clone();
            let same = objects.get(&name).is_some_and(|old| says_the_same(old, &object));
            objects.insert(name, object);
            !same
        }
        Change::Put(object) | Change::Gone(object) => objects.remove(&object.metadata.name).is_some(),
    }
}

/// Age counts, as it decides between objects.
fn says_the_same<S: PartialEq>(old: &Object<S>, new: &Object<S>) -> bool {
    old.spec == new.spec && old.metadata.creation_timestamp == new.metadata.creation_timestamp
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
