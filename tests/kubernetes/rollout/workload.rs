//! A Deployment of pickers: what its controllers and a kubelet do with it.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::ROLLOUT;
use crate::objects::Space;
use crate::picker::Picker;
use crate::server::Server;

/// Interval of readiness probes of a pod; one response counts.
const PROBE: Duration = Duration::from_secs(2);

/// Time until gateways know what a probe said.
const PROPAGATION: Duration = Duration::from_secs(1);

/// Interval at which the controllers look.
const TICK: Duration = Duration::from_millis(50);

/// `spec.replicas` and `spec.strategy.rollingUpdate` of a Deployment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strategy {
    pub(super) replicas: usize,
    pub(super) max_surge: usize,
    pub(super) max_unavailable: usize,
}

/// A pod and the process in it.
struct Pod {
    revision: String,
    picker: Picker,
    /// As the kubelet's last probe said.
    ready: bool,
    probe: Instant,
    /// `true` once it was asked to end.
    ends: bool,
}

/// A Deployment, and what gateways know of it.
pub(super) struct Deployment {
    server: &'static Server,
    space: Space,
    strategy: Strategy,
    flags: Vec<String>,
    /// Number of pods of each revision that there should be, the newest revision last.
    sets: Vec<(String, usize)>,
    pods: Vec<Pod>,
    created: usize,
    /// Addresses that changed, and when gateways learn of it.
    changes: Vec<(Instant, Vec<SocketAddr>)>,
    endpoints: watch::Sender<Vec<SocketAddr>>,
}

impl Deployment {
    /// With all pods of a first revision, of which as many are ready as will be.
    pub(super) async fn start(
        server: &'static Server,
        space: &Space,
        strategy: Strategy,
        flags: &[&str],
        revision: &str,
    ) -> Self {
        let mut deployment = Self {
            server,
            space: space.clone(),
            strategy,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            sets: vec![(revision.to_owned(), strategy.replicas)],
            pods: Vec::new(),
            created: 0,
            changes: Vec::new(),
            endpoints: watch::channel(Vec::new()).0,
        };
        deployment.until("the first pods to serve", |this| !this.endpoints.borrow().is_empty()).await;
        deployment
    }

    /// Ready pods, for gateways.
    pub(super) fn endpoints(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.endpoints.subscribe()
    }

    /// Replaces all pods by those of another revision, and waits until the old ones ended.
    pub(super) async fn roll_out(&mut self, revision: &str) {
        // Times of creation are whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        self.sets.push((revision.to_owned(), 0));
        let begun = Instant::now();
        self.until("the rollout to end", |this| {
            let current = this.pods.iter().all(|pod| pod.revision == revision);
            current && this.pods.len() == this.strategy.replicas && this.available(revision) > 0
        })
        .await;
        self.sets.retain(|(name, _)| name == revision);
        println!("rolled out {revision} in {:?}", begun.elapsed());
    }

    async fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < ROLLOUT, "waited {ROLLOUT:?} for {what}: {}", self.describe());
            self.reconcile();
            self.run_pods().await;
            self.publish();
            tokio::time::sleep(TICK).await;
        }
    }

    fn describe(&self) -> String {
        let pod = |pod: &Pod| format!("{} ready={} ends={}", pod.revision, pod.ready, pod.ends);
        format!("{:?} {:?}", self.sets, self.pods.iter().map(pod).collect::<Vec<_>>())
    }

    /// Pods of a revision that are ready and stay.
    fn available(&self, revision: &str) -> usize {
        self.pods.iter().filter(|pod| pod.revision == revision && pod.ready && !pod.ends).count()
    }

    /// One round of the Deployment controller: `rolloutRolling` of Kubernetes, which first
    /// makes the new set larger and then the old ones smaller.
    fn reconcile(&mut self) {
        let Strategy { replicas, max_surge, max_unavailable } = self.strategy;
        let all: usize = self.sets.iter().map(|(_, size)| size).sum();
        let Some(((newest, new), old)) = self.sets.split_last().map(|(last, old)| (last.clone(), old.len()))
        else {
            return;
        };
        if new < replicas && all < replicas + max_surge {
            self.sets[old].1 += (replicas + max_surge - all).min(replicas - new);
            return;
        }
        let least = replicas - max_unavailable;
        let unavailable = new - self.available(&newest).min(new);
        let Some(mut removable) = all.checked_sub(least + unavailable).filter(|count| *count > 0) else {
            return;
        };
        for index in 0..old {
            // First those that are no use.
            let useless = self.sets[index].1 - self.available(&self.sets[index].0).min(self.sets[index].1);
            let count = useless.min(removable);
            self.sets[index].1 -= count;
            removable -= count;
        }
        let available: usize = self.sets.iter().map(|(name, _)| self.available(name)).sum();
        let mut removable = available.saturating_sub(least);
        for index in 0..old {
            let count = self.sets[index].1.min(removable);
            self.sets[index].1 -= count;
            removable -= count;
        }
    }

    /// One round of the ReplicaSet controller and the kubelets.
    async fn run_pods(&mut self) {
        for (revision, size) in self.sets.clone() {
            let mine = |pod: &Pod| pod.revision == revision && !pod.ends;
            let count = self.pods.iter().filter(|pod| mine(pod)).count();
            for _ in count..size {
                self.create(&revision).await;
            }
            for _ in size..count {
                let unready = self.pods.iter().position(|pod| mine(pod) && !pod.ready);
                let Some(which) = unready.or_else(|| self.pods.iter().position(mine)) else { break };
                self.pods[which].ends = true;
                self.pods[which].picker.terminate();
            }
        }
        for pod in &mut self.pods {
            if Instant::now() >= pod.probe {
                pod.ready = pod.picker.is_healthy("readiness").await;
                pod.probe += PROBE;
            }
        }
        let mut running = Vec::new();
        for mut pod in self.pods.drain(..) {
            if !pod.ends || pod.picker.runs() {
                running.push(pod);
            }
        }
        self.pods = running;
    }

    async fn create(&mut self, revision: &str) {
        self.created += 1;
        let name = format!("epp-{revision}-{}", self.created);
        self.space.replica(&name, revision).await;
        let mut flags = vec!["--pool-name=p", "--pool-namespace", &self.space.name];
        flags.extend(self.flags.iter().map(String::as_str));
        let picker = Picker::of_pod(self.server, &name, &flags).await;
        let probe = Instant::now() + PROBE.mul_f64(rand::random());
        self.pods.push(Pod { revision: revision.to_owned(), picker, ready: false, probe, ends: false });
    }

    /// One round of the endpoint controller, and what of earlier ones has reached gateways.
    fn publish(&mut self) {
        let known = |pod: &&Pod| pod.ready && !pod.ends;
        let ready: Vec<_> = self.pods.iter().filter(known).map(|pod| pod.picker.extproc).collect();
        if self.changes.last().map_or_else(Vec::new, |(_, last)| last.clone()) != ready {
            self.changes.push((Instant::now() + PROPAGATION, ready));
        }
        let due = self.changes.iter().rev().find(|(at, _)| *at <= Instant::now());
        if let Some((_, due)) = due {
            self.endpoints.send_if_modified(|now| std::mem::replace(now, due.clone()) != *due);
        }
    }
}
