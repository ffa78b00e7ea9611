//! Policies that are objects: Usher follows them, and their statuses tell what became of them.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::metrics::page;
use crate::objects::{POLICIES, Space, TOPOLOGIES, election, get, rule, send, user};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

const FLAGS: [&str; 5] = [
    "--endpoint-selector=app=m",
    "--endpoint-target-ports=8000",
    "--metrics-endpoint-auth=false",
    "--sick-pods=false",
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

/// One whose rule fires as soon as there is a pod.
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
async fn told(client: &Client, space: &Space, name: &str, is: impl Fn(&Value) -> bool) -> Value {
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
async fn policies_of_the_cluster_are_followed_and_told() {
    let Some(server) = Server::own().await else { return };
    let (client, space) = (server.client().await, server.space(&rights()).await);
    space.pod("one", "10.8.0.1", "m").await;
    let picker = picker(&server, &space, &[]).await;
    picker.says(&["does not define this kind", "capacitypolicies", "deploy/chart/crds"]).await;
    server.define(&[POLICIES]).await;
    space.create(POLICIES, "p", rules()).await;
    let object = told(&client, &space, "p", |status| status["desired"] == 2).await;
    let status = &object["status"];
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!((&status["roles"][0]["name"], &status["roles"][0]["current"]), (&json!("a"), &json!(1)));
    assert_eq!((&status["rules"][0]["name"], &status["rules"][1]["name"]), (&json!("up"), &json!("down")));
    assert!(status["rules"][0]["lastTriggerTime"].as_str().unwrap().ends_with('Z'), "{status}");
    let accepted = condition(status, "Accepted");
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("True"), &json!("Accepted")), "{status}");
    let settled = told(&client, &space, "p", |status| {
        status["rules"][0]["lastSkipReason"] == "Cooldown" && status["rules"][1]["lastSkipReason"] == "Quiet"
    })
    .await;
    // Nothing changes, so nothing is written, however often it is ticked.
    ticks(&picker, "p", 4).await;
    let later = get(&client, &path(&space, "p")).await.unwrap();
    assert_eq!(later["metadata"]["resourceVersion"], settled["metadata"]["resourceVersion"], "{later}");
    assert_eq!(later["status"]["rules"][0]["lastTriggerTime"], status["rules"][0]["lastTriggerTime"]);

    // A version that the API server takes and Usher can't use: the one before stays.
    let mut broken = rules();
    broken["rules"][0]["metric"] = json!("in_fligt");
    space.change(POLICIES, "p", broken).await;
    let object =
        told(&client, &space, "p", |status| condition(status, "Accepted")["status"] == "False").await;
    let accepted = condition(&object["status"], "Accepted");
    let message = accepted["message"].as_str().unwrap();
    assert_eq!((&accepted["reason"], &accepted["observedGeneration"]), (&json!("Invalid"), &json!(2)));
    assert!(message.contains("in_fligt") && message.contains("generation 1 stays in force"), "{message}");
    ticks(&picker, "p", 1).await;
    // One that can be used, without rules.
    let mut mended = kept(3);
    mended["rules"] = Value::Null;
    space.change(POLICIES, "p", mended).await;
    let object = told(&client, &space, "p", |status| condition(status, "Accepted")["status"] == "True").await;
    assert_eq!(object["status"]["observedGeneration"], 3);
    told(&client, &space, "p", |status| status["rules"] == json!([]) && status["desired"] == 1).await;
    space.delete(POLICIES, "p").await;
    eventually("a policy to be gone", async || {
        let page = page(&picker).await;
        (!page.contains("usher_capacity_desired_replicas{policy=\"p\"")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_policy_scales_and_others_pools_are_left_alone() {
    let Some(server) = Server::own().await else { return };
    server.define(&[POLICIES]).await;
    let (client, space) = (server.client().await, server.space(&rights()).await);
    let with = |target: &str| {
        let mut spec = kept(3);
        spec["roles"]["a"]["scaleTargetRef"] =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": target});
        spec
    };
    let mut theirs = kept(3);
    theirs["poolRef"] = json!({"name": "another"});
    space.create(POLICIES, "theirs", theirs).await;
    space.create(POLICIES, "b-old", with("x")).await;
    // Times are in whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    space.create(POLICIES, "a-new", with("x")).await;
    let picker = picker(&server, &space, &[]).await;
    let is = |reason: &'static str| move |status: &Value| condition(status, "Accepted")["reason"] == reason;
    told(&client, &space, "b-old", is("Accepted")).await;
    let object = told(&client, &space, "a-new", is("TargetConflict")).await;
    let message = condition(&object["status"], "Accepted")["message"].as_str().unwrap();
    assert!(message.contains("'b-old', which is older"), "{message}");
    ticks(&picker, "b-old", 1).await;
    assert!(!page(&picker).await.contains("policy=\"a-new\""));
    space.delete(POLICIES, "b-old").await;
    told(&client, &space, "a-new", is("Accepted")).await;
    let untold = get(&client, &path(&space, "theirs")).await.unwrap();
    assert!(untold["status"].is_null(), "{untold}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_leads_tells() {
    let Some(server) = Server::own().await else { return };
    server.define(&[POLICIES]).await;
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
    let picker = picker(&server, &space, &["--ha-enable-leader-election"]).await;
    picker.says(&["capacity policy taken"]).await;
    picker.says(&["capacity policy can't be used", "queue_deph"]).await;
    // Longer than it is asked again who leads.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for name in ["p", "broken"] {
        let untold = get(&client, &path(&space, name)).await.unwrap();
        assert!(untold["status"].is_null(), "{untold}");
    }
    send(&client, "DELETE", &format!("{leases}/{name}"), &json!({})).await.unwrap();
    told(&client, &space, "p", |status| status["state"] == "Idle").await;
    told(&client, &space, "broken", |status| condition(status, "Accepted")["status"] == "False").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_tell_it_says_so_and_plans() {
    let Some(server) = Server::own().await else { return };
    server.define(&[POLICIES]).await;
    let space = server.space(&rights()[..2]).await;
    space.create(POLICIES, "p", kept(3)).await;
    let picker = picker(&server, &space, &[]).await;
    picker.says(&["cannot write the status", "capacitypolicies/status"]).await;
    ticks(&picker, "p", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topology_gives_layers_and_is_told_what_nodes_say() {
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
    told(&client, &space, "p", |status| condition(status, "Accepted")["reason"] == "TopologyUnknown").await;
    let topologies = "/apis/usher.dev/v1alpha1/clustertopologies";
    let topology = json!({
        "apiVersion": "usher.dev/v1alpha1", "kind": "ClusterTopology", "metadata": {"name": "racks"},
        "spec": {"layers": ["example.com/rack", "example.com/zone"]},
    });
    send(&client, "POST", topologies, &topology).await.unwrap();
    told(&client, &space, "p", |status| condition(status, "Accepted")["status"] == "True").await;
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
