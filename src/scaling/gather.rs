//! From live state to what a tick looks at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::groups::Group;
use super::signal::{Ages, Join, Signal};
use crate::capacity::{Inputs, Pod, Policy};
use crate::endpoints::{Endpoint, Snapshot};

/// The pods of a policy's roles. Found anew only when the pool's membership changes.
#[derive(Debug, Default)]
pub struct Members {
    /// The snapshot that they are of.
    number: Option<u64>,
    pods: Vec<Member>,
    counts: Vec<u32>,
}

/// A pod, with an endpoint for each of its ranks.
#[derive(Debug)]
struct Member {
    role: usize,
    ranks: SmallVec<[Arc<Endpoint>; 1]>,
}

impl Members {
    /// Finds the pods in a snapshot, unless it is the one that they are of. A pod belongs to the first
    /// role, by name, whose labels it has.
    pub fn follow(&mut self, policy: &Policy, snapshot: &Snapshot) {
        if self.number.replace(snapshot.number()) == Some(snapshot.number()) {
            return;
        }
        self.pods.clear();
        self.counts = vec![0; policy.roles.len()];
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        for endpoint in snapshot.endpoints() {
            let has = |(key, value): (&String, &String)| endpoint.label(key) == Some(value.as_str());
            let Some(role) = policy.roles.iter().position(|role| role.selector.iter().all(has)) else {
                continue;
            };
            let place = *places.entry((endpoint.namespace(), endpoint.pod())).or_insert(self.pods.len());
            match self.pods.get_mut(place) {
                Some(pod) => pod.ranks.push(Arc::clone(endpoint)),
                None => {
                    self.pods.push(Member { role, ranks: SmallVec::from_iter([Arc::clone(endpoint)]) });
                    if let Some(count) = self.counts.get_mut(role) {
                        *count += 1;
                    }
                }
            }
        }
    }

    /// How many pods each role has.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }
}

/// How old numbers may be, at what time.
#[derive(Clone, Copy, Debug)]
pub struct Freshness {
    /// Milliseconds on the clock of the readings.
    pub now_ms: u64,
    /// From which age on what the configuration reads no longer counts.
    pub configured: Duration,
    /// The same for what is read for policies only.
    pub scraped: Duration,
}

/// What there is, for a tick. `replicas` is how many pods each role is taken to have.
pub fn gather(
    group: &Group,
    members: &Members,
    freshness: Freshness,
    replicas: Vec<u32>,
    waiting: u64,
) -> Inputs {
    let ages = Ages { configured: freshness.configured, scraped: freshness.scraped };
    let pod = |member: &Member| {
        let value = |signal: &Signal| of_pod(signal, &member.ranks, freshness.now_ms, ages);
        // What is listed is ready: discovery leaves out what isn't.
        Pod { role: member.role, is_ready: true, values: group.signals.iter().map(value).collect() }
    };
    Inputs { replicas, pods: members.pods.iter().map(pod).collect(), waiting, ..Inputs::default() }
}

/// A number of a pod. Unless all ranks have it, the pod has none.
fn of_pod(signal: &Signal, ranks: &[Arc<Endpoint>], now_ms: u64, ages: Ages) -> f64 {
    let values = ranks.iter().map(|rank| signal.of(rank.load(), now_ms, ages));
    let joined = values.reduce(|a, b| match signal.join() {
        Join::Sum => a + b,
        Join::Largest if a.is_nan() || b.is_nan() => f64::NAN,
        Join::Largest => a.max(b),
    });
    joined.unwrap_or(f64::NAN)
}
