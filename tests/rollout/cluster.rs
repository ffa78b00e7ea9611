//! A cluster that does what plans say: controllers keep the number of pods, a scheduler has so many slots,
//! and pods take their time.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use usher::capacity::policy::{Policy, file};
use usher::capacity::{History, Inputs, Plan, Pod, PodState, tick};

/// A policy of a spec.
pub fn policy(spec: &str) -> Policy {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
    );
    match file::parse(&text) {
        Ok(mut read) => read.remove(0).policy,
        Err(errors) => panic!("{}", errors[0].in_file("policy")),
    }
}

/// A pod.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// Unique id.
    pub id: u64,
    pub is_gated: bool,
    pub has_node: bool,
    /// Time at which it is ready, once it has a node.
    pub ready_at: u64,
    pub is_outdated: bool,
}

/// A cluster with the pods of one group.
pub struct Cluster {
    pub policy: Policy,
    pub history: History,
    /// `true` if pods begin at a gate.
    pub has_gates: bool,
    /// By role.
    pub pods: Vec<Vec<Lives>>,
    pub replicas: Vec<u32>,
    /// Nodes for so many pods, whatever their role.
    pub room: u32,
    /// Controllers create no more pods of a role at a time than this.
    pub creates: u32,
    /// `true` if the list of pods may be one of before.
    pub is_late: bool,
    /// `true` if nothing of a plan may be carried out.
    pub is_held: bool,
    /// Seconds that pods take to get ready: from, to.
    pub startup: (u64, u64),
    pub now: u64,
    pub random: SmallRng,
    /// The pods as they were seen.
    seen: Vec<Vec<Lives>>,
    next: u64,
}

impl Cluster {
    pub fn new(spec: &str, seed: u64) -> Self {
        let policy = policy(spec);
        let roles = policy.roles.len();
        Self {
            policy,
            history: History::default(),
            has_gates: false,
            pods: vec![Vec::new(); roles],
            replicas: vec![0; roles],
            room: u32::MAX,
            creates: u32::MAX,
            is_late: false,
            is_held: false,
            startup: (1, 1),
            now: 0,
            random: SmallRng::seed_from_u64(seed),
            seen: vec![Vec::new(); roles],
            next: 0,
        }
    }

    fn is_ready(&self, pod: &Lives) -> bool {
        pod.has_node && pod.ready_at <= self.now
    }

    /// Pods of a role that are ready.
    pub fn ready(&self, role: usize) -> u32 {
        self.pods[role].iter().filter(|pod| self.is_ready(pod)).count() as u32
    }

    /// Pods that have nodes.
    pub fn placed(&self) -> u32 {
        self.pods.iter().flatten().filter(|pod| pod.has_node).count() as u32
    }

    fn inputs(&self) -> Inputs {
        let pods = self.seen.iter().enumerate().flat_map(|(role, pods)| {
            pods.iter().map(move |pod| Pod {
                role,
                is_ready: self.is_ready(pod),
                state: PodState {
                    is_gated: pod.is_gated,
                    is_scheduled: pod.has_node,
                    is_unschedulable: !pod.has_node && !pod.is_gated,
                    is_outdated: pod.is_outdated,
                    ..PodState::default()
                },
                values: [].into(),
            })
        });
        let (replicas, is_held) = (self.replicas.clone(), self.is_held);
        Inputs { replicas, pods: pods.collect(), is_held, ..Inputs::default() }
    }

    /// The plan of the group's tick at the current time.
    pub fn plan(&mut self) -> Plan {
        if !self.is_late || self.random.random_bool(0.5) {
            self.seen.clone_from(&self.pods);
        }
        let inputs = self.inputs();
        tick(&inputs, &self.policy, &mut self.history, Duration::from_secs(self.now))
    }

    /// Does what a plan says: replicas, then gates.
    pub fn apply(&mut self, plan: &Plan) {
        for (role, planned) in plan.roles.iter().enumerate() {
            self.replicas[role] = planned.write;
        }
        self.control();
        if self.has_gates {
            self.open_gates(plan);
        }
    }

    /// Opens the gates of the oldest pods, until as many as may be are past them, as far as is seen. A pod
    /// that is gone or has changed since is left alone, as the patch tests that.
    fn open_gates(&mut self, plan: &Plan) {
        for (role, planned) in plan.roles.iter().enumerate() {
            let seen = &self.seen[role];
            let past = seen.iter().filter(|pod| !pod.is_gated).count() as u32;
            let more = planned.admitted.saturating_sub(past) as usize;
            let mut waiting: Vec<u64> = seen.iter().filter(|pod| pod.is_gated).map(|pod| pod.id).collect();
            waiting.sort_unstable();
            for id in waiting.into_iter().take(more) {
                let past = self.past(role);
                if let Some(pod) = self.pods[role].iter_mut().find(|pod| pod.id == id && pod.is_gated) {
                    pod.is_gated = false;
                    let may = planned.admitted;
                    assert!(
                        past < may,
                        "{past} of {may} of role {role} are past the gate, and one more goes"
                    );
                }
            }
        }
    }

    /// Pods of a role that are past the gate.
    pub fn past(&self, role: usize) -> u32 {
        self.pods[role].iter().filter(|pod| !pod.is_gated).count() as u32
    }

    /// Another pod comes in place of one.
    pub fn replace(&mut self, role: usize, place: usize) {
        self.next += 1;
        let (id, is_gated) = (self.next, self.has_gates);
        self.pods[role][place] = Lives { id, is_gated, has_node: false, ready_at: 0, is_outdated: false };
    }

    /// Controllers create and delete pods; those that are not ready go first.
    pub fn control(&mut self) {
        for role in 0..self.pods.len() {
            let wanted = self.replicas[role] as usize;
            for _ in self.pods[role].len()..wanted.min(self.pods[role].len() + self.creates as usize) {
                self.next += 1;
                let pod = Lives {
                    id: self.next,
                    is_gated: self.has_gates,
                    has_node: false,
                    ready_at: 0,
                    is_outdated: false,
                };
                self.pods[role].push(pod);
            }
            let now = self.now;
            let rank = |pod: &Lives| (pod.has_node && pod.ready_at <= now, pod.has_node, !pod.is_gated);
            if self.pods[role].len() > wanted {
                self.pods[role].sort_by_key(|pod| std::cmp::Reverse(rank(pod)));
                self.pods[role].truncate(wanted);
            }
        }
    }

    /// Time passes: the scheduler places pods in random order, and they come up.
    pub fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        let mut waiting: Vec<(usize, usize)> = Vec::new();
        for (role, pods) in self.pods.iter().enumerate() {
            let places = pods.iter().enumerate().filter(|(_, pod)| !pod.is_gated && !pod.has_node);
            waiting.extend(places.map(|(place, _)| (role, place)));
        }
        while !waiting.is_empty() && self.placed() < self.room {
            let (role, place) = waiting.swap_remove(self.random.random_range(0..waiting.len()));
            let takes = self.random.random_range(self.startup.0..=self.startup.1);
            let pod = &mut self.pods[role][place];
            (pod.has_node, pod.ready_at) = (true, self.now + takes);
        }
    }

    /// A random pod is lost.
    pub fn lose_one(&mut self) {
        let role = self.random.random_range(0..self.pods.len());
        if !self.pods[role].is_empty() {
            let place = self.random.random_range(0..self.pods[role].len());
            self.pods[role].remove(place);
        }
    }

    /// A random pod is not ready for a while.
    pub fn hurt_one(&mut self) {
        let role = self.random.random_range(0..self.pods.len());
        if !self.pods[role].is_empty() {
            let place = self.random.random_range(0..self.pods[role].len());
            self.pods[role][place].ready_at = self.now + self.random.random_range(1..100);
        }
    }
}

/// The admitted counts, in the order of the roles.
pub fn admitted(plan: &Plan) -> Vec<u32> {
    plan.roles.iter().map(|role| role.admitted).collect()
}
