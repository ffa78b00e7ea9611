//! What is followed and remembered to act on plans, and the two moves: to look, and to act.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::act::Write;
use super::foreign::Writers;
use super::kinds::Kinds;
use super::node::{Needs, NodeObject};
use super::pods::PodObject;
use super::watch::Mirror;
use crate::capacity::Policy;
use crate::capacity::policy::Mode;
use crate::cluster::{Cluster, Collection, Problem};
use crate::endpoints::Clock;

/// What is known of pods counts for so many intervals, and at least so long: the API server speaks every
/// 24 s, also when nothing changes.
pub(super) const OLDEST_INTERVALS: u32 = 3;
pub(super) const OLDEST: Duration = Duration::from_secs(45);

/// Acts in one namespace.
#[derive(Debug)]
pub struct Hands {
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    clock: Clock,
    pub(super) kinds: Kinds,
    /// The pods of roles, by selector.
    pub(super) pods: BTreeMap<String, Mirror<PodObject>>,
    pub(super) nodes: Option<Nodes>,
    /// Who writes, by policy and role.
    pub(super) writers: HashMap<(String, String), Writers>,
    /// What was written last, by policy and role.
    writes: HashMap<(String, String), Write>,
    /// What was complained of, and still is so.
    said: HashSet<String>,
}

/// What says how much room nodes have.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) nodes: Mirror<NodeObject>,
    /// The pods of all namespaces that have a node: its name, and what they ask for.
    pub(super) pods: Mirror<(String, Needs)>,
}

/// The labels of a role, as the API server takes them.
pub(super) fn selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

impl Hands {
    /// Acts in this namespace.
    pub fn new(cluster: Cluster, namespace: String, clock: Clock) -> Self {
        Self {
            cluster,
            namespace,
            clock,
            kinds: Kinds::default(),
            pods: BTreeMap::new(),
            nodes: None,
            writers: HashMap::new(),
            writes: HashMap::new(),
            said: HashSet::new(),
        }
    }

    /// Whether pods of this policy are looked at here: it acts, or says in which order pods come up.
    pub fn concerns(policy: &Policy) -> bool {
        policy.mode == Mode::Apply || policy.rollout.is_some()
    }

    /// Follows what these policies are about, and nothing else.
    pub fn attend<'a>(&mut self, policies: impl Iterator<Item = &'a Policy>) {
        let (mut wanted, mut roles, mut has_topology) = (HashSet::new(), HashSet::new(), false);
        for policy in policies.filter(|policy| Self::concerns(policy)) {
            wanted.extend(policy.roles.iter().map(|role| selector(&role.selector)));
            roles.extend(policy.roles.iter().map(|role| (policy.name.clone(), role.name.clone())));
            has_topology |= policy.rollout.as_ref().is_some_and(|rollout| rollout.topology.is_some());
        }
        self.pods.retain(|selector, _| wanted.contains(selector));
        self.writers.retain(|role, _| roles.contains(role));
        self.writes.retain(|role, _| roles.contains(role));
        for selector in wanted {
            let (cluster, clock) = (&self.cluster, &self.clock);
            let collection = Collection::new("", "v1", &self.namespace, "pods").with_labels(&selector);
            let keep = |pod: PodObject| (pod.name().to_owned(), pod.is_alive().then_some(pod));
            let start = || Mirror::start(cluster.clone(), collection, clock.clone(), keep);
            self.pods.entry(selector).or_insert_with(start);
        }
        if has_topology && self.nodes.is_none() {
            self.nodes = Some(Nodes::start(&self.cluster, &self.clock));
        } else if !has_topology {
            self.nodes = None;
        }
    }

    /// What was written last to a role's replicas.
    pub fn last_write(&self, policy: &str, role: &str) -> Option<&Write> {
        self.writes.get(&(policy.to_owned(), role.to_owned()))
    }

    pub(super) fn note(&mut self, policy: &str, role: &str, write: Write) {
        self.writes.insert((policy.to_owned(), role.to_owned()), write);
    }

    /// Says what went wrong, once until it goes well.
    pub(super) fn complain(&mut self, about: &str, problem: &Problem) {
        if self.said.insert(about.to_owned()) {
            tracing::warn!(about, %problem, "capacity can't look or act as it should");
        }
    }

    /// It goes well.
    pub(super) fn works(&mut self, about: &str) {
        if self.said.remove(about) {
            tracing::info!(about, "capacity looks and acts again");
        }
    }
}

impl Nodes {
    fn start(cluster: &Cluster, clock: &Clock) -> Self {
        let nodes = Collection::everywhere("", "v1", "nodes");
        let pods = Collection::everywhere("", "v1", "pods");
        let node = |node: NodeObject| (node.name().to_owned(), Some(node));
        Self {
            nodes: Mirror::start(cluster.clone(), nodes, clock.clone(), node),
            pods: Mirror::start(cluster.clone(), pods, clock.clone(), PodObject::on_node),
        }
    }
}
