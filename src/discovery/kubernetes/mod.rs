//! Endpoints from Kubernetes: the pods of an InferencePool, or those that a label selector
//! finds, as they become ready and go away; and the rules for the pool's requests.
//!
//! Tasks follow the objects (`sources.rs`), [`PoolView`] knows what they come to, and
//! [`KubernetesDiscovery`] makes it so.

mod groups;
mod members;
mod metrics;
mod sources;
pub mod types;
mod view;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, WatchStatus};
use crate::endpoints::{Change, Clock, Store};
use crate::request::RuleBook;

pub use metrics::WatchCollector;
pub use types::AppProtocol;
pub use view::{Asked, Changed, Input, PoolName, PoolView};

use sources::Source;

/// Changes that wait to be made; those of a burst are made together.
const WAITING: usize = 1024;

/// Pause before following everything anew after a mistake of the program.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Pods that are endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Pods of an InferencePool.
    Pool,
    /// Pods with these labels, in the syntax of `kubectl -l`, at these ports.
    Selector {
        /// The labels.
        labels: String,
        /// The ports, each an endpoint.
        ports: Vec<u16>,
    },
}

/// State of the pool as a whole, as discovery knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// `true` if the pool exists, and its pods and rules are known.
    pub synced: bool,
    /// Application protocol of its pods, where it says so.
    pub protocol: Option<AppProtocol>,
    /// The labels of its pods, in the syntax of `kubectl -l`; `None`: there is no pool.
    pub selector: Option<String>,
}

/// Discovery by the Kubernetes API server.
pub struct KubernetesDiscovery {
    cluster: Cluster,
    name: PoolName,
    membership: Membership,
    watch_statuses: WatchStatuses,
    keeper: Keeper,
}

/// Watch status of each kind of objects.
#[derive(Clone, Debug)]
struct WatchStatuses {
    pool: Arc<WatchStatus>,
    pods: Arc<WatchStatus>,
    objectives: Arc<WatchStatus>,
    rewrites: Arc<WatchStatus>,
}

impl KubernetesDiscovery {
    /// Discovery of a pool into the store and the rules. `report` hears of the pool as a
    /// whole: before endpoints go when it is gone, and after they came when it is there.
    pub fn new(
        cluster: Cluster,
        name: PoolName,
        membership: Membership,
        store: Arc<Store>,
        rules: Arc<RuleBook>,
        clock: &Clock,
        report: impl FnMut(PoolStatus) + Send + 'static,
    ) -> Self {
        let view = match &membership {
            Membership::Pool => PoolView::of_pool(name.clone()),
            Membership::Selector { labels, ports } => {
                PoolView::of_selector(name.clone(), labels.clone(), ports.clone())
            }
        };
        let watch_status = || Arc::new(WatchStatus::new(clock.clone()));
        let watch_statuses = WatchStatuses {
            pool: watch_status(),
            pods: watch_status(),
            objectives: watch_status(),
            rewrites: watch_status(),
        };
        let report = Box::new(report);
        let (pods, problems) = (Vec::new(), BTreeSet::new());
        let keeper = Keeper { view, store, rules, report, pods, reported: None, problems };
        Self { cluster, name, membership, watch_statuses, keeper }
    }

    /// Metrics of the watches.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is not valid.
    pub fn metrics(&self) -> prometheus::Result<WatchCollector> {
        let WatchStatuses { pool, pods, objectives, rewrites } = &self.watch_statuses;
        let mut kinds = vec![("pods", Arc::clone(pods))];
        if self.membership == Membership::Pool {
            kinds.push(("inferencepools", Arc::clone(pool)));
            kinds.push(("inferenceobjectives", Arc::clone(objectives)));
            kinds.push(("inferencemodelrewrites", Arc::clone(rewrites)));
        }
        WatchCollector::new(kinds)
    }

    /// Follows the cluster. Drop it to end.
    pub async fn run(mut self) {
        loop {
            self.follow().await;
            tracing::error!("watch of Kubernetes objects ended unexpectedly, restarting; please report this");
            tokio::time::sleep(AFTER_PANIC).await;
        }
    }

    /// Returns when a task panicked.
    async fn follow(&mut self) {
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let source = |watch_status: &Arc<WatchStatus>| Source {
            cluster: self.cluster.clone(),
            sender: sender.clone(),
            watch_status: Arc::clone(watch_status),
        };
        let WatchStatuses { pool, pods, objectives, rewrites } = &self.watch_statuses;
        let mut tasks = JoinSet::new();
        if self.membership == Membership::Pool {
            let namespace = || self.name.namespace.clone();
            tasks.spawn(source(pool).pool(self.name.clone()));
            tasks.spawn(source(objectives).rules(namespace(), "inferenceobjectives", Input::Objectives));
            tasks.spawn(source(rewrites).rules(namespace(), "inferencemodelrewrites", Input::Rewrites));
        }
        let pods = source(pods);
        self.keeper.pods.clear();
        self.keeper.follow_pods(&pods, &self.name.namespace);
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                _ = receiver.recv_many(&mut batch, WAITING) => {}
                Some(_) = tasks.join_next() => return,
            }
            self.keeper.take(batch.drain(..));
            self.keeper.follow_pods(&pods, &self.name.namespace);
            if self.keeper.pods.iter().any(|(_, task)| task.is_finished()) {
                return;
            }
        }
    }
}

impl std::fmt::Debug for KubernetesDiscovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesDiscovery").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Makes what is known of a pool true: the only writer of endpoints and rules.
struct Keeper {
    view: PoolView,
    store: Arc<Store>,
    rules: Arc<RuleBook>,
    report: Box<dyn FnMut(PoolStatus) + Send>,
    /// The tasks that follow pods: for what is served, and for what is wanted.
    pods: Vec<(Asked, AbortOnDropHandle<()>)>,
    reported: Option<PoolStatus>,
    /// Problems of pods at the last look, all of them logged.
    problems: BTreeSet<String>,
}

impl Keeper {
    fn take(&mut self, inputs: impl Iterator<Item = Input>) {
        let mut changed = Changed::default();
        inputs.for_each(|input| changed |= self.view.apply(input));
        if changed.rules {
            self.rules.replace(self.view.rules());
        }
        if !changed.endpoints {
            return;
        }
        let status = PoolStatus {
            synced: self.view.is_synced(),
            protocol: self.view.protocol().cloned(),
            selector: self.view.wants_pods().map(|(_, selector)| selector.to_owned()),
        };
        // Health says that requests can't be served before they can't, and that they can
        // after they can.
        if !status.synced {
            self.log_status(&status);
        }
        self.store.note_starting(self.view.starting());
        let Change { added, removed, updated } = self.store.replace(self.view.endpoints());
        if added + removed + updated > 0 {
            let endpoints = self.store.snapshot().endpoints().len();
            tracing::info!(endpoints, added, removed, updated, "endpoints changed");
        }
        for problem in unheard(&mut self.problems, self.view.problems()) {
            tracing::warn!(problem, "invalid pod annotation ignored");
        }
        self.log_status(&status);
    }

    fn log_status(&mut self, status: &PoolStatus) {
        if self.reported.as_ref() == Some(status) {
            return;
        }
        let PoolStatus { synced, protocol, .. } = status;
        tracing::info!(
            synced,
            protocol = protocol.as_ref().map(AppProtocol::name),
            "InferencePool status changed"
        );
        self.reported = Some(status.clone());
        (self.report)(status.clone());
    }

    /// Follows the pods that are wanted, and until they are known those that are served.
    fn follow_pods(&mut self, source: &Source, namespace: &str) {
        let (wants, serves) = (self.view.wants_pods(), self.view.serves());
        let wanted = wants.map(|(asked, _)| asked);
        self.pods.retain(|(asked, _)| Some(*asked) == wanted || (wanted.is_some() && Some(*asked) == serves));
        if let Some((asked, selector)) = wants
            && self.pods.iter().all(|(known, _)| *known != asked)
        {
            let follow = source.clone().pods(namespace.to_owned(), asked, selector.to_owned());
            self.pods.push((asked, AbortOnDropHandle::new(tokio::spawn(follow))));
        }
    }
}

/// Returns the problems that were not there at the last look, and remembers all of them.
fn unheard(known: &mut BTreeSet<String>, problems: impl Iterator<Item = String>) -> Vec<String> {
    let now: BTreeSet<String> = problems.collect();
    let new = now.difference(known).cloned().collect();
    *known = now;
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_problem_is_reported_once() {
        let mut known = BTreeSet::new();
        let mut logged =
            |problems: &[&str]| unheard(&mut known, problems.iter().map(|&text| text.to_owned()));
        assert_eq!(logged(&["a", "b"]), ["a", "b"]);
        assert!(logged(&["a", "b"]).is_empty());
        assert_eq!(logged(&["b", "c"]), ["c"]);
        assert_eq!(logged(&["a"]), ["a"], "it was gone meanwhile");
    }
}
