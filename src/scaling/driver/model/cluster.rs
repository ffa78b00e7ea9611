//! Model of the cluster: workloads, a scheduler with limited capacity, and kubelets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::server::{APPS, NODES, PODS, Server};
use super::update::Revisions;
use crate::actuator::GATE;

/// Workload of a role.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Name of the role and of its workload.
    pub role: &'static str,
    /// Kind of the workload.
    pub kind: &'static str,
    /// Resource of that kind.
    pub plural: &'static str,
}

/// Workloads that the policy scales, in the order of its roles.
pub const WORKLOADS: [Workload; 2] = [
    Workload { role: "decode", kind: "Deployment", plural: "deployments" },
    Workload { role: "prefill", kind: "StatefulSet", plural: "statefulsets" },
];

/// Workloads of others in the namespace, whose pods have labels of the policy's roles: name, kind, role, and
/// the pool's label.
const OTHERS: [(&str, &str, &str, &str); 3] = [
    ("other-decode", "Deployment", "decode", "other"),
    ("other-prefill", "StatefulSet", "prefill", "other"),
    ("decode-canary", "Deployment", "decode", "m"),
];

/// Capacity without an outage.
const MOST_ROOM: usize = 64;
/// Number of racks, if any.
const RACKS: usize = 4;

/// State of the cluster.
pub struct Cluster {
    pub server: Server,
    /// Seconds since the start.
    pub now: u64,
    /// `true` if pods begin at a gate.
    pub has_gates: bool,
    /// Capacity in pods, divided among the racks.
    room: usize,
    /// Racks of one node each; none: one node has all capacity.
    racks: usize,
    /// Number of the next pods that never become ready.
    pub duds: u32,
    /// Startup time of a pod in seconds, by its number.
    pub startup: fn(u64) -> u64,
    pub revisions: Revisions,
    /// Uids of pods deleted by a rolling update.
    pub replaced: BTreeSet<String>,
    /// Time at which scheduled pods become ready, by uid; `None`: never.
    ready_at: BTreeMap<String, Option<u64>>,
    next: u64,
}

impl Workload {
    /// Path of the object.
    pub fn path(&self) -> String {
        format!("{APPS}/{}/{}", self.plural, self.role)
    }

    /// Returns `true` if it owns a pod.
    pub fn owns(&self, pod: &Value) -> bool {
        let owner = match self.kind {
            "Deployment" => format!("{}-h{}", self.role, revision(pod)),
            _ => self.role.to_owned(),
        };
        pod["metadata"]["ownerReferences"][0]["name"] == *owner
    }
}

/// Returns `true` if a pod is past our gate.
pub fn is_past(pod: &Value) -> bool {
    pod["spec"].get("schedulingGates").is_none()
}

/// Returns `true` if a pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"][0] == json!({"type": "Ready", "status": "True"})
}

fn has_node(pod: &Value) -> bool {
    pod["spec"].get("nodeName").is_some()
}

/// Revision of a pod's template.
pub fn revision(pod: &Value) -> u32 {
    let labels = &pod["metadata"]["labels"];
    let hash = labels.get("pod-template-hash").or_else(|| labels.get("controller-revision-hash"));
    hash.and_then(Value::as_str).unwrap().trim_start_matches('h').parse().unwrap()
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

fn cost(pod: &Value) -> i64 {
    let cost = &pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
    cost.as_str().map_or(0, |cost| cost.parse().unwrap())
}

impl Cluster {
    /// Cluster whose workloads have these ready pods, beside those of others.
    pub fn new(replicas: [u32; 2], has_gates: bool, has_racks: bool) -> Self {
        let mut cluster = Self {
            server: Server::default(),
            now: 0,
            has_gates: false,
            room: 64,
            racks: 0,
            duds: 0,
            startup: |_| 0,
            revisions: Revisions::new(replicas),
            replaced: BTreeSet::new(),
            ready_at: BTreeMap::new(),
            next: 0,
        };
        for (workload, replicas) in WORKLOADS.iter().zip(replicas) {
            let metadata = json!({"name": workload.role, "uid": format!("u-{}", workload.role)});
            cluster
                .server
                .put(&workload.path(), json!({"metadata": metadata, "spec": {"replicas": replicas}}));
        }
        cluster.racks = if has_racks { RACKS } else { 0 };
        cluster.set_room(MOST_ROOM);
        cluster.pass(0);
        cluster.pass(0);
        cluster.has_gates = has_gates;
        cluster.startup = |number| 5 + number * 7 % 23;
        for (owner, kind, role, app) in OTHERS {
            for number in 0..4 {
                let name = format!("{owner}-{number}");
                cluster.create(&name, (owner, kind, 0), (role, app), number % 2 == 0);
            }
        }
        cluster
    }

    /// Pods of a workload, in the order in which its controller deletes them.
    pub fn pods(&self, workload: &Workload) -> Vec<Arc<Value>> {
        let mut pods: Vec<Arc<Value>> =
            self.server.pods().into_iter().filter(|pod| workload.owns(pod)).collect();
        match workload.kind {
            "StatefulSet" => pods.sort_by_key(|pod| std::cmp::Reverse(ordinal(pod))),
            _ => pods.sort_by_key(|pod| {
                (has_node(pod), is_ready(pod), cost(pod), std::cmp::Reverse(ordinal(pod)))
            }),
        }
        pods
    }

    /// Ready pods of each workload.
    pub fn serving(&self) -> [u32; 2] {
        WORKLOADS.map(|workload| self.pods(&workload).iter().filter(|pod| is_ready(pod)).count() as u32)
    }

    /// Uids of all ready pods.
    pub fn ready(&self) -> BTreeSet<String> {
        let pods = WORKLOADS.iter().flat_map(|workload| self.pods(workload));
        pods.filter(|pod| is_ready(pod)).map(|pod| uid(&pod).to_owned()).collect()
    }

    /// Replicas of each workload.
    pub fn replicas(&self) -> [u32; 2] {
        WORKLOADS
            .map(|workload| self.server.get(&workload.path())["spec"]["replicas"].as_u64().unwrap() as u32)
    }

    fn create(
        &mut self,
        name: &str,
        (owner, kind, revision): (&str, &str, u32),
        (role, app): (&str, &str),
        is_gated: bool,
    ) {
        self.next += 1;
        let (owner, kind, label) = match kind {
            "Deployment" => (format!("{owner}-h{revision}"), "ReplicaSet", "pod-template-hash"),
            kind => (owner.to_owned(), kind, "controller-revision-hash"),
        };
        let created =
            format!("2026-01-01T{:02}:{:02}:{:02}Z", self.now / 3600 % 24, self.now / 60 % 60, self.now % 60);
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("u{}", self.next), "creationTimestamp": created,
                "labels": {"app": app, "llm-d.ai/role": role, label: format!("h{revision}")},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": owner, "controller": true}],
            },
            "spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Pending"},
        });
        if is_gated {
            pod["spec"]["schedulingGates"] = json!([{"name": GATE}]);
        }
        self.server.put(&format!("{PODS}/{name}"), pod);
    }

    /// Deletes a pod of a workload, by index.
    pub fn lose(&self, workload: &Workload, place: usize) {
        let pods = self.pods(workload);
        if !pods.is_empty() {
            self.server.put(&format!("{PODS}/{}", name(&pods[place % pods.len()])), Value::Null);
        }
    }

    /// Makes a ready pod of a workload, by index, unready for so many seconds.
    pub fn unready(&mut self, workload: &Workload, place: usize, seconds: u64) {
        let ready: Vec<Arc<Value>> = self.pods(workload).into_iter().filter(|pod| is_ready(pod)).collect();
        let Some(pod) = ready.get(place % ready.len().max(1)) else { return };
        self.ready_at.insert(uid(pod).to_owned(), Some(self.now + seconds));
        let mut pod = Value::clone(pod);
        pod["status"]["conditions"][0]["status"] = json!("False");
        self.server.put(&format!("{PODS}/{}", name(&pod)), pod);
    }

    /// Makes all pods ready that never would be.
    pub fn heal(&mut self) {
        self.duds = 0;
        if self.room != MOST_ROOM {
            self.set_room(MOST_ROOM);
        }
        self.ready_at.values_mut().for_each(|at| *at = Some(at.unwrap_or(self.now)));
    }

    /// Sets the capacity in pods.
    pub fn set_room(&mut self, room: usize) {
        self.room = room;
        for rack in 0..self.racks {
            let (name, slots) = (format!("n{rack}"), self.slots().to_string());
            let node = json!({
                "metadata": {"name": name, "labels": {"rack": format!("r{rack}")}},
                "status": {"allocatable": {"cpu": slots, "pods": "110"},
                           "conditions": [{"type": "Ready", "status": "True"}]},
            });
            self.server.put(&format!("{NODES}/{name}"), node);
        }
    }

    /// Capacity of a node in pods.
    fn slots(&self) -> usize {
        self.room.div_ceil(self.racks.max(1))
    }

    /// Name of a node that accepts a pod.
    fn node_for(&self, pod: &Value) -> Option<String> {
        let sent = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/values/0";
        let rack = pod.pointer(sent).and_then(Value::as_str).map(|rack| rack.replace('r', "n"));
        let all: Vec<Arc<Value>> = WORKLOADS.iter().flat_map(|of| self.pods(of)).collect();
        let is_free =
            |name: &String| all.iter().filter(|pod| pod["spec"]["nodeName"] == **name).count() < self.slots();
        let mut names = (0..self.racks.max(1)).map(|rack| format!("n{rack}"));
        names.find(|name| rack.as_ref().is_none_or(|rack| rack == name) && is_free(name))
    }

    /// Advances time by so many seconds.
    pub fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        for workload in WORKLOADS {
            self.control(&workload);
        }
        for workload in WORKLOADS {
            for pod in self.pods(&workload) {
                self.run(&pod);
            }
        }
    }

    /// Reconciles a workload: deletes and creates pods.
    fn control(&mut self, workload: &Workload) {
        let object = self.server.get(&workload.path());
        let pods = self.pods(workload);
        let turn = match workload.kind {
            "StatefulSet" => self.revisions.stateful_set(&object, &pods),
            _ => self.revisions.deployment(&object, &pods),
        };
        for (pod, is_replaced) in turn.deletes {
            if is_replaced {
                self.replaced.insert(uid(&pod).to_owned());
            }
            self.server.put(&format!("{PODS}/{}", name(&pod)), Value::Null);
        }
        for (number, revision) in turn.creates {
            let name = match number {
                Some(number) => format!("{}-{number}", workload.role),
                None => format!("{}-h{revision}-{}", workload.role, self.next),
            };
            let by = (workload.role, workload.kind, revision);
            self.create(&name, by, (workload.role, "m"), self.has_gates);
        }
    }

    /// Changes the pod templates of the workloads.
    pub fn revise(&mut self) {
        self.revisions.newest += 1;
        let newest = self.revisions.newest;
        for workload in WORKLOADS.iter().filter(|workload| workload.kind == "StatefulSet") {
            let mut object = self.server.get(&workload.path());
            object["status"]["updateRevision"] = json!(format!("h{newest}"));
            self.server.put(&workload.path(), object);
        }
    }

    /// Pods of each workload of the newest revision.
    pub fn updated(&self) -> [usize; 2] {
        let is_new = |pod: &&Arc<Value>| revision(pod) == self.revisions.newest;
        WORKLOADS.map(|workload| self.pods(&workload).iter().filter(is_new).count())
    }

    /// Schedules and starts a pod.
    fn run(&mut self, pod: &Value) {
        let path = format!("{PODS}/{}", name(pod));
        if !is_past(pod) {
            return;
        }
        let mut pod = pod.clone();
        if !has_node(&pod) {
            let Some(node) = self.node_for(&pod) else {
                let refused = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                if pod["status"]["conditions"] != refused {
                    pod["status"]["conditions"] = refused;
                    self.server.put(&path, pod);
                }
                return;
            };
            self.next += 1;
            let takes = (self.startup)(self.next);
            let is_dud = self.duds > 0;
            self.duds = self.duds.saturating_sub(1);
            self.ready_at.insert(uid(&pod).to_owned(), (!is_dud).then_some(self.now + takes));
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running"});
            self.server.put(&path, pod.clone());
        }
        let is_up = self.ready_at.get(uid(&pod)).copied().flatten().is_some_and(|at| at <= self.now);
        if is_up && !is_ready(&pod) {
            pod["status"]["conditions"] =
                json!([{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]);
            self.server.put(&path, pod);
        }
    }
}

pub fn ordinal(pod: &Value) -> u64 {
    name(pod).rsplit_once('-').unwrap().1.parse().unwrap()
}
