//! The Lease object and the task that keeps it.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::election::{Election, Next, Record, Timing};
use crate::cluster::{Change, Cluster, Collection, Ended, Problem, Standing, Watched, follow};
use crate::endpoints::Clock;

/// Time for one request about the lease: several fit into a lease.
const REQUEST: Duration = Duration::from_millis(1500);

/// Seconds for which others wait after a lease that was given up; the API has no zero.
const GIVEN_UP: i32 = 1;

/// Which Lease is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    namespace: String,
    name: String,
}

impl LeaseName {
    /// The lease of a pool's pickers; the peer's name, so that replicas of both elect one.
    pub fn of_pool(namespace: &str, pool: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: format!("epp-{namespace}-{pool}.llm-d.ai") }
    }

    fn collection(&self) -> Collection {
        Collection::new("coordination.k8s.io", "v1", &self.namespace, "leases").named(&self.name)
    }

    fn folder(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.folder(), self.name)
    }
}

/// Takes part in an election until `stop`, and gives the lease up then. `leads` hears
/// whenever this replica begins or ceases to lead.
pub async fn elect(
    cluster: Cluster,
    name: LeaseName,
    identity: String,
    clock: Clock,
    stop: impl Future<Output = ()>,
    leads: impl Fn(bool),
) {
    let (wake, mut changed) = mpsc::channel(1);
    let election = Election::new(identity, Timing::default());
    let mut holder = Holder { cluster: cluster.clone(), name: name.clone(), election, clock, lease: None };
    let watching = watch(cluster, name.collection(), holder.clock.clone(), wake);
    let _watching = AbortOnDropHandle::new(tokio::spawn(watching));
    let mut stop = std::pin::pin!(stop);
    let holding = async {
        let mut reports = Reports::default();
        let mut last = false;
        loop {
            let pause = holder.turn(&mut reports).await;
            let now = holder.election.leads();
            if now != last {
                tracing::info!(
                    leads = now,
                    lease = name.name,
                    identity = holder.election.identity(),
                    "election"
                );
                leads(now);
                last = now;
            }
            let mut pause = std::pin::pin!(tokio::time::sleep(pause));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    // Our own writes wake us, too. Looking at them makes no sense.
                    Some(()) = changed.recv() => if !now { break },
                    () = &mut stop => return,
                }
            }
        }
    };
    holding.await;
    holder.give_up().await;
}

/// Says whenever the lease changes. Without the right to watch it, one has to look from
/// time to time.
async fn watch(cluster: Cluster, collection: Collection, clock: Clock, wake: mpsc::Sender<()>) {
    let standing = Standing::new(clock);
    let _: Ended = follow(&cluster, &collection, &standing, &wake, |_: Change<Version>| ()).await;
}

/// What a watch needs to know of a lease.
#[derive(Clone, Deserialize)]
struct Version {
    #[serde(default)]
    metadata: VersionMetadata,
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
    /// As it was last read or written.
    lease: Option<Lease>,
}

impl Holder {
    /// Looks, and writes if it is time to. Says how long to wait then.
    async fn turn(&mut self, reports: &mut Reports) -> Duration {
        let next = match self.look().await {
            Ok(Next::Write) => self.write().await,
            other => other,
        };
        match next {
            Ok(Next::Look(pause)) => {
                reports.works();
                pause
            }
            Ok(Next::Write) => Duration::ZERO,
            Err(Problem::Conflict(_)) => match self.election.was_late() {
                Next::Look(pause) => pause,
                Next::Write => Duration::ZERO,
            },
            Err(problem) => {
                reports.fails(&problem, &self.name, self.election.leads());
                match self.election.failed() {
                    Next::Look(pause) => pause,
                    Next::Write => Duration::ZERO,
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Next, Problem> {
        // A leader knows its own last write, and writing over it tells whether it still is.
        if self.election.leads() && self.lease.is_some() {
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

    async fn write(&mut self) -> Result<Next, Problem> {
        let lease = taken(self.lease.as_ref(), &self.name, &self.election);
        match self.send(&lease).await {
            Ok(written) => {
                let version = written.metadata.resource_version.clone().unwrap_or_default();
                self.lease = Some(written);
                Ok(self.election.wrote(version, self.clock.elapsed()))
            }
            Err(problem) => {
                // Whatever it was, what is there has to be read again.
                if problem.is_answer() {
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

    /// Lets another lead at once, if this one did.
    async fn give_up(&mut self) {
        let Some(mut lease) = self.lease.take().filter(|_| self.election.leads()) else { return };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(GIVEN_UP);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        match self.send(&lease).await {
            Ok(_) => tracing::info!(lease = self.name.name, "lease given up"),
            Err(problem) => tracing::warn!(lease = self.name.name, %problem, "cannot give up the lease"),
        }
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Record {
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        lease: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    }
}

/// The lease as it is when we hold it, made from the one that is there.
fn taken(known: Option<&Lease>, name: &LeaseName, election: &Election) -> Lease {
    let mut lease = known.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let now = MicroTime(Timestamp::now());
    let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() != Some(election.identity()) {
        spec.holder_identity = Some(election.identity().to_owned());
        spec.acquire_time = Some(now.clone());
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |before| before.saturating_add(1)));
    }
    spec.renew_time = Some(now);
    let seconds = election.timing().lease.as_secs();
    spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
    lease
}

/// Says what is wrong once, not at every attempt.
#[derive(Default)]
struct Reports {
    last: Option<Problem>,
}

impl Reports {
    fn fails(&mut self, problem: &Problem, name: &LeaseName, leads: bool) {
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
            _ if leads => tracing::warn!(lease, %problem, "cannot renew the lease, leading on"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_a_lease_keeps_what_others_wrote_and_counts_the_change() {
        let name = LeaseName::of_pool("ns", "p");
        assert_eq!(name.path(), "/apis/coordination.k8s.io/v1/namespaces/ns/leases/epp-ns-p.llm-d.ai");
        let a = Election::new("a".to_owned(), Timing::default());
        let mut first = taken(None, &name, &a);
        let spec = first.spec.clone().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("a"), Some(0)));
        assert_eq!((spec.lease_duration_seconds, spec.acquire_time == spec.renew_time), (Some(4), true));
        first.metadata.resource_version = Some("7".to_owned());
        first.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
        let again = taken(Some(&first), &name, &a).spec.unwrap();
        assert_eq!((again.lease_transitions, again.acquire_time), (Some(0), spec.acquire_time));
        let b = taken(Some(&first), &name, &Election::new("b".to_owned(), Timing::default()));
        assert_eq!(b.metadata, first.metadata);
        assert_eq!(b.spec.as_ref().unwrap().lease_transitions, Some(1));
        let seen = record(&b);
        assert_eq!(
            (seen.holder.as_str(), seen.lease, seen.version.as_str()),
            ("b", Duration::from_secs(4), "7")
        );
    }
}
