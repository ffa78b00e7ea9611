//! Watched state, and the two phases: observe and apply.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};

use super::cached_pods::CachedPods;
use super::domain_counts::DomainCounts;
use super::drain::Drain;
use super::event::Waiting;
use super::foreign::Writers;
use super::held_back::ResumedTarget;
use super::kinds::Kinds;
use super::leaving::Leaving;
use super::node::{Needs, NodeObject};
use super::pods::PodObject;
use super::problem_subject::ProblemSubject;
use super::scaler::{Owned, Scalers};
use super::selector::both;
use super::watch::Mirror;
use super::write::Write;
use crate::capacity::policy::Mode;
use crate::capacity::rollout::Placement;
use crate::capacity::{Condition, Policy};
use crate::cluster::{Cluster, Collection, LONGEST_RETRY_AFTER, Problem};
use crate::endpoints::Clock;
use crate::leader::Term;

/// Greatest age of known pods, in intervals of a policy; at least `OLDEST`, as the API server sends a
/// bookmark every 24 s.
pub(super) const OLDEST_INTERVALS: u32 = 3;
pub(super) const OLDEST: Duration = Duration::from_secs(45);

/// Time for the requests of one policy's plan: others wait meanwhile. The rest follows at the next tick. A
/// lease that isn't renewed ends sooner.
const LIMIT: Duration = Duration::from_secs(5);

/// Applies plans in one namespace.
#[derive(Debug)]
pub struct Actuator {
    /// Connection to the API server, without a shared time limit.
    pub(super) watched: Cluster,
    /// Connection with a time limit for all requests of a plan.
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
    pub(super) clock: Clock,
    /// Label selector of the pool's pods; `None` if there is no pool, or it is unknown.
    pub(super) pool: watch::Receiver<Option<String>>,
    /// Term in which this replica may write.
    pub(super) term: Arc<Term>,
    pub(super) kinds: Kinds,
    /// Labels of roles whose pods are watched.
    roles: Vec<BTreeMap<String, String>>,
    /// Pods of roles in the pool, by label selector.
    pub(super) pods: BTreeMap<String, Mirror<PodObject>>,
    /// Cached pods of policies, by name.
    pub(super) cached_pods: HashMap<String, CachedPods>,
    pub(super) nodes: Option<Nodes>,
    /// Writers of replicas, by policy and role.
    pub(super) writers: HashMap<(String, String), Writers>,
    /// Last writes, by policy and role.
    pub(super) writes: HashMap<(String, String), Write>,
    /// Admitted pods, by policy and role.
    pub(super) let_through: HashMap<(String, String), u32>,
    /// Pods that may pass their gate before the next observation, by policy and role.
    pub(super) passing: HashMap<(String, String), u32>,
    /// Notified when a pod of a role changes.
    changed: Arc<Notify>,
    /// Domains of pods past the gate, by policy and role.
    pub(super) domain_counts: BTreeMap<(String, String), DomainCounts>,
    /// Times since which domains of a role's pods accept none, by policy and role; 0: they have no node.
    pub(super) closed_since: HashMap<(String, String), BTreeMap<Placement, Duration>>,
    /// Closed domains of roles whose pods may move.
    pub(super) closed_domains: HashMap<(String, String), BTreeSet<Placement>>,
    /// Targets whose rolling updates are to be resumed.
    pub(super) resumed: Vec<ResumedTarget>,
    /// Draining pods, by policy and role.
    pub(super) drains: BTreeMap<(String, String), Drain>,
    /// Pods being evicted from trimmed steps, by policy and role.
    pub(super) leaving: BTreeMap<(String, String), Leaving>,
    /// Times since which roles keep their replicas because remaining pods are unready, by policy and role.
    pub(super) unready_since: HashMap<(String, String), Duration>,
    /// Autoscalers of the namespace, shared by all policies.
    pub(super) scalers: Arc<Mutex<Scalers>>,
    /// Owners of targets.
    pub(super) owned: Vec<Owned>,
    /// Conditions that block policies, by policy.
    pub(super) frozen: HashMap<String, Condition>,
    /// Policies in force, those without a usable version, and deleted ones.
    pub(super) policies: Vec<Arc<Policy>>,
    pub(super) unusable: Vec<Arc<Policy>>,
    pub(super) retired: Vec<Retired>,
    /// Subjects of reported problems that have not cleared.
    pub(super) reported: HashSet<ProblemSubject>,
    /// Problems since the phase began, as sentences.
    pub(super) problems: Vec<String>,
    /// Longest wait that the API server asked for since then.
    pub(super) pause: Duration,
    /// Failed writes since then, as sentences.
    pub(super) failed: Vec<String>,
    /// Refused evictions since then, as sentences.
    pub(super) refused: Vec<String>,
    /// Roles that keep their replicas since then because remaining pods are unready, as sentences.
    pub(super) unready: Vec<String>,
    /// Roles scaled down since then without draining, as sentences.
    pub(super) undrained: Vec<String>,
    /// `true` if requests are left since then for lack of time.
    pub(super) is_unfinished: bool,
    /// Policies with failed, refused or waiting writes, with the condition.
    pub(super) failing: HashSet<(String, Condition)>,
    /// Pending events, by policy.
    pub(super) events: HashMap<String, Waiting>,
}

/// A deleted policy.
#[derive(Clone, Debug)]
pub(super) struct Retired {
    pub(super) policy: Arc<Policy>,
    /// Last time at which it had pods, or they were unknown.
    pub(super) seen: Duration,
}

/// Mirrors of nodes and their pods, for the free capacity of nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) nodes: Mirror<NodeObject>,
    /// Pods of all namespaces with a node: its name, and their requirements.
    pub(super) pods: Mirror<(String, Needs)>,
}

impl Actuator {
    /// Actuator for this namespace and the pool with this label selector (`None`: unknown), in this term.
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
            cached_pods: HashMap::new(),
            nodes: None,
            writers: HashMap::new(),
            writes: HashMap::new(),
            let_through: HashMap::new(),
            passing: HashMap::new(),
            changed: Arc::default(),
            domain_counts: BTreeMap::new(),
            closed_since: HashMap::new(),
            closed_domains: HashMap::new(),
            resumed: Vec::new(),
            drains: BTreeMap::new(),
            leaving: BTreeMap::new(),
            unready_since: HashMap::new(),
            scalers: Arc::default(),
            owned: Vec::new(),
            frozen: HashMap::new(),
            policies: Vec::new(),
            unusable: Vec::new(),
            retired: Vec::new(),
            reported: HashSet::new(),
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

    /// Returns `true` if pods of this policy are observed: it is applied, or has a rollout.
    pub fn concerns(policy: &Policy) -> bool {
        policy.mode == Mode::Apply || policy.rollout.is_some()
    }

    /// Sets the policies whose pods are watched. `unusable` are policies without a usable version, for which
    /// only gates of replacement pods are opened.
    pub fn set_policies<'a>(
        &mut self,
        policies: impl Iterator<Item = &'a Arc<Policy>>,
        unusable: &[Arc<Policy>],
    ) {
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

    /// Forgets state of deleted policies.
    pub(super) fn forget_others(&mut self) {
        let policies = &self.policies;
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
        self.closed_since.retain(|role, _| roles.contains(role));
        self.closed_domains.retain(|role, _| roles.contains(role));
        // Deleted roles don't shrink.
        let is_attended = |name: &str| policies.iter().any(|policy| policy.name == name);
        let is_role = |role: &(String, String)| roles.contains(role) && is_attended(&role.0);
        self.drains.retain(|role, _| is_role(role));
        self.leaving.retain(|role, _| is_role(role));
        self.unready_since.retain(|role, _| is_role(role));
        self.events.retain(|name, _| is_attended(name));
        self.failing.retain(|(name, _)| is_attended(name));
        self.frozen.retain(|name, _| is_attended(name));
        let is_known = |subject: &ProblemSubject| match subject {
            ProblemSubject::Namespace(_) => true,
            ProblemSubject::Pods(_) => policies.iter().chain(others()).any(|policy| subject.concerns(policy)),
            // Targets of deleted policies are no longer read.
            ProblemSubject::Target(..) => policies.iter().any(|policy| subject.concerns(policy)),
        };
        self.reported.retain(is_known);
        let targets =
            || policies.iter().flat_map(|policy| &policy.roles).filter_map(|role| role.target.as_ref());
        self.owned.retain(|(of, ..)| targets().any(|target| target == of));
    }

    /// Watches the pods of roles in the current pool.
    pub(super) fn follow_pods(&mut self) {
        let pool = self.pool.borrow_and_update().clone();
        let wanted: HashSet<String> =
            pool.iter().flat_map(|pool| self.roles.iter().map(|role| both(role, pool))).collect();
        self.pods.retain(|selector, _| wanted.contains(selector));
        // Others may be followed under the same selector, which count their changes anew.
        self.cached_pods.clear();
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

    /// Namespace of the policies.
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

    /// Begins a phase: clears problems, and starts the time limit of its requests.
    pub(super) fn begin(&mut self) {
        self.problems.clear();
        self.pause = Duration::ZERO;
        self.failed.clear();
        self.is_unfinished = false;
        self.cluster = self.watched.within(LIMIT);
    }

    /// Returns `true` if a request since then timed out.
    pub fn is_late(&self) -> bool {
        self.cluster.is_late()
    }

    /// Returns `true` if requests are left for the next tick.
    pub fn is_unfinished(&self) -> bool {
        self.is_unfinished
    }

    /// Logs a problem once until it clears.
    pub(super) fn report_problem(&mut self, subject: impl Into<ProblemSubject>, problem: &Problem) {
        let known = subject.into();
        let subject = known.to_string();
        self.problems.push(format!("{subject}: {problem}"));
        self.pause = self.pause.max(problem.retry_after().min(LONGEST_RETRY_AFTER));
        if self.reported.insert(known) {
            tracing::warn!(subject, %problem, "capacity actuator cannot read or write");
        }
    }

    /// Reports a failed write. A conflict, or the end of the term, is no failure: the next observation
    /// decides. An unsent write is repeated.
    pub(super) fn report_failure(&mut self, subject: impl Into<ProblemSubject>, problem: &Problem) {
        let subject = subject.into();
        if *problem == Problem::Unsent {
            self.is_unfinished = true;
            return;
        }
        if !matches!(problem, Problem::Conflict(_)) && self.term.lasts() {
            self.failed.push(format!("{subject}: {problem}"));
        }
        self.report_problem(subject, problem);
    }

    /// Reason why the last observation failed, as a sentence.
    pub fn why_unobserved(&self) -> String {
        let seen = "nothing is written while pods or targets can't be read";
        if self.problems.is_empty() {
            return format!("{seen}: the pool or its pods are not known yet");
        }
        format!("{seen}: {}", self.problems.join("; "))
    }

    /// Longest wait that the API server asked for since the phase began.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Number of reported problems.
    #[cfg(test)]
    pub(super) fn reported_problems(&self) -> usize {
        self.reported.len()
    }

    /// Clears a reported problem.
    pub(super) fn clear_problem(&mut self, subject: impl Into<ProblemSubject>) {
        let subject = subject.into();
        if self.reported.remove(&subject) {
            let subject = subject.to_string();
            tracing::info!(subject, "capacity actuator recovered");
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
