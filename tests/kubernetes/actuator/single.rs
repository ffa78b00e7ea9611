//! One writer at a time, as the API server saw it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::group::Group;
use crate::objects::{POLICIES, POOLS};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

/// A role all of whose pods may be scheduled.
const SPEC: &str = "{mode: Apply, interval: 1s, roles: {decode: {min: 900, max: 900, \
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";

/// Replicas that lead one after the other, of a server that writes down what each of them writes.
struct Replicas<'a> {
    server: &'a Server,
    group: &'a Group,
    /// The user of each, by its name in the election.
    users: BTreeMap<String, String>,
    edits: u32,
}

/// The version at which a write was carried out, the same for all objects; `None`: it was refused.
fn version(write: &Value) -> Option<u64> {
    let is_done = write["responseStatus"]["code"].as_u64()? < 300;
    let version = write["responseObject"]["metadata"]["resourceVersion"].as_str()?;
    is_done.then(|| version.parse().unwrap())
}

fn user(number: usize) -> String {
    format!("epp-{number}")
}

/// A group of which there is always a gate to open: whoever thinks that it leads writes every
/// second.
async fn group(server: &Server) -> Group {
    server.define(&[POOLS, POLICIES]).await;
    let group = Group::new(server, SPEC).await;
    group.space.create(POLICIES, "p", serde_saphyr::from_str(SPEC).unwrap()).await;
    group.workload("Deployment", "decode", 900).await;
    group
}

async fn create_pods(group: &Group) {
    for number in 0.. {
        let spec = json!({"schedulingGates": [{"name": "usher.dev/rollout"}]});
        group.pod(&format!("decode-{number}"), "decode", spec).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

impl<'a> Replicas<'a> {
    fn new(server: &'a Server, group: &'a Group) -> Self {
        Self { server, group, users: BTreeMap::new(), edits: 0 }
    }

    async fn start(&self, number: usize, revision: Option<&str>) -> Picker {
        self.group.replica(self.server, number, revision).await
    }

    /// Waits until a replica has opened gates twice more, has the policy edited, and waits for the status. Notes its
    /// name.
    async fn leads(&mut self, number: usize, picker: &Picker) {
        let opens =
            |write: &&Value| write["user"]["uid"] == user(number) && write["objectRef"]["resource"] == "pods";
        let opened = || self.server.writes().iter().filter(opens).count();
        let before = opened();
        eventually(&format!("replica {number} to open gates"), async || {
            // The whole log is read.
            tokio::time::sleep(Duration::from_millis(300)).await;
            (opened() > before + 1).then_some(())
        })
        .await;
        let path = format!("{}/p", self.group.space.path("usher.dev/v1alpha1", "capacitypolicies"));
        self.edits += 1;
        let edit = json!({"spec": {"roles": {"decode": {"max": 900 + self.edits}}}});
        let edited = self.group.space.send("PATCH", &path, &edit).await.unwrap();
        eventually(&format!("replica {number} to write the status"), async || {
            let policy = self.group.space.get(&path).await.ok()?;
            (policy["status"]["observedGeneration"] == edited["metadata"]["generation"]).then_some(())
        })
        .await;
        self.users.insert(picker.identity().await, user(number));
    }

    /// Every write was by the holder of the lease at that version of the cluster. Returns how many wrote, and
    /// how often one made another the holder.
    fn judge(&self) -> (usize, usize) {
        let writes = self.server.writes().into_iter();
        let writes: BTreeMap<u64, Value> =
            writes.filter_map(|write| Some((version(&write)?, write))).collect();
        let (mut holder, mut writers, mut handed) = (None, BTreeSet::new(), 0);
        let mut statuses = BTreeSet::new();
        for (version, write) in &writes {
            let user = write["user"]["uid"].as_str().unwrap();
            match write["objectRef"]["resource"].as_str().unwrap() {
                "leases" => {
                    let name = write["responseObject"]["spec"]["holderIdentity"].as_str().unwrap_or_default();
                    let next = self.users.get(name).map(String::as_str);
                    handed += usize::from(next.is_some_and(|next| next != user && holder == Some(user)));
                    holder = next;
                }
                // Whatever a picker writes but its own Lease and events.
                "events" => {}
                resource => {
                    if resource == "capacitypolicies" {
                        statuses.insert(user);
                    }
                    assert_eq!(holder, Some(user), "at {version}: {write}");
                    writers.insert(user);
                }
            }
        }
        assert_eq!(statuses, writers, "statuses are writes, too");
        (writers.len(), handed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_replica_writes_at_any_version() {
    let Some(server) = Server::audited().await else { return };
    let group = group(&server).await;
    let mut replicas = Replicas::new(&server, &group);
    let replaces = async {
        let mut running = vec![replicas.start(0, None).await];
        replicas.leads(0, &running[0]).await;
        for next in 1..6 {
            running.push(replicas.start(next, None).await);
            let mut old = running.remove(0);
            // A crash, and an end with a drain.
            if next % 2 == 1 {
                old.kill().await;
            } else {
                old.terminate();
            }
            replicas.leads(next, &running[0]).await;
            // One that drains is there until now.
            drop(old);
        }
    };
    tokio::select! {
        () = create_pods(&group) => {}
        () = replaces => {}
    }
    assert_eq!(replicas.judge(), (6, 0));
}

/// As a Deployment rolls out: who leads hands over to the first of a newer revision, lingers, and is told to
/// end; and whoever leads may crash at any time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_replica_writes_during_rollouts() {
    let Some(server) = Server::audited().await else { return };
    let group = group(&server).await;
    let mut replicas = Replicas::new(&server, &group);
    let rolls_out = async {
        let old = replicas.start(0, Some("a")).await;
        replicas.leads(0, &old).await;
        let mut next = replicas.start(1, Some("b")).await;
        replicas.leads(1, &next).await;
        old.says(&["lease handed to a replica of a newer revision"]).await;
        // It crashes while the one before is still ready, which takes over again.
        next.kill().await;
        replicas.leads(0, &old).await;
        // Its successor of the same revision is handed nothing at once. The old one is told to end.
        let second = replicas.start(2, Some("b")).await;
        old.terminate();
        replicas.leads(2, &second).await;
        let third = replicas.start(3, Some("c")).await;
        replicas.leads(3, &third).await;
        second.says(&["lease handed to a replica of a newer revision"]).await;
        second.terminate();
        // A roll-back while it drains.
        let fourth = replicas.start(4, Some("b")).await;
        replicas.leads(4, &fourth).await;
        third.says(&["lease handed to a replica of a newer revision"]).await;
        drop((old, second, third));
    };
    tokio::select! {
        () = create_pods(&group) => {}
        () = rolls_out => {}
    }
    let (writers, handed) = replicas.judge();
    assert_eq!(writers, 5);
    assert!(handed >= 3, "{handed}");
}
