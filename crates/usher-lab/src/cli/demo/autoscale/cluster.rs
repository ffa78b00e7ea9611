//! The part of a cluster: servers are started, join the pool when they are ready, leave it, and end
//! when they have answered what they had.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::demo::client::Client;
use crate::cli::demo::ports::local;
use crate::cli::demo::stack::{ServerProcess, Stack};

/// Value of the label `app` of all servers.
pub(super) const APP: &str = "sim";

/// A server starts for so long.
pub(super) const STARTUP: Duration = Duration::from_secs(2);

/// For so long a server that left the pool may still get requests that were decided before.
const GRACE: Duration = Duration::from_secs(1);

/// Says whether a server is ready.
const HEALTH: &str = "/health";

/// Path under which a server reports its state.
const STATE: &str = "/admin/state";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Starting,
    /// In the pool.
    Ready,
    /// Out of it, since then.
    Leaving(Instant),
}

#[derive(Debug)]
struct Pod {
    name: String,
    process: ServerProcess,
    stage: Stage,
}

/// The servers that there are, the oldest first.
#[derive(Debug)]
pub(super) struct Cluster {
    ports: Vec<u16>,
    speed: f64,
    client: Client,
    pods: Vec<Pod>,
    started: usize,
    ended: usize,
}

impl Cluster {
    /// A cluster without servers, which can have one on each of these ports.
    pub(super) fn new(ports: Vec<u16>, speed: f64, client: Client) -> Self {
        Self { ports, speed, client, pods: Vec::new(), started: 0, ended: 0 }
    }

    /// Does what is due so that there will be this many servers. Is to be called now and then.
    ///
    /// # Errors
    /// Returns an error if a server can't be started, or doesn't report its state.
    pub(super) async fn follow(&mut self, stack: &mut Stack, desired: usize) -> anyhow::Result<()> {
        let before = self.pool();
        for pod in self.pods.iter_mut().filter(|pod| pod.stage == Stage::Starting) {
            // One that doesn't listen yet isn't ready, either.
            let health = self.client.get(local(pod.process.port), HEALTH).await;
            if health.is_ok_and(|response| response.status == 200) {
                pod.stage = Stage::Ready;
            }
        }
        while self.wanted() < desired
            && let Some(port) = self.free_port()
        {
            self.started += 1;
            let name = format!("pod-{}", self.started);
            // The server counts in its own seconds.
            let startup = STARTUP.mul_f64(self.speed);
            let process = stack.start_server(&name, port, startup)?;
            self.pods.push(Pod { name, process, stage: Stage::Starting });
        }
        while self.wanted() > desired
            && let Some(place) = surplus(&self.pods.iter().map(|pod| pod.stage))
            && let Some(pod) = self.pods.get_mut(place)
        {
            if pod.stage == Stage::Ready {
                pod.stage = Stage::Leaving(Instant::now());
            } else {
                self.end(stack, place);
            }
        }
        let pool = self.pool();
        if pool != before {
            stack.write_endpoints(&pool)?;
        }
        self.end_idle(stack).await
    }

    /// Ends servers that left the pool and have nothing to do.
    async fn end_idle(&mut self, stack: &mut Stack) -> anyhow::Result<()> {
        let mut idle = Vec::new();
        for (place, pod) in self.pods.iter().enumerate() {
            let Stage::Leaving(since) = pod.stage else { continue };
            if since.elapsed() < GRACE {
                continue;
            }
            let state = self.client.json(local(pod.process.port), STATE).await?;
            let is_zero = |name: &str| state.get(name).and_then(Value::as_u64) == Some(0);
            if is_zero("running") && is_zero("waiting") {
                idle.push(place);
            }
        }
        idle.into_iter().rev().for_each(|place| self.end(stack, place));
        Ok(())
    }

    fn end(&mut self, stack: &mut Stack, place: usize) {
        stack.end_server(&self.pods.remove(place).process);
        self.ended += 1;
    }

    /// Servers that are to stay.
    fn wanted(&self) -> usize {
        self.pods.iter().filter(|pod| matches!(pod.stage, Stage::Starting | Stage::Ready)).count()
    }

    fn free_port(&self) -> Option<u16> {
        self.ports.iter().copied().find(|port| self.pods.iter().all(|pod| pod.process.port != *port))
    }

    /// The servers that are ready, as an endpoints file.
    fn pool(&self) -> String {
        let mut text = String::from("endpoints:\n");
        for Pod { name, process, .. } in self.pods.iter().filter(|pod| pod.stage == Stage::Ready) {
            let port = process.port;
            // Writing to a String can't fail.
            let _ = writeln!(
                text,
                "- {{name: {name}, namespace: default, address: 127.0.0.1, port: \"{port}\", labels: {{app: {APP}}}}}"
            );
        }
        text
    }

    /// Returns `true` if there is no server any more.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Number of servers, those included that start and those that leave.
    pub(super) fn len(&self) -> usize {
        self.pods.len()
    }

    /// Number of servers that start.
    pub(super) fn starting(&self) -> usize {
        self.pods.iter().filter(|pod| pod.stage == Stage::Starting).count()
    }

    /// Number of servers that were ever started.
    pub(super) fn started(&self) -> usize {
        self.started
    }

    /// Number of servers that were ended.
    pub(super) fn ended(&self) -> usize {
        self.ended
    }
}

/// The place of the server that goes first, as a ReplicaSet has it: one that starts, or else the youngest.
fn surplus(stages: &(impl DoubleEndedIterator<Item = Stage> + ExactSizeIterator + Clone)) -> Option<usize> {
    let youngest = |stage: Stage| stages.clone().rposition(|other| other == stage);
    youngest(Stage::Starting).or_else(|| youngest(Stage::Ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(stages: &[Stage]) -> Cluster {
        let mut cluster = Cluster::new(vec![1, 2, 3, 4], 1.0, Client::default());
        for (port, stage) in (1u16..).zip(stages) {
            let process = ServerProcess { port, id: 0 };
            cluster.pods.push(Pod { name: format!("pod-{port}"), process, stage: *stage });
        }
        cluster
    }

    #[test]
    fn scale_down_removes_starting_then_youngest_servers() {
        let leaving = Stage::Leaving(Instant::now());
        let table = [
            (&[Stage::Ready, Stage::Starting, Stage::Ready][..], Some(1)),
            (&[Stage::Starting, Stage::Starting][..], Some(1)),
            (&[Stage::Ready, Stage::Ready, leaving][..], Some(1)),
            (&[leaving][..], None),
        ];
        for (stages, place) in table {
            assert_eq!(surplus(&stages.iter().copied()), place, "{stages:?}");
        }
    }

    #[test]
    fn pool_lists_only_ready_servers() {
        let leaving = Stage::Leaving(Instant::now());
        let cluster = cluster(&[Stage::Ready, Stage::Starting, leaving]);
        let read =
            |pool: &str| serde_saphyr::from_str::<serde_json::Value>(pool).unwrap()["endpoints"].take();
        let endpoints = read(&cluster.pool());
        assert_eq!((endpoints.as_array().unwrap().len(), &endpoints[0]["name"]), (1, &"pod-1".into()));
        assert_eq!(endpoints[0]["labels"]["app"], APP);
        assert_eq!((cluster.wanted(), cluster.starting(), cluster.len()), (2, 1, 3));
        assert_eq!(cluster.free_port(), Some(4), "one that leaves has its port");
        let empty = Cluster::new(Vec::new(), 1.0, Client::default()).pool();
        assert!(read(&empty).is_null(), "{empty}");
    }
}
