//! One writer at a time, as the API server saw it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::group::Group;
use crate::objects::POOLS;
use crate::server::Server;
use crate::support::eventually;

/// A role all of whose pods may be scheduled.
const SPEC: &str = "{mode: Apply, interval: 1s, roles: {decode: {min: 900, max: 900, \
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";

/// The version at which a write was carried out, the same for all objects; `None`: it was refused.
fn version(write: &Value) -> Option<u64> {
    let is_done = write["responseStatus"]["code"].as_u64()? < 300;
    let version = write["responseObject"]["metadata"]["resourceVersion"].as_str()?;
    is_done.then(|| version.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_no_version_of_the_cluster_two_write() {
    let Some(server) = Server::audited().await else { return };
    server.define(&[POOLS]).await;
    let group = Group::new(&server, SPEC).await;
    group.workload("Deployment", "decode", 900).await;
    // There is always a gate to open: whoever thinks that it leads writes every second.
    let creates = async {
        for number in 0.. {
            let spec = json!({"schedulingGates": [{"name": "usher.dev/rollout"}]});
            group.pod(&format!("decode-{number}"), "decode", spec).await;
            // The role has room for three minutes of them.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let leads = async |replica: usize| {
        let user = format!("epp-{replica}");
        let what = format!("replica {replica} to open gates");
        let opens =
            |write: &&Value| write["user"]["uid"] == *user && write["objectRef"]["resource"] == "pods";
        eventually(&what, async || {
            // The whole log is read.
            tokio::time::sleep(Duration::from_millis(300)).await;
            (server.writes().iter().filter(opens).count() > 1).then_some(())
        })
        .await;
    };
    let replaces = async {
        let mut running = vec![group.replica(&server, 0).await];
        leads(0).await;
        for next in 1..6 {
            running.push(group.replica(&server, next).await);
            let mut old = running.remove(0);
            // A crash, and an end with a drain.
            if next % 2 == 1 {
                old.kill().await;
            } else {
                old.terminate();
            }
            leads(next).await;
            // One that drains is there until now.
            drop(old);
        }
    };
    tokio::select! {
        () = creates => {}
        () = replaces => {}
    }
    let mut writes: BTreeMap<u64, Value> = BTreeMap::new();
    for write in server.writes() {
        if let Some(version) = version(&write) {
            writes.insert(version, write);
        }
    }
    // Who is who by what they wrote of themselves.
    let (mut holder, mut names) = (String::new(), BTreeMap::new());
    let mut writers = BTreeSet::new();
    for (version, write) in &writes {
        let user = write["user"]["uid"].as_str().unwrap().to_owned();
        match write["objectRef"]["resource"].as_str().unwrap() {
            "leases" => {
                holder = write["responseObject"]["spec"]["holderIdentity"].as_str().unwrap_or("").to_owned();
                // The first write with a name is by whoever has it.
                names.entry(holder.clone()).or_insert(user);
            }
            "pods" | "deployments" => {
                assert_eq!(names.get(&holder), Some(&user), "at {version}: {write}");
                writers.insert(user);
            }
            _ => {}
        }
    }
    assert_eq!(writers.len(), 6, "{writers:?}");
}
