//! State that is followed and remembered to act on plans, and the two moves: to look, and to act.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};

use super::domain_counts::DomainCounts;
use super::drain::Drain;
use super::event::Waiting;
use super::foreign::Writers;
use super::found::Found;
use super::held_back::ResumedTarget;
use super::kinds::Kinds;
use super::leaving::Leaving;
use super::node::{Needs, NodeObject};
use super::pods::PodObject;
use super::scaler::{Owned, Scalers};
use super::selector::both;
use super::subject::Subject;
use super::watch::Mirror;
use super::write::Write;
use crate::capacity::policy::Mode;
use crate::capacity::rollout::Placement;
use crate::capacity::{Condition, Policy};
use crate::cluster::{Cluster, Collection, LONGEST_RETRY_AFTER, Problem};
use crate::endpoints::Clock;
use crate::leader::Term;

/// Greatest age, in intervals of a policy, at which known pods still count; `OLDEST` at least, as the API
/// server speaks every 24 s, also when nothing changes.
pub(super) const OLDEST_INTERVALS: u32 = 3;
pub(super) const OLDEST: Duration = Duration::from_secs(45);

/// Time in which requests of one policy's acts are sent: others wait for their turn meanwhile. What is left goes on at
/// the next tick. A lease that isn't renewed ends sooner.
const LIMIT: Duration = Duration::from_secs(5);

/// Acts in one namespace.
#[derive(Debug)]
pub struct Actuator {
    /// The way to the API server, without a limit for what is asked of it together.
    pub(super) watched: Cluster,
    /// The same for acts, with one.
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) clock: Clock,
    /// The labels of the pool's pods; `None`: there is no pool, or it isn't known yet.
    pub(super) pool: watch::Receiver<Option<String>>,
    /// The time in which this replica may act.
    pub(super) term: Arc<Term>,
    pub(super) kinds: Kinds,
    /// The labels of roles whose pods are followed.
    roles: Vec<BTreeMap<String, String>>,
    /// The pods of roles in the pool, by the selector of both.
    pub(super) pods: BTreeMap<String, Mirror<PodObject>>,
    /// The pods of policies, by name, while none of them changes.
    pub(super) found: HashMap<String, Found>,
    pub(super) nodes: Option<Nodes>,
    /// Writers of replicas, by policy and role.
    pub(super) writers: HashMap<(String, String), Writers>,
    /// Last writes, by policy and role.
    pub(super) writes: HashMap<(String, String), Write>,
    /// Number of pods that were let through their gate, by policy and role.
    pub(super) let_through: HashMap<(String, String), u32>,
    /// Number of pods that may be past their gate until the next look, by policy and role.
    pub(super) passing: HashMap<(String, String), u32>,
    /// Notified when a pod of a role changes.
    changed: Arc<Notify>,
    /// Domains that pods past the gate were sent to, by policy and role.
    pub(super) domain_counts: BTreeMap<(String, String), DomainCounts>,
    /// Since when domains that pods of a role are in take none any more, by policy and role; 0: they have no node.
    pub(super) closed: HashMap<(String, String), BTreeMap<Placement, Duration>>,
    /// Closed domains of roles whose pods may go elsewhere.
    pub(super) shut: HashMap<(String, String), BTreeSet<Placement>>,
    /// Targets whose updates are held back without a policy.
    pub(super) resumed: Vec<ResumedTarget>,
    /// Pods that are about to go, by policy and role.
    pub(super) drains: BTreeMap<(String, String), Drain>,
    /// Pods of steps that were trimmed, by policy and role.
    pub(super) leaving: BTreeMap<(String, String), Leaving>,
    /// Since when roles keep their replicas because pods that stay aren't ready, by policy and role.
    pub(super) unready_since: HashMap<(String, String), Duration>,
    /// The autoscalers of the namespace, for all policies that act.
    pub(super) scalers: Arc<Mutex<Scalers>>,
    /// The owners of targets.
    pub(super) owned: Vec<Owned>,
    /// Conditions that keep policies from writing, by policy.
    pub(super) frozen: HashMap<String, Condition>,
    /// The policies in force, those of which no version can be used, and those that are gone.
    pub(super) attended: Vec<Arc<Policy>>,
    pub(super) unusable: Vec<Arc<Policy>>,
    pub(super) retired: Vec<Retired>,
    /// Subjects of problems that were reported and still hold.
    pub(super) said: HashSet<Subject>,
    /// Problems since the last observation began, in sentences.
    pub(super) problems: Vec<String>,
    /// For how long the API server asked to wait since then.
    pub(super) pause: Duration,
    /// Writes that failed since it was begun to act, in sentences.
    pub(super) failed: Vec<String>,
    /// Evictions that were refused since then, in sentences.
    pub(super) refused: Vec<String>,
    /// Roles that keep their replicas since then because pods that stay aren't ready, in sentences.
    pub(super) unready: Vec<String>,
    /// Roles that got smaller since then without pods that were chosen for it, in sentences.
    pub(super) undrained: Vec<String>,
    /// `true` if requests were left since then because those before took up the time.
    pub(super) is_unfinished: bool,
    /// Policies of which a write failed, was refused, or waits, by name, and what it is called.
    pub(super) failing: HashSet<(String, Condition)>,
    /// Events that wait to be sent, by policy.
    pub(super) events: HashMap<String, Waiting>,
}

/// A policy that is gone.
#[derive(Clone, Debug)]
pub(super) struct Retired {
    pub(super) policy: Arc<Policy>,
    /// Time at which it was last seen to have pods, or not to be known whether it has.
    pub(super) seen: Duration,
}

/// Mirrors of nodes and of their pods, which show how much room nodes have.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) nodes: Mirror<NodeObject>,
    /// The pods of all namespaces that have a node: its name, and what they ask for.
    pub(super) pods: Mirror<(String, Needs)>,
}

impl Actuator {
    /// Acts in this namespace on the pods of a pool, which have these labels (`None`: not known), in this
    /// term.
    pub fn new(
        cluster: Cluster,
        namespace: String,
        clock: Clock,
        pool: watch::Receiver<Option<String>>,
        term: Arc<Term>,
    ) -> Self {
        Self {
            watched: cluster.clone(),
            cluster,
            namespace,
            clock,
            pool,
            term,
            kinds: Kinds::default(),
            roles: Vec::new(),
            pods: BTreeMap::new(),
            found: HashMap::new(),
            nodes: None,
            writers: HashMap::new(),
            writes: HashMap::new(),
            let_through: HashMap::new(),
            passing: HashMap::new(),
            changed: Arc::default(),
            domain_counts: BTreeMap::new(),
            closed: HashMap::new(),
            shut: HashMap::new(),
            resumed: Vec::new(),
            drains: BTreeMap::new(),
            leaving: BTreeMap::new(),
            unready_since: HashMap::new(),
            scalers: Arc::default(),
            owned: Vec::new(),
            frozen: HashMap::new(),
            attended: Vec::new(),
            unusable: Vec::new(),
            retired: Vec::new(),
            said: HashSet::new(),
            problems: Vec::new(),
            pause: Duration::ZERO,
            failed: Vec::new(),
            refused: Vec::new(),
            unready: Vec::new(),
            undrained: Vec::new(),
            is_unfinished: false,
            failing: HashSet::new(),
            events: HashMap::new(),
        }
    }

    /// Returns `true` if pods of this policy are looked at here: it acts, or says in which order
    /// pods come up.
    pub fn concerns(policy: &Policy) -> bool {
        policy.mode == Mode::Apply || policy.rollout.is_some()
    }

    /// Follows what these policies are about, and nothing else. `unusable` are those of which no version can be
    /// used: only gates of pods that replace others are opened for them.
    pub fn attend<'a>(&mut self, policies: impl Iterator<Item = &'a Arc<Policy>>, unusable: &[Arc<Policy>]) {
        let policies: Vec<Arc<Policy>> = policies.filter(|policy| Self::concerns(policy)).cloned().collect();
        let unusable = unusable.iter().filter(|policy| Self::concerns(policy)).cloned().collect();
        self.retire(&policies, unusable);
        let mut has_topology = false;
        self.roles.clear();
        let others = self.unusable.iter().chain(self.retired.iter().map(|retired| &retired.policy));
        for policy in policies.iter().chain(others) {
            self.roles.extend(policy.roles.iter().map(|role| role.selector.clone()));
            has_topology |= policy.rollout.as_ref().is_some_and(|rollout| rollout.topology.is_some());
        }
        self.forget_others();
        self.follow_pods();
        if has_topology && self.nodes.is_none() {
            self.nodes = Some(Nodes::start(&self.watched, &self.clock));
        } else if !has_topology {
            self.nodes = None;
        }
    }

    /// Forgets what is remembered of policies that are gone.
    pub(super) fn forget_others(&mut self) {
        let policies = &self.attended;
        let others = || self.unusable.iter().chain(self.retired.iter().map(|retired| &retired.policy));
        let named = policies
            .iter()
            .chain(others())
            .flat_map(|policy| policy.roles.iter().map(|role| (policy.name.clone(), role.name.clone())));
        let roles: HashSet<(String, String)> = named.collect();
        self.writers.retain(|role, _| roles.contains(role));
        self.writes.retain(|role, _| roles.contains(role));
        self.let_through.retain(|role, _| roles.contains(role));
        self.passing.retain(|role, _| roles.contains(role));
        self.domain_counts.retain(|role, _| roles.contains(role));
        self.closed.retain(|role, _| roles.contains(role));
        self.shut.retain(|role, _| roles.contains(role));
        // Nobody is to make those smaller that are gone.
        let is_attended = |name: &str| policies.iter().any(|policy| policy.name == name);
        let is_role = |role: &(String, String)| roles.contains(role) && is_attended(&role.0);
        self.drains.retain(|role, _| is_role(role));
        self.leaving.retain(|role, _| is_role(role));
        self.unready_since.retain(|role, _| is_role(role));
        self.events.retain(|name, _| is_attended(name));
        self.failing.retain(|(name, _)| is_attended(name));
        self.frozen.retain(|name, _| is_attended(name));
        let is_known = |subject: &Subject| match subject {
            Subject::Namespace(_) => true,
            Subject::Pods(_) => policies.iter().chain(others()).any(|policy| subject.concerns(policy)),
            // Nobody looks at what those scaled that are gone.
            Subject::Target(..) => policies.iter().any(|policy| subject.concerns(policy)),
        };
        self.said.retain(is_known);
        let targets =
            || policies.iter().flat_map(|policy| &policy.roles).filter_map(|role| role.target.as_ref());
        self.owned.retain(|(of, ..)| targets().any(|target| target == of));
    }

    /// Follows the pods of roles that are of the pool as it is now. Of no pool there are none.
    pub(super) fn follow_pods(&mut self) {
        let pool = self.pool.borrow_and_update().clone();
        let wanted: HashSet<String> =
            pool.iter().flat_map(|pool| self.roles.iter().map(|role| both(role, pool))).collect();
        self.pods.retain(|selector, _| wanted.contains(selector));
        // Others may be followed under the same selector, which count their changes anew.
        self.found.clear();
        for selector in wanted {
            let (cluster, clock) = (&self.watched, &self.clock);
            let collection = Collection::new("", "v1", &self.namespace, "pods").with_labels(&selector);
            let keep = |pod: PodObject| (pod.name().to_owned(), pod.is_alive().then_some(pod));
            let start =
                || Mirror::start(cluster.clone(), collection, clock.clone(), keep, Arc::clone(&self.changed));
            self.pods.entry(selector).or_insert_with(start);
        }
    }

    /// Notified when a pod of a role changes.
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// The namespace that it acts in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Last write to a role's replicas.
    pub fn last_write(&self, policy: &str, role: &str) -> Option<&Write> {
        self.writes.get(&(policy.to_owned(), role.to_owned()))
    }

    pub(super) fn note(&mut self, policy: &str, role: &str, write: Write) {
        self.writes.insert((policy.to_owned(), role.to_owned()), write);
    }

    /// Begins a look, or acts: problems of the ones before are told, or are no more. All requests of acts up to
    /// the next time may take so long together.
    pub(super) fn begin(&mut self) {
        self.problems.clear();
        self.pause = Duration::ZERO;
        self.failed.clear();
        self.is_unfinished = false;
        self.cluster = self.watched.within(LIMIT);
    }

    /// Returns `true` if a request since then had no response in time.
    pub fn is_late(&self) -> bool {
        self.cluster.is_late()
    }

    /// Returns `true` if requests are left for the next tick.
    pub fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// Logs a problem once until it is resolved.
    pub(super) fn complain(&mut self, subject: impl Into<Subject>, problem: &Problem) {
        let subject = subject.into();
        let about = subject.to_string();
        self.problems.push(format!("{about}: {problem}"));
        self.pause = self.pause.max(problem.retry_after().min(LONGEST_RETRY_AFTER));
        if self.said.insert(subject) {
            tracing::warn!(about, %problem, "capacity actuator cannot read or write");
        }
    }

    /// Logs that a write failed. A conflict, or the end of the term, is no failure: it is looked
    /// again. One that wasn't sent goes on then.
    pub(super) fn fails(&mut self, subject: impl Into<Subject>, problem: &Problem) {
        let subject = subject.into();
        if *problem == Problem::Unsent {
            self.is_unfinished = true;
            return;
        }
        if !matches!(problem, Problem::Conflict(_)) && self.term.lasts() {
            self.failed.push(format!("{subject}: {problem}"));
        }
        self.complain(subject, problem);
    }

    /// Reason that the last observation saw too little, in a sentence.
    pub fn why_unobserved(&self) -> String {
        let seen = "nothing is written while pods or targets can't be read";
        if self.problems.is_empty() {
            return format!("{seen}: the pool or its pods are not known yet");
        }
        format!("{seen}: {}", self.problems.join("; "))
    }

    /// For how long the API server asked to wait since the last observation began.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Number of complaints that are remembered.
    #[cfg(test)]
    pub(super) fn complaints(&self) -> usize {
        self.said.len()
    }

    /// Takes a complaint back.
    pub(super) fn works(&mut self, subject: impl Into<Subject>) {
        let subject = subject.into();
        if self.said.remove(&subject) {
            let about = subject.to_string();
            tracing::info!(about, "capacity actuator recovered");
        }
    }
}

impl Nodes {
    fn start(cluster: &Cluster, clock: &Clock) -> Self {
        let nodes = Collection::everywhere("", "v1", "nodes");
        let pods = Collection::everywhere("", "v1", "pods");
        let node = |node: NodeObject| (node.name().to_owned(), Some(node));
        Self {
            nodes: Mirror::start(cluster.clone(), nodes, clock.clone(), node, Arc::default()),
            pods: Mirror::start(cluster.clone(), pods, clock.clone(), PodObject::on_node, Arc::default()),
        }
    }
}
