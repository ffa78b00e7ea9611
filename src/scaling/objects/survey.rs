//! Writes into the status of ClusterTopologies named by policies whether node labels match their layers. Only
//! by the leader, if it may read nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::follow::whenever_defined;
use super::kinds::{Node, TopologyObject};
use super::times::Times;
use crate::capacity::resource::topology::{Placed, TopologyStatus, status};
use crate::capacity::resource::{GROUP, TOPOLOGIES, VERSION};
use crate::cluster::{Change, Cluster, Collection, PatchType, Problem, WatchStatus};
use crate::endpoints::Clock;
use crate::leader::Term;

/// Interval of checks for leadership and due statuses.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two writes of the same status: nodes come and go.
const PAUSE: Duration = Duration::from_secs(15);
/// Capacity of the update channel.
const WAITING: usize = 64;

/// Surveys nodes for topologies.
pub struct Surveyor {
    cluster: Cluster,
    wanted: watch::Receiver<BTreeSet<String>>,
    /// Term in which this replica writes.
    term: Arc<Term>,
    times: Times,
}

/// Update from the API server.
enum SurveyUpdate {
    Topologies(Change<TopologyObject>),
    Nodes(Change<Node>),
}

impl Surveyor {
    /// Surveyor for the topologies of these names.
    pub fn new(
        cluster: Cluster,
        wanted: watch::Receiver<BTreeSet<String>>,
        clock: Clock,
        term: Arc<Term>,
    ) -> Self {
        Self { cluster, wanted, term, times: Times::start(clock) }
    }

    /// Surveys while a policy names a topology, until dropped.
    pub async fn run(mut self) {
        while self.wanted.wait_for(|names| !names.is_empty()).await.is_ok() {
            let mut until = self.wanted.clone();
            tokio::select! {
                () = self.survey() => return,
                _ = until.wait_for(BTreeSet::is_empty) => {}
            }
        }
    }

    async fn survey(&self) {
        let (sender, mut updates) = mpsc::channel(WAITING);
        let (keys, wanted_keys) = watch::channel(BTreeSet::new());
        let watch_status = || WatchStatus::new(self.times.clock.clone());
        let topologies = Collection::everywhere(GROUP, VERSION, TOPOLOGIES);
        let (of_topologies, of_nodes) = (watch_status(), watch_status());
        let writing = async {
            let mut survey = Survey::default();
            let mut ticks = interval(POLL_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    Some(update) = updates.recv() => {
                        survey.apply(update);
                        let wanted = self.wanted.borrow().clone();
                        keys.send_if_modified(|keys| {
                            let new = survey.keys(&wanted);
                            let is_new = new != *keys;
                            *keys = new;
                            is_new
                        });
                    }
                    _ = ticks.tick() => self.write_due(&mut survey).await,
                }
            }
        };
        tokio::join!(
            whenever_defined(&self.cluster, &topologies, &of_topologies, &sender, SurveyUpdate::Topologies),
            self.nodes(wanted_keys, &of_nodes, &sender),
            writing,
        );
    }

    /// Watches nodes, keeping the relevant labels. Other labels need another list.
    async fn nodes(
        &self,
        mut keys: watch::Receiver<BTreeSet<String>>,
        watch_status: &WatchStatus,
        sender: &mpsc::Sender<SurveyUpdate>,
    ) {
        let collection = Collection::everywhere("", "v1", "nodes");
        loop {
            let count = keys.borrow_and_update().clone();
            if count.is_empty() {
                if keys.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let trim = |change| SurveyUpdate::Nodes(trimmed(change, &count));
            tokio::select! {
                () = whenever_defined(&self.cluster, &collection, watch_status, sender, trim) => return,
                changed = keys.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn write_due(&self, survey: &mut Survey) {
        if !self.term.lasts() {
            survey.written.clear();
            return;
        }
        let now = self.times.clock.elapsed();
        let wanted = self.wanted.borrow().clone();
        for (name, uid, status) in survey.due(&wanted, now, &self.times.at(now)) {
            let path = format!("/apis/{GROUP}/{VERSION}/{TOPOLOGIES}/{name}/status");
            let patch = json!({"metadata": {"uid": uid}, "status": status});
            let patched = self.cluster.patch::<IgnoredAny>(&path, PatchType::Merge, &patch);
            let written = self.term.write(patched).await;
            if !self.term.lasts() {
                return;
            }
            survey.note(&name, uid, status, now, written.map(|_| ()));
        }
    }
}

impl std::fmt::Debug for Surveyor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surveyor").finish_non_exhaustive()
    }
}

/// Keeps labels of these keys only: a node has dozens, and a cluster has thousands of nodes.
fn trimmed(change: Change<Node>, keys: &BTreeSet<String>) -> Change<Node> {
    let trim = |mut node: Node| {
        node.metadata.labels.retain(|key, _| keys.contains(key));
        node
    };
    match change {
        Change::All(all) => Change::All(all.into_iter().map(trim).collect()),
        Change::Put(node) => Change::Put(trim(node)),
        Change::Gone(node) => Change::Gone(trim(node)),
    }
}

/// Known nodes and topologies, and written statuses. No I/O.
#[derive(Debug, Default)]
struct Survey {
    topologies: BTreeMap<String, Arc<TopologyObject>>,
    /// Labels by the node's name; `None` before the first list.
    nodes: Option<BTreeMap<String, BTreeMap<String, String>>>,
    /// By the topologies' uids.
    written: HashMap<String, WrittenStatus>,
}

#[derive(Debug)]
struct WrittenStatus {
    status: TopologyStatus,
    at: Duration,
    problem: Option<Problem>,
}

impl Survey {
    fn apply(&mut self, update: SurveyUpdate) {
        match update {
            SurveyUpdate::Topologies(Change::All(all)) => {
                let named = |object: TopologyObject| (object.metadata.name.clone(), Arc::new(object));
                self.topologies = all.into_iter().map(named).collect();
            }
            SurveyUpdate::Topologies(Change::Put(object)) => {
                self.topologies.insert(object.metadata.name.clone(), Arc::new(object));
            }
            SurveyUpdate::Topologies(Change::Gone(object)) => {
                self.topologies.remove(&object.metadata.name);
            }
            SurveyUpdate::Nodes(Change::All(all)) => {
                self.nodes =
                    Some(all.into_iter().map(|node| (node.metadata.name, node.metadata.labels)).collect());
            }
            SurveyUpdate::Nodes(Change::Put(node)) => {
                self.nodes.get_or_insert_default().insert(node.metadata.name, node.metadata.labels);
            }
            SurveyUpdate::Nodes(Change::Gone(node)) => {
                if let Some(nodes) = &mut self.nodes {
                    nodes.remove(&node.metadata.name);
                }
            }
        }
    }

    /// Label keys of these topologies.
    fn keys(&self, wanted: &BTreeSet<String>) -> BTreeSet<String> {
        let known = wanted.iter().filter_map(|name| self.topologies.get(name));
        known.flat_map(|object| object.spec.layers.iter().cloned()).collect()
    }

    /// Statuses to write now, each with the name and uid of its topology.
    fn due(
        &mut self,
        wanted: &BTreeSet<String>,
        now: Duration,
        time: &str,
    ) -> Vec<(String, String, TopologyStatus)> {
        let Some(nodes) = &self.nodes else { return Vec::new() };
        self.written.retain(|uid, _| self.topologies.values().any(|object| object.metadata.uid == *uid));
        let mut placed: Option<Vec<Placed<'_>>> = None;
        let mut due = Vec::new();
        for object in wanted.iter().filter_map(|name| self.topologies.get(name)) {
            let written = self.written.get(&object.metadata.uid);
            if written.is_some_and(|written| now.saturating_sub(written.at) < PAUSE) {
                continue;
            }
            let placed = placed
                .get_or_insert_with(|| nodes.iter().map(|(name, labels)| Placed { name, labels }).collect());
            let before = written.map_or(&object.status, |written| &written.status);
            let next = status(&object.spec.layers, placed, object.metadata.generation, before, time);
            if next != *before {
                due.push((object.metadata.name.clone(), object.metadata.uid.clone(), next));
            }
        }
        due
    }

    fn note(
        &mut self,
        name: &str,
        uid: String,
        status: TopologyStatus,
        at: Duration,
        written: Result<(), Problem>,
    ) {
        let old = self.written.remove(&uid);
        let record = match written {
            Ok(()) => WrittenStatus { status, at, problem: None },
            Err(problem) => {
                let seen = || self.topologies.get(name).map(|object| object.status.clone());
                let (before, last) = match old {
                    Some(old) => (old.status, old.problem),
                    None => (seen().unwrap_or_default(), None),
                };
                if last.as_ref() != Some(&problem) {
                    tracing::warn!(
                        topology = name,
                        %problem,
                        "cannot write the status of a ClusterTopology; it needs the verb patch for clustertopologies/status"
                    );
                }
                WrittenStatus { status: before, at, problem: Some(problem) }
            }
        };
        self.written.insert(uid, record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, labels: &[(&str, &str)]) -> Node {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn topology() -> TopologyObject {
        serde_json::from_value(json!({
            "metadata": {"name": "racks", "uid": "u", "generation": 1}, "spec": {"layers": ["rack", "zone"]},
        }))
        .unwrap()
    }

    #[test]
    fn changed_node_labels_update_the_topology_status() {
        let wanted = BTreeSet::from(["racks".to_owned()]);
        let (second, mut survey) = (Duration::from_secs(1), Survey::default());
        survey.apply(SurveyUpdate::Topologies(Change::All(vec![topology()])));
        assert!(survey.due(&wanted, second, "t1").is_empty(), "nothing is known of nodes");
        assert_eq!(survey.keys(&wanted).len(), 2);
        assert!(survey.keys(&BTreeSet::new()).is_empty());
        survey.apply(SurveyUpdate::Nodes(Change::All(vec![node("n1", &[("rack", "r1"), ("zone", "a")])])));
        assert!(survey.due(&BTreeSet::new(), second, "t1").is_empty(), "nobody asks");
        let (name, uid, status) = survey.due(&wanted, second, "t1").remove(0);
        assert_eq!((name.as_str(), status.conditions[0].status.as_str()), ("racks", "True"));
        survey.note(&name, uid, status, second, Ok(()));
        assert!(survey.due(&wanted, 60 * second, "t2").is_empty());
        survey.apply(SurveyUpdate::Nodes(Change::Put(node("n2", &[("rack", "r1"), ("zone", "b")]))));
        assert!(survey.due(&wanted, 15 * second, "t2").is_empty(), "too early");
        let (name, uid, status) = survey.due(&wanted, 16 * second, "t2").remove(0);
        let valid = &status.conditions[0];
        assert_eq!((valid.reason.as_str(), valid.last_transition_time.as_str()), ("ContainmentBroken", "t2"));
        survey.note(&name, uid, status, 16 * second, Err(Problem::Denied("no".to_owned())));
        assert_eq!(survey.due(&wanted, 31 * second, "t3").len(), 1, "tried again");
        survey.apply(SurveyUpdate::Nodes(Change::Gone(node("n2", &[]))));
        assert!(survey.due(&wanted, 31 * second, "t3").is_empty(), "as it was published last");
    }

    #[test]
    fn only_labels_that_count_are_kept() {
        let keys = BTreeSet::from(["rack".to_owned()]);
        let all = Change::All(vec![node("n1", &[("rack", "r1"), ("kubernetes.io/os", "linux")])]);
        assert_eq!(trimmed(all, &keys), Change::All(vec![node("n1", &[("rack", "r1")])]));
    }
}
