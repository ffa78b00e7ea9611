//! The task that takes part in an election.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::election::{Election, Fitness, Next, Timing};
use super::object::{LeaseName, asking, given_up, handed, record, taken};
use super::revision::Revision;
use super::term::Term;
use crate::cluster::{Backoff, Change, Cluster, Collection, Ended, Problem, WatchStatus, Watched, follow};
use crate::endpoints::Clock;

/// Time for one request about the lease: several fit into a lease.
const REQUEST: Duration = Duration::from_millis(1500);

/// Interval at which a replica that could not be ready looks whether it could.
const UNABLE: Duration = Duration::from_millis(50);

/// Properties of a replica, apart from the election.
#[derive(Debug)]
pub struct Replica<F> {
    /// Name of the replica in the election: its own alone, also after a restart.
    pub identity: String,
    /// The pod that it runs in, if it may be one: the namespace and the name.
    pub pod: Option<(String, String)>,
    /// Fitness to lead now.
    pub fitness: F,
    /// Durations of the election.
    pub timing: Timing,
    /// The time in which it may act on the cluster.
    pub term: Arc<Term>,
}

/// Takes part in an election until `stop`, and gives the lease up then. `ready` is called
/// whenever this replica begins or ceases to be one for a gateway to send requests to.
pub async fn elect(
    cluster: Cluster,
    name: LeaseName,
    replica: Replica<impl Fn() -> Fitness>,
    clock: Clock,
    stop: impl Future<Output = ()>,
    ready: impl Fn(bool),
) {
    let Replica { identity, pod, fitness, timing, term } = replica;
    let (wake, mut changed) = mpsc::channel(1);
    let election = Election::new(identity, timing);
    let mut holder =
        Holder { cluster: cluster.clone(), name: name.clone(), election, clock, term, lease: None };
    let identity = holder.election.identity().to_owned();
    let watching = watch_changes(cluster.clone(), name.collection(), identity, holder.clock.clone(), wake);
    let _watching = AbortOnDropHandle::new(tokio::spawn(watching));
    let (learn, revision) = watch::channel(None);
    let _learning = pod.map(|(namespace, pod)| {
        AbortOnDropHandle::new(tokio::spawn(async move {
            learn.send_replace(revision_of(&cluster, &namespace, &pod).await);
        }))
    });
    let mut stop = std::pin::pin!(stop);
    let holding = async {
        let mut reports = Reports::default();
        let mut last = (false, false);
        loop {
            holder.election.set_revision(revision.borrow().clone());
            let fit = fitness();
            holder.election.set_fitness(fit);
            let pause = holder.turn(&mut reports).await;
            let now = (holder.election.holds(), holder.election.is_ready(holder.clock.elapsed()));
            if now != last {
                let (leads, ready) = now;
                tracing::info!(
                    leads,
                    ready,
                    lease = name.name,
                    identity = holder.election.identity(),
                    "leader election state changed"
                );
            }
            if now.1 != last.1 {
                ready(now.1);
            }
            last = now;
            let mut pause = std::pin::pin!(tokio::time::sleep(pause));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    // Our own writes wake us, too. Looking at them makes no sense.
                    Some(is_ours) = changed.recv() => if !(now.0 && is_ours) { break },
                    () = tokio::time::sleep(UNABLE), if fit == Fitness::Unable => {
                        if fitness() != Fitness::Unable { break }
                    }
                    () = &mut stop => return,
                }
            }
        }
    };
    holding.await;
    holder.give_up().await;
}

/// The revision that a pod belongs to, asked for until the API server says it, or that it
/// won't.
async fn revision_of(cluster: &Cluster, namespace: &str, pod: &str) -> Option<Revision> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    loop {
        match cluster.get::<PartialObjectMeta>(&path).await {
            Ok(found) => {
                let revision = Revision::of_pod(&found.metadata);
                let hash = revision.as_ref().map(|revision| revision.hash.as_str());
                tracing::debug!(pod, revision = hash, "revision of this replica");
                return revision;
            }
            // No pod of this name, or not in this namespace: nothing that could change.
            Err(problem @ (Problem::NotFound(_) | Problem::Denied(_))) => {
                tracing::info!(
                    pod,
                    namespace,
                    %problem,
                    "revision of this replica is not known, so it neither asks for the lease nor hands it over"
                );
                return None;
            }
            Err(_) => {
                let pause = backoff.next(&mut rand::rng());
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// An object, of which the rest doesn't matter here.
#[derive(Deserialize)]
struct PartialObjectMeta {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// Sends every change of the lease, and whether this replica holds it then. Without the right to
/// watch it, one has to look from time to time.
async fn watch_changes(
    cluster: Cluster,
    collection: Collection,
    identity: String,
    clock: Clock,
    wake: mpsc::Sender<bool>,
) {
    let watch_status = WatchStatus::new(clock);
    let is_ours = |lease: &Version| lease.spec.holder_identity.as_ref() == Some(&identity);
    let holds = |change: Change<Version>| match change {
        Change::All(leases) => leases.iter().any(is_ours),
        Change::Put(lease) => is_ours(&lease),
        Change::Gone(_) => false,
    };
    let _: Ended = follow(&cluster, &collection, &watch_status, &wake, holds).await;
}

/// Parts of a lease that a watch needs.
#[derive(Clone, Deserialize)]
struct Version {
    #[serde(default)]
    metadata: VersionMetadata,
    #[serde(default)]
    spec: VersionSpec,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VersionSpec {
    holder_identity: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VersionMetadata {
    resource_version: String,
}

impl Watched for Version {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

struct Holder {
    cluster: Cluster,
    name: LeaseName,
    election: Election,
    clock: Clock,
    term: Arc<Term>,
    /// Lease as last read or written.
    lease: Option<Lease>,
}

impl Holder {
    /// Reads the lease, and writes it if due. Returns the time to wait.
    async fn turn(&mut self, reports: &mut Reports) -> Duration {
        let next = match self.look().await {
            Ok(next) => {
                // Over before the lease is another's.
                self.term.set(self.election.acts_until(self.clock.elapsed()));
                if matches!(next, Next::Hand(_)) {
                    self.term.settled().await;
                }
                self.act(next).await
            }
            Err(problem) => Err(problem),
        };
        self.term.set(self.election.acts_until(self.clock.elapsed()));
        let next = match next {
            Ok(next) => {
                reports.works();
                next
            }
            Err(Problem::Conflict(_)) => self.election.was_late(),
            Err(problem) => {
                let ready = self.election.is_ready(self.clock.elapsed());
                reports.fails(&problem, &self.name, ready);
                self.election.failed()
            }
        };
        match next {
            Next::Look(pause) => pause,
            // Whatever is to be written is found out again by looking.
            Next::Write | Next::Hand(_) | Next::Ask => Duration::ZERO,
        }
    }

    /// Writes what there is to write.
    async fn act(&mut self, next: Next) -> Result<Next, Problem> {
        match next {
            Next::Look(_) => Ok(next),
            Next::Write => {
                let began = self.clock.elapsed();
                self.write(taken(self.lease.as_ref(), &self.name, &self.election)).await?;
                Ok(self.election.wrote(began))
            }
            Next::Hand(to) => {
                self.write(handed(self.lease.as_ref(), &self.name, &self.election, &to)).await?;
                tracing::info!(
                    lease = self.name.name,
                    holder = to,
                    "lease handed to a replica of a newer revision"
                );
                Ok(self.election.handed())
            }
            Next::Ask => {
                self.write(asking(self.lease.as_ref(), &self.name, &self.election)).await?;
                tracing::info!(lease = self.name.name, "asked for the lease: this revision is newer");
                Ok(self.election.asked(self.clock.elapsed()))
            }
        }
    }

    async fn look(&mut self) -> Result<Next, Problem> {
        // A leader knows its own last write, and writing over it tells whether it still is.
        if self.election.holds() && self.lease.is_some() {
            return Ok(Next::Write);
        }
        let found = self.cluster.put::<Lease>(Method::GET, &self.name.path(), Vec::new(), REQUEST).await;
        self.lease = match found {
            Ok(lease) => Some(lease),
            Err(Problem::NotFound(_)) => None,
            Err(problem) => return Err(problem),
        };
        Ok(self.election.saw(self.lease.as_ref().map(record), self.clock.elapsed()))
    }

    async fn write(&mut self, lease: Lease) -> Result<(), Problem> {
        match self.send(&lease).await {
            Ok(written) => {
                self.lease = Some(written);
                Ok(())
            }
            Err(problem) => {
                // Whatever it was, what is there has to be read again.
                if problem.is_response() {
                    self.lease = None;
                }
                match problem {
                    // Somebody deleted it.
                    Problem::NotFound(text) => Err(Problem::Conflict(text)),
                    problem => Err(problem),
                }
            }
        }
    }

    async fn send(&self, lease: &Lease) -> Result<Lease, Problem> {
        let body = serde_json::to_vec(lease).map_err(|error| Problem::Unreadable(error.to_string()))?;
        let (method, path) = match lease.metadata.resource_version {
            Some(_) => (Method::PUT, self.name.path()),
            None => (Method::POST, self.name.folder()),
        };
        self.cluster.put(method, &path, body, REQUEST).await
    }

    /// Lets another lead at once, if this one did and could act: one that takes it acts at once.
    async fn give_up(&mut self) {
        self.term.set(None);
        let could_act = self.election.acts_until(self.clock.elapsed()).is_some();
        let Some(lease) = self.lease.take().filter(|_| could_act) else { return };
        self.term.settled().await;
        let lease = given_up(lease);
        match self.send(&lease).await {
            Ok(_) => tracing::info!(lease = self.name.name, "lease released"),
            Err(problem) => tracing::warn!(lease = self.name.name, %problem, "cannot release the lease"),
        }
    }
}

/// Logs a problem once, not at every attempt.
#[derive(Default)]
struct Reports {
    last: Option<Problem>,
}

impl Reports {
    fn fails(&mut self, problem: &Problem, name: &LeaseName, ready: bool) {
        if self.last.as_ref() == Some(problem) {
            return;
        }
        let (lease, namespace) = (&name.name, &name.namespace);
        match problem {
            Problem::Denied(message) => tracing::error!(
                lease,
                namespace,
                message,
                "may not take part in the election; allow the verbs get, list, watch, create and update for leases (coordination.k8s.io) in the picker's Role"
            ),
            _ if ready => tracing::warn!(lease, %problem, "cannot renew the lease; leading until it expires"),
            _ => tracing::warn!(lease, %problem, "cannot take part in the election"),
        }
        self.last = Some(problem.clone());
    }

    fn works(&mut self) {
        if self.last.take().is_some() {
            tracing::info!("taking part in the election again");
        }
    }
}
