//! A virtual cluster: it has as many pods as a plan admits, nodes for so many of them, and pods that take
//! minutes to be ready.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use usher_capacity::{History, Inputs, Plan, Pod, PodState, Policy, Values, tick};

/// Time at which nodes for the other half are there.
pub(super) const MORE_NODES: Duration = Duration::from_secs(40 * 60);

/// A model takes so many seconds to load: from, to.
const STARTUP: std::ops::Range<u64> = 120..300;

/// Fixed seed, so that every run is equal.
const SEED: u64 = 75;

/// A pod; `None`: it waits for a node.
type Ready = Option<Duration>;

#[derive(Debug)]
pub(super) struct Cluster {
    /// By role.
    pods: Vec<Vec<Ready>>,
    /// Pods that nodes have room for, whatever their role.
    pub(super) room: u32,
    history: History,
    random: StdRng,
    now: Duration,
}

impl Cluster {
    pub(super) fn new(policy: &Policy, room: u32) -> Self {
        Self {
            pods: vec![Vec::new(); policy.roles.len()],
            room,
            history: History::default(),
            random: StdRng::seed_from_u64(SEED),
            now: Duration::ZERO,
        }
    }

    /// Plan of the policy for the pods as they are at `now`.
    pub(super) fn tick(&mut self, policy: &Policy, now: Duration) -> Plan {
        self.now = now;
        let pod = |role: usize, ready: Ready| Pod {
            role,
            is_ready: ready.is_some_and(|at| at <= now),
            state: PodState {
                is_scheduled: ready.is_some(),
                is_unschedulable: ready.is_none(),
                ..PodState::default()
            },
            values: Values::default(),
        };
        let pods = self.pods.iter().enumerate();
        let inputs = Inputs {
            replicas: self.pods.iter().map(|pods| pods.len() as u32).collect(),
            pods: pods.flat_map(|(role, pods)| pods.iter().map(move |ready| pod(role, *ready))).collect(),
            ..Inputs::default()
        };
        tick(&inputs, policy, &mut self.history, now)
    }

    /// Controllers make pods, and the scheduler gives them nodes in any order.
    pub(super) fn apply(&mut self, plan: &Plan, now: Duration) {
        for (pods, role) in self.pods.iter_mut().zip(&plan.roles) {
            pods.resize(role.write as usize, None);
        }
        let mut waiting: Vec<(usize, usize)> = Vec::new();
        for (role, pods) in self.pods.iter().enumerate() {
            let places = pods.iter().enumerate().filter(|(_, ready)| ready.is_none());
            waiting.extend(places.map(|(place, _)| (role, place)));
        }
        let placed = self.pods.iter().flatten().flatten().count();
        for _ in placed..self.room as usize {
            if waiting.is_empty() {
                return;
            }
            let (role, place) = waiting.swap_remove(self.random.random_range(0..waiting.len()));
            let takes = Duration::from_secs(self.random.random_range(STARTUP));
            if let Some(pod) = self.pods.get_mut(role).and_then(|pods| pods.get_mut(place)) {
                *pod = Some(now + takes);
            }
        }
    }

    /// Pods of a role that are ready.
    pub(super) fn ready(&self, role: usize) -> u32 {
        let is_ready = |pod: &&Ready| pod.is_some_and(|at| at <= self.now);
        self.pods.get(role).map_or(0, |pods| pods.iter().filter(is_ready).count() as u32)
    }

    /// Pods that wait for a node.
    pub(super) fn waiting(&self) -> u32 {
        self.pods.iter().flatten().filter(|pod| pod.is_none()).count() as u32
    }
}
