//! Policies that are objects: Usher follows them, and their statuses say what became of them.

use std::net::Ipv4Addr;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::engines::engines;
use crate::metrics::page;
use crate::objects::{POLICIES, Space, TOPOLOGIES, election, get, rule, send, user};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

const FLAGS: [&str; 5] = [
    "--endpoint-selector=app=m",
    "--endpoint-target-ports=8000",
    "--metrics-endpoint-auth=false",
    "--outlier-detection=false",
    "--capacity-policies",
];
const READ: [&str; 3] = ["get", "list", "watch"];

fn rights() -> Vec<Value> {
    vec![
        rule(&[""], &["pods"], &READ),
        rule(&["usher.dev"], &["capacitypolicies"], &READ),
        rule(&["usher.dev"], &["capacitypolicies/status"], &["get", "patch"]),
    ]
}

async fn picker(server: &Server, space: &Space, more: &[&str]) -> Picker {
    let namespace = format!("--pool-namespace={}", space.name);
    Picker::start(server, server.port, &[&FLAGS[..], &[&namespace], more].concat()).await
}

/// A role whose size is kept, ticked every second.
fn kept(max: u32) -> Value {
    json!({"interval": "1s", "roles": {"a": {"min": 1, "max": max, "selector": {"app": "m"}}}})
}

/// One whose rule fires as soon as it is known that a pod has nothing to do.
fn rules() -> Value {
    let mut spec = kept(4);
    spec["rules"] = json!([
        {"name": "up", "role": "a", "metric": "in_flight", "comparator": "LESS_THAN", "threshold": 1, "step": 1, "cooldown": "1h"},
        {"name": "down", "role": "a", "metric": "in_flight", "comparator": "GREATER_THAN", "threshold": 7, "step": -1},
    ]);
    spec
}

fn path(space: &Space, name: &str) -> String {
    format!("/apis/usher.dev/v1alpha1/namespaces/{}/capacitypolicies/{name}", space.name)
}

/// Waits until the status of a policy is as wanted.
async fn with_status(client: &Client, space: &Space, name: &str, is: impl Fn(&Value) -> bool) -> Value {
    let path = path(space, name);
    eventually(&format!("the status of {name}"), async || {
        let object = get(client, &path).await.ok()?;
        is(&object["status"]).then_some(object)
    })
    .await
}

fn condition<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["conditions"].as_array().into_iter().flatten();
    all.clone().find(|condition| condition["type"] == name).unwrap_or(&Value::Null)
}

/// Waits for so many more ticks of a policy.
async fn ticks(picker: &Picker, name: &str, more: u64) {
    let count = async || {
        let page = page(picker).await;
        let line = format!("usher_capacity_ticks_total{{policy=\"{name}\"}} ");
        page.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = count().await;
    eventually("ticks", async || (count().await >= before + more).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_policies_are_followed_and_get_a_status() {
    let Some(server) = Server::own().await else { return };
    let (client, space) = (server.client().await, server.space(&rights()).await);
    let address = Ipv4Addr::new(127, 8, 0, 1);
    // That nothing runs there is known.
    let _engines = engines(std::iter::once(address)).await;
    space.pod("one", &address.to_string(), "m").await;
    let picker = picker(&server, &space, &[]).await;
    picker.says(&["does not define this kind", "capacitypolicies", "deploy/chart/crds"]).await;
    server.define(&[POLICIES]).await;
    space.create(POLICIES, "p", rules()).await;
    let object = with_status(&client, &space, "p", |status| status["desired"] == 2).await;
    let status = &object["status"];
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!((&status["roles"][0]["name"], &status["roles"][0]["current"]), (&json!("a"), &json!(1)));
    assert_eq!((&status["rules"][0]["name"], &status["rules"][1]["name"]), (&json!("up"), &json!("down")));
    assert!(status["rules"][0]["lastTriggerTime"].as_str().unwrap().ends_with('Z'), "{status}");
    let accepted = condition(status, "Accepted");
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("True"), &json!("Accepted")), "{status}");
    // Nothing changes, so nothing is written, however often it is ticked. A reading that a loaded machine
    // makes too old is a change: it is looked a few times.
    let mut versions = Vec::new();
    loop {
        let settled = with_status(&client, &space, "p", |status| {
            status["rules"][0]["lastSkipReason"] == "Cooldown"
                && status["rules"][1]["lastSkipReason"] == "Quiet"
        })
        .await;
        ticks(&picker, "p", 4).await;
        let later = get(&client, &path(&space, "p")).await.unwrap();
        assert_eq!(later["status"]["rules"][0]["lastTriggerTime"], status["rules"][0]["lastTriggerTime"]);
        let (before, after) =
            (&settled["metadata"]["resourceVersion"], &later["metadata"]["resourceVersion"]);
        if before == after {
            break;
        }
        versions.push((before.clone(), after.clone()));
        assert!(versions.len() < 5, "{versions:?} {later}");
    }

    // A version that the API server takes and Usher can't use: the one before stays.
    let mut broken = rules();
    broken["rules"][0]["metric"] = json!("in_fligt");
    space.change(POLICIES, "p", broken).await;
    let object =
        with_status(&client, &space, "p", |status| condition(status, "Accepted")["status"] == "False").await;
    let accepted = condition(&object["status"], "Accepted");
    let message = accepted["message"].as_str().unwrap();
    assert_eq!((&accepted["reason"], &accepted["observedGeneration"]), (&json!("Invalid"), &json!(2)));
    assert!(message.contains("in_fligt") && message.contains("generation 1 stays in force"), "{message}");
    ticks(&picker, "p", 1).await;
    // One that can be used, without rules.
    let mut mended = kept(3);
    mended["rules"] = Value::Null;
    space.change(POLICIES, "p", mended).await;
    let object =
        with_status(&client, &space, "p", |status| condition(status, "Accepted")["status"] == "True").await;
    assert_eq!(object["status"]["observedGeneration"], 3);
    with_status(&client, &space, "p", |status| status["rules"] == json!([]) && status["desired"] == 1).await;
    space.delete(POLICIES, "p").await;
    eventually("a policy to be gone", async || {
        let page = page(&picker).await;
        (!page.contains("usher_capacity_desired_replicas{policy=\"p\"")).then_some(())
    })
    .await;
}

/// Reasons of events about an object, sorted.
async fn events(space: &Space, kind: &str, name: &str) -> Vec<String> {
    let events = space.get(&space.path("v1", "events")).await.unwrap();
    let is_about =
        |event: &&Value| event["involvedObject"]["kind"] == kind && event["involvedObject"]["name"] == name;
    let all = events["items"].as_array().unwrap().iter().filter(is_about);
    let mut all: Vec<String> = all.map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

/// Waits until events about an object have exactly these reasons: they are written after what they are about.
async fn reports(space: &Space, kind: &str, name: &str, reasons: &[&str]) {
    let what = format!("events {reasons:?} about {kind} {name}");
    eventually(&what, async || (events(space, kind, name).await == reasons).then_some(())).await;
}

/// A role that is to have five pods, of a Deployment.
fn of_deployment(name: &str) -> Value {
    let mut spec = kept(6);
    spec["mode"] = json!("Apply");
    spec["roles"]["a"]["min"] = json!(5);
    spec["roles"]["a"]["scaleTargetRef"] =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_policy_reports_its_reason() {
    let Some(server) = Server::with_policies().await else { return };
    // It may look at replicas, and not write them.
    let more = vec![
        rule(&["apps"], &["deployments/scale"], &["get"]),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], &["list"]),
        rule(&[""], &["events"], &["create"]),
    ];
    let (client, space) = (server.client().await, server.space(&[rights(), more].concat()).await);
    deployment(&space, "x", json!({"app": "m"})).await;
    space.create(POLICIES, "p", of_deployment("x")).await;
    let picker = picker(server, &space, &["--capacity-single-replica=true"]).await;
    let holds = |of: &'static str| move |status: &Value| condition(status, of)["status"] == "True";
    with_status(&client, &space, "p", holds("WriteFailed")).await;
    picker.exports("usher_capacity_condition{condition=\"WriteFailed\",policy=\"p\"} 1").await;
    reports(&space, "Deployment", "x", &["WriteFailed"]).await;
    // A picker that is slow to start may have reported what it didn't know yet, too.
    let policy_reports = async |reason: &'static str| {
        eventually(reason, async || {
            events(&space, "CapacityPolicy", "p").await.iter().any(|of| of == reason).then_some(())
        })
        .await;
    };
    policy_reports("WriteFailed").await;
    // Its target is gone.
    let path = format!("{}/x", space.path("apps/v1", "deployments"));
    space.send("DELETE", &path, &json!({})).await.unwrap();
    let object = with_status(&client, &space, "p", holds("Unobserved")).await;
    let message = condition(&object["status"], "Unobserved")["message"].as_str().unwrap();
    assert!(message.contains("Deployment x: not found"), "{message}");
    picker.exports("usher_capacity_condition{condition=\"Unobserved\",policy=\"p\"} 1").await;
    policy_reports("Unobserved").await;
    // It comes back with the right to it.
    space.grant("more", &[rule(&["apps"], &["deployments/scale"], &["patch"])]).await;
    deployment(&space, "x", json!({"app": "m"})).await;
    let is_fine = |status: &Value| {
        ["Unobserved", "WriteFailed"].iter().all(|of| condition(status, of)["status"] == "False")
    };
    with_status(&client, &space, "p", is_fine).await;
}

/// With the chart's rights nobody reads the target.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_of_an_unknown_pool_reports_it_and_waits_for_pods() {
    let Some(server) = Server::with_policies().await else { return };
    let more = vec![rule(&[""], &["events"], &["create"])];
    let (client, space) = (server.client().await, server.space(&[rights(), more].concat()).await);
    let mut spec = of_deployment("x");
    spec["mode"] = json!("Recommend");
    space.create(POLICIES, "p", spec).await;
    let picker = picker(server, &space, &[]).await;
    let is = |reason: &'static str| move |status: &Value| condition(status, "Accepted")["reason"] == reason;
    let object = with_status(&client, &space, "p", is("TargetUnknown")).await;
    let message = condition(&object["status"], "Accepted")["message"].as_str().unwrap();
    assert!(message.contains("Deployment 'x'") && message.contains("spec.poolRef"), "{message}");
    let page = page(&picker).await;
    let frozen = "usher_capacity_frozen_seconds{policy=\"p\",reason=\"TargetUnknown\"} ";
    assert!(page.lines().any(|line| line.starts_with(frozen)), "{page}");
    reports(&space, "CapacityPolicy", "p", &["TargetUnknown"]).await;
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x-5d4f", "uid": "u", "controller": true}]);
    let pod = json!({
        "metadata": {"name": "x-5d4f-1", "labels": {"app": "m", "pod-template-hash": "5d4f"}, "ownerReferences": owner},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    space.send("POST", &space.path("v1", "pods"), &pod).await.unwrap();
    with_status(&client, &space, "p", is("Accepted")).await;
}

/// A Deployment whose pods have these labels.
async fn deployment(space: &Space, name: &str, labels: Value) {
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 3, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    space.send("POST", &space.path("apps/v1", "deployments"), &object).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_sharing_a_target_are_all_frozen() {
    let Some(server) = Server::with_policies().await else { return };
    let scales = rule(&["apps"], &["deployments/scale"], &["get", "patch"]);
    let more = vec![
        scales,
        rule(&["autoscaling"], &["horizontalpodautoscalers"], &["list"]),
        rule(&[""], &["events"], &["create"]),
    ];
    let (client, space) = (server.client().await, server.space(&[rights(), more].concat()).await);
    deployment(&space, "x", json!({"app": "m", "n": "x"})).await;
    deployment(&space, "y", json!({"app": "other", "n": "y"})).await;
    let with = |target: &str| {
        let mut spec = kept(3);
        spec["mode"] = json!("Apply");
        spec["roles"]["a"]["min"] = json!(5);
        spec["roles"]["a"]["max"] = json!(6);
        spec["roles"]["a"]["scaleTargetRef"] =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": target});
        spec
    };
    // It says that it is another picker's, and scales the same.
    let mut theirs = with("x");
    theirs["poolRef"] = json!({"name": "another"});
    space.create(POLICIES, "theirs", theirs).await;
    space.create(POLICIES, "ours", with("x")).await;
    // It doesn't say whose it is, and its pods are another pool's.
    space.create(POLICIES, "unsaid", with("y")).await;
    let picker = picker(server, &space, &["--capacity-single-replica=true"]).await;
    let is = |reason: &'static str| move |status: &Value| condition(status, "Accepted")["reason"] == reason;
    let object = with_status(&client, &space, "ours", is("TargetConflict")).await;
    let message = condition(&object["status"], "Accepted")["message"].as_str().unwrap();
    assert!(message.contains("'theirs' too, so none of them acts"), "{message}");
    picker.exports("usher_capacity_condition{condition=\"TargetConflict\",policy=\"ours\"} 1").await;
    let page = page(&picker).await;
    let frozen = "usher_capacity_frozen_seconds{policy=\"ours\",reason=\"TargetConflict\"} ";
    assert!(page.lines().any(|line| line.starts_with(frozen)), "{page}");
    reports(&space, "Deployment", "x", &["TargetConflict"]).await;
    reports(&space, "CapacityPolicy", "ours", &["TargetConflict"]).await;
    ticks(&picker, "ours", 2).await;
    let replicas = async |name: &str| {
        let path = format!("{}/{name}", space.path("apps/v1", "deployments"));
        space.get(&path).await.unwrap()["spec"]["replicas"].as_u64().unwrap()
    };
    assert_eq!((replicas("x").await, replicas("y").await), (3, 3));
    space.delete(POLICIES, "theirs").await;
    with_status(&client, &space, "ours", is("Accepted")).await;
    eventually("it to be scaled", async || (replicas("x").await == 5).then_some(())).await;
    let unserved = get(&client, &path(&space, "unsaid")).await.unwrap();
    assert!(unserved["status"].is_null() && replicas("y").await == 3, "{unserved}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_leader_writes_policy_status() {
    let Some(server) = Server::with_policies().await else { return };
    let client = server.client().await;
    let space = server.space(&[rights(), vec![election()]].concat()).await;
    space.pod("one", "10.8.1.1", "m").await;
    // Somebody else leads.
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", space.name);
    let name = format!("epp-{}-epp.llm-d.ai", space.name);
    let lease = json!({
        "metadata": {"name": name},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600},
    });
    send(&client, "POST", &leases, &lease).await.unwrap();
    space.create(POLICIES, "p", kept(3)).await;
    let mut broken = kept(3);
    broken["roles"]["a"]["min"] = json!(0);
    broken["total"] = json!({"metrics": [{"name": "queue_deph", "target": 1}]});
    space.create(POLICIES, "broken", broken).await;
    let picker = picker(server, &space, &["--ha-enable-leader-election"]).await;
    picker.says(&["capacity policy accepted"]).await;
    picker.says(&["capacity policy rejected", "queue_deph"]).await;
    // Longer than it is asked again who leads.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for name in ["p", "broken"] {
        let unserved = get(&client, &path(&space, name)).await.unwrap();
        assert!(unserved["status"].is_null(), "{unserved}");
    }
    // It gives the lease up.
    space.send("PATCH", &format!("{leases}/{name}"), &json!({"spec": {"holderIdentity": ""}})).await.unwrap();
    with_status(&client, &space, "p", |status| status["state"] == "Idle").await;
    with_status(&client, &space, "broken", |status| condition(status, "Accepted")["status"] == "False").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_status_right_is_logged_and_planning_continues() {
    let Some(server) = Server::with_policies().await else { return };
    let space = server.space(&rights()[..2]).await;
    space.create(POLICIES, "p", kept(3)).await;
    let picker = picker(server, &space, &[]).await;
    picker.says(&["cannot write the status", "capacitypolicies/status"]).await;
    ticks(&picker, "p", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topology_gives_layers_and_gets_a_status_from_nodes() {
    let Some(server) = Server::own().await else { return };
    server.define(&[POLICIES, TOPOLOGIES]).await;
    let (client, space) = (server.client().await, server.space(&rights()).await);
    let cluster = [
        rule(&["usher.dev"], &["clustertopologies"], &READ),
        rule(&["usher.dev"], &["clustertopologies/status"], &["get", "patch"]),
        rule(&[""], &["nodes"], &READ),
    ];
    server.grant_everywhere("topologies", user("epp"), &cluster).await;
    let node = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
    for object in [
        node("n1", json!({"example.com/rack": "r1", "example.com/zone": "a", "kubernetes.io/os": "linux"})),
        node("n2", json!({"example.com/rack": "r2", "example.com/zone": "a"})),
        node("n3", json!({"example.com/zone": "b"})),
    ] {
        send(&client, "POST", "/api/v1/nodes", &object).await.unwrap();
    }
    let mut spec = kept(3);
    spec["deploy"] =
        json!({"steps": {"a": 1}, "topology": {"clusterTopology": "racks", "layer": "example.com/rack"}});
    space.create(POLICIES, "p", spec).await;
    let _picker = picker(&server, &space, &[]).await;
    with_status(&client, &space, "p", |status| condition(status, "Accepted")["reason"] == "TopologyUnknown")
        .await;
    let topologies = "/apis/usher.dev/v1alpha1/clustertopologies";
    let topology = json!({
        "apiVersion": "usher.dev/v1alpha1", "kind": "ClusterTopology", "metadata": {"name": "racks"},
        "spec": {"layers": ["example.com/rack", "example.com/zone"]},
    });
    send(&client, "POST", topologies, &topology).await.unwrap();
    with_status(&client, &space, "p", |status| condition(status, "Accepted")["status"] == "True").await;
    let status = async |reason: &str| {
        let path = format!("{topologies}/racks");
        eventually(reason, async || {
            let status = get(&client, &path).await.ok()?["status"].take();
            (condition(&status, "Valid")["reason"] == reason).then_some(status)
        })
        .await
    };
    let missing = status("LabelsMissing").await;
    assert_eq!(missing["nodes"], 3);
    let rack = json!({"key": "example.com/rack", "domains": 2, "missing": 1, "broken": 0});
    assert_eq!(missing["layers"][0], rack, "{missing}");
    send(
        &client,
        "POST",
        "/api/v1/nodes",
        &node("n4", json!({"example.com/rack": "r1", "example.com/zone": "b"})),
    )
    .await
    .unwrap();
    let broken = status("ContainmentBroken").await;
    assert_eq!(broken["layers"][0]["broken"], 1);
    let message = condition(&broken, "Valid")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("r1 in a and b"), "{message}");
}
