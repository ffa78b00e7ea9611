//! `usher doctor` before an API server: rights, kinds of objects, the pool and what belongs to it.

use std::net::SocketAddr;

use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use usher::sim::{SimConfig, SimHandle, start};

use crate::objects::{Definition, POLICIES, POOLS, Space, election, least, reviews, rule, send, user};
use crate::program::{Examined, examined_with};
use crate::server::Server;
use crate::support::{eventually, listener, nobody};

/// Rights to read that the doctor needs besides those of the picker.
fn reading() -> Value {
    rule(&["", "discovery.k8s.io"], &["services", "endpointslices"], &["get", "list"])
}

/// A doctor with a user's rights.
struct Doctor {
    _folder: TempDir,
    kubeconfig: String,
    space: String,
}

impl Doctor {
    fn new(server: &Server, port: u16, space: &Space) -> Self {
        Self::of("epp", server, port, space)
    }

    fn of(user: &str, server: &Server, port: u16, space: &Space) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, server.kubeconfig(user, port).to_string()).unwrap();
        let kubeconfig = file.display().to_string();
        Self { _folder: folder, kubeconfig, space: space.name.clone() }
    }

    /// Without a look at the rights that have no namespace.
    async fn examines(&self, flags: &[&str]) -> Examined {
        self.looks(&[&["--metrics-endpoint-auth=false"], flags].concat()).await
    }

    async fn looks(&self, flags: &[&str]) -> Examined {
        let all = [&["--pool-namespace", self.space.as_str()], flags].concat();
        examined_with(&all, &[("KUBECONFIG", &self.kubeconfig)]).await
    }
}

/// A simulated model server.
async fn model_server() -> (SimHandle, SocketAddr) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    (start(SimConfig::default(), vec![listener]).await.unwrap(), address)
}

/// A Service of the picker with one ready address.
async fn service(client: &Client, space: &Space, port: u16) {
    let object = json!({"metadata": {"name": "epp"}, "spec": {"ports": [{"port": port}]}});
    send(client, "POST", &format!("/api/v1/namespaces/{}/services", space.name), &object).await.unwrap();
}

async fn ready(client: &Client, space: &Space, ready: bool) {
    let object = json!({
        "metadata": {"name": format!("epp-{ready}"), "labels": {"kubernetes.io/service-name": "epp"}},
        "addressType": "IPv4", "ports": [],
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": ready}}],
    });
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", space.name);
    send(client, "POST", &path, &object).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complete_pool_has_no_findings() {
    let Some(server) = Server::shared().await else { return };
    let (_running, address) = model_server().await;
    let client = server.client().await;
    let space = server.space(&[least(), vec![election(), reading()]].concat()).await;
    space.pool("m", &[address.port()]).await;
    space.pod("a", "127.0.0.1", "m").await;
    service(&client, &space, 9002).await;
    ready(&client, &space, true).await;
    let doctor = Doctor::new(server, server.port, &space);
    let found = doctor.examines(&["--pool-name", "p", "--ha-enable-leader-election"]).await;
    assert_eq!((found.code, found.codes()), (0, vec![]), "{:#}", found.report);
    for check in ["crds", "rbac", "pool", "pod-metrics"] {
        assert_eq!(found.status(check), "ok", "{check}: {:#}", found.report);
    }
    assert!(found.detail("pool").contains("1 pod of which 1"), "{}", found.detail("pool"));
    assert!(found.detail("versions").contains("Kubernetes v1."), "{}", found.detail("versions"));
    // There is no Gateway API here.
    assert_eq!(found.status("routes"), "skipped");
    assert!(found.detail("routes").contains("can't be read"), "{}", found.detail("routes"));
    // Pods by their labels need less.
    let port = address.port().to_string();
    let found = doctor.examines(&["--endpoint-selector", "app=m", "--endpoint-target-ports", &port]).await;
    assert_eq!((found.code, found.codes()), (0, vec![]), "{:#}", found.report);
    assert_eq!((found.status("crds"), found.status("pod-metrics")), ("skipped", "ok"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_missing_right_is_named_with_its_rule() {
    let Some(server) = Server::shared().await else { return };
    let all = [least(), vec![election()]].concat();
    for missing in &all {
        let rest: Vec<_> = all.iter().filter(|rule| *rule != missing).cloned().collect();
        let space = server.space(&rest).await;
        space.pool("m", &[8000]).await;
        let doctor = Doctor::new(server, server.port, &space);
        let found = doctor.examines(&["--pool-name", "p", "--ha-enable-leader-election"]).await;
        assert_eq!((found.code, found.status("rbac")), (1, "wrong"), "{missing}: {:#}", found.report);
        let resource = missing["resources"][0].as_str().unwrap();
        let findings = found.report["checks"].as_array().unwrap().iter();
        let mut findings = findings.flat_map(|check| check["findings"].as_array().unwrap());
        let rule = format!("resources: [\"{resource}\"], verbs: [\"get\", \"list\", \"watch\"");
        let fix = findings.find(|finding| finding["fix"].as_str().unwrap().contains(&rule));
        let what = fix.unwrap_or_else(|| panic!("{rule}: {:#}", found.report))["what"].as_str().unwrap();
        assert!(what.contains("the account of this doctor may not get, list, watch"), "{what}");
        assert!(!found.codes().contains(&"pool-missing"), "a pool that can't be read may be there");
    }
    // Somebody else's rights: a service account that has none.
    let space = server.space(&all).await;
    space.pool("m", &[8000]).await;
    let doctor = Doctor::new(server, server.port, &space);
    let found = doctor.examines(&["--pool-name", "p", "--service-account", "epp"]).await;
    assert_eq!(found.status("rbac"), "skipped", "{:#}", found.report);
    assert!(found.detail("rbac").contains("SubjectAccessReview"), "{}", found.detail("rbac"));
    let doctor = Doctor::of("admin", server, server.port, &space);
    let found = doctor.examines(&["--pool-name", "p", "--service-account", "epp"]).await;
    let what = found.finding("right-missing")["what"].as_str().unwrap();
    assert!(what.contains("the service account epp may not"), "{what}");
    assert_eq!(doctor.examines(&["--pool-name", "p"]).await.status("rbac"), "ok");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_metrics_review_rights_are_found() {
    let Some(server) = Server::own().await else { return };
    let space = server.space(&least()).await;
    let doctor = Doctor::new(&server, server.port, &space);
    let found = doctor.looks(&["--pool-name", "p"]).await;
    assert_eq!(found.status("rbac"), "warning", "{:#}", found.report);
    let finding = found.finding("metrics-right-missing");
    let (what, fix) = (finding["what"].as_str().unwrap(), finding["fix"].as_str().unwrap());
    assert!(what.contains("may not create tokenreviews.authentication.k8s.io"), "{what}");
    assert!(fix.contains("ClusterRole") && fix.contains("verbs: [\"create\"]"), "{fix}");
    assert!(found.report.to_string().contains("subjectaccessreviews.authorization.k8s.io"));
    server.grant_everywhere("reviews", user("epp"), &reviews()).await;
    eventually("the rights to count", async || {
        (doctor.looks(&["--pool-name", "p"]).await.status("rbac") == "ok").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_misconfigurations_are_found() {
    let Some(server) = Server::shared().await else { return };
    let client = server.client().await;
    let space = server.space(&[least(), vec![reading()]].concat()).await;
    let doctor = Doctor::new(server, server.port, &space);
    let examined = async || doctor.examines(&["--pool-name", "p"]).await;

    let found = examined().await;
    assert_eq!((found.code, found.codes()), (1, vec!["pool-missing"]), "{:#}", found.report);
    space.pool("m", &[8000]).await;
    let found = examined().await;
    assert_eq!(found.codes(), ["picker-service", "pool-empty"], "{:#}", found.report);
    assert!(found.finding("picker-service")["what"].as_str().unwrap().contains("does not exist"));
    service(&client, &space, 9003).await;
    let found = examined().await;
    assert!(found.finding("picker-service")["what"].as_str().unwrap().contains("9002"), "{:#}", found.report);
    let path = format!("/api/v1/namespaces/{}/services/epp", space.name);
    send(&client, "DELETE", &path, &json!({})).await.unwrap();
    service(&client, &space, 9002).await;
    ready(&client, &space, false).await;
    // A pod that is not ready, and declares another port.
    let pod = json!({
        "metadata": {"name": "a", "labels": {"app": "m"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 9000}]}]},
    });
    send(&client, "POST", &format!("/api/v1/namespaces/{}/pods", space.name), &pod).await.unwrap();
    let pool = format!("/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools", space.name);
    let mut other: Value = json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "other"},
        "spec": {"selector": {"matchLabels": {"app": "m"}}, "targetPorts": [{"number": 8000}]},
    });
    send(&client, "POST", &pool, &other).await.unwrap();
    let found = examined().await;
    let expected = ["picker-service-empty", "pool-empty", "pool-ports", "pools-overlap"];
    assert_eq!(found.codes(), expected, "{:#}", found.report);
    // The other one has no picker, and a gateway that refuses it.
    other = send(&client, "GET", &format!("{pool}/other"), &json!({})).await.unwrap();
    other["status"] = json!({"parents": [{
        "parentRef": {"name": "gw"},
        "conditions": [{"type": "Accepted", "status": "False", "reason": "HTTPRouteNotAccepted", "message": "no such route"}],
    }]});
    send(&client, "PUT", &format!("{pool}/other/status"), &other).await.unwrap();
    let found = doctor.examines(&["--pool-name", "other"]).await;
    found.finding("pool-without-picker");
    let refused = found.finding("pool-not-accepted")["what"].as_str().unwrap().to_owned();
    assert!(refused.contains("gateway gw") && refused.contains("no such route"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_crds_and_unreachable_api_server_are_found() {
    let Some(server) = Server::own().await else { return };
    let space = server.space(&least()).await;
    let found = Doctor::new(&server, server.port, &space).examines(&["--pool-name", "p"]).await;
    assert_eq!((found.code, found.codes()), (1, vec!["crd-missing", "pool-missing"]), "{:#}", found.report);
    assert_eq!(found.status("rbac"), "ok", "rights to kinds that are not there are not missed");
    let found = Doctor::new(&server, nobody().port(), &space).examines(&["--pool-name", "p"]).await;
    assert_eq!((found.code, found.codes()), (1, vec!["api-server-unreachable"]), "{:#}", found.report);
    for check in ["rbac", "pool", "routes"] {
        assert_eq!(found.status(check), "skipped", "{check}");
    }
}

/// A role whose pods have the label `part`, and a Deployment.
fn role(part: &str, deployment: &str) -> Value {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment});
    json!({"max": 4, "selector": {"part": part}, "scaleTargetRef": target})
}

/// A pod of a model at Usher's gate.
async fn gated(space: &Space, name: &str, model: &str, part: &str) {
    let pod = json!({"metadata": {"name": name, "labels": {"app": model, "part": part}}, "spec": {
        "schedulingGates": [{"name": "usher.dev/rollout"}],
        "containers": [{"name": "c", "image": "i"}],
    }});
    space.send("POST", &space.path("v1", "pods"), &pod).await.unwrap();
}

async fn deployment(space: &Space, name: &str) {
    let labels = json!({"app": name});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }});
    space.send("POST", &space.path("apps/v1", "deployments"), &object).await.unwrap();
}

/// Findings about capacity policies.
fn capacity(found: &Examined) -> Vec<String> {
    let codes = found.codes();
    let ours = codes.iter().filter(|code| code.starts_with("capacity") || code.starts_with("gate-"));
    ours.map(|code| (*code).to_owned()).collect()
}

/// The autoscalers of KEDA, as far as somebody asks who may list them.
const SCALED_OBJECTS: Definition = Definition {
    file: "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: scaledobjects.keda.sh}\nspec:\n  group: keda.sh\n  names: {kind: ScaledObject, plural: scaledobjects}\n  scope: Namespaced\n  versions:\n  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n",
    group: "keda.sh",
    version: "v1alpha1",
    plural: "scaledobjects",
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_misconfigurations_are_found() {
    let Some(server) = Server::own().await else { return };
    server.define(&[POOLS, POLICIES]).await;
    let reads = [
        rule(&["usher.dev"], &["capacitypolicies"], &["get", "list", "watch"]),
        rule(&["apps"], &["deployments/scale"], &["get"]),
    ];
    let space = server.space(&[&least()[..], &reads].concat()).await;
    space.pool("m", &[8000]).await;
    let doctor = Doctor::new(&server, server.port, &space);
    let examined = async || doctor.examines(&["--pool-name", "p"]).await;
    let found = examined().await;
    assert_eq!(found.status("capacity"), "skipped", "{:#}", found.report);

    deployment(&space, "d").await;
    space.create(POLICIES, "sound", json!({"mode": "Apply", "roles": {"decode": role("d", "d")}})).await;
    gated(&space, "d-0", "m", "d").await;
    let found = examined().await;
    assert_eq!(found.status("capacity"), "wrong");
    let text = found.report.to_string();
    assert!(text.contains("updates that are held back can't be looked for: "), "{text}");
    assert!(capacity(&found).iter().all(|code| code.starts_with("capacity-right-")), "{:#}", found.report);
    let text = found.report.to_string();
    for words in [
        "may not patch deployments/scale of apps",
        "may not get, patch capacitypolicies/status of usher.dev",
        "may not patch pods",
        "may not create pods/eviction",
        "may not get deployments of apps",
    ] {
        assert!(text.contains(words), "{words}: {:#}", found.report);
    }
    found.finding("capacity-right-missing");
    let optional = found.finding("capacity-right-optional")["what"].as_str().unwrap();
    assert!(optional.contains("may not create, list events"), "{optional}");
    let more = [
        rule(&["usher.dev"], &["capacitypolicies/status"], &["get", "patch"]),
        rule(&["apps"], &["deployments/scale"], &["patch"]),
        // Owners of targets are read one by one.
        rule(&["apps"], &["deployments"], &["get"]),
        rule(&[""], &["pods"], &["patch"]),
        rule(&[""], &["pods/eviction"], &["create"]),
        rule(&["autoscaling"], &["horizontalpodautoscalers"], &["list"]),
        rule(&[""], &["events"], &["create", "list"]),
    ];
    space.grant("more", &more).await;
    eventually("the rights to count", async || (examined().await.status("capacity") == "ok").then_some(()))
        .await;

    // The same object and the same pods as another policy's, and an object that isn't there.
    let mut hidden = role("s", "s");
    hidden["scaleTargetRef"]["kind"] = json!("StatefulSet");
    let kinds = ["deployments", "statefulsets"];
    space.grant("kinds", &[rule(&["apps"], &kinds, &["list"])]).await;
    let held = json!({"metadata": {"annotations": {"usher.dev/paused": "true"}}, "spec": {"paused": true}});
    space.send("PATCH", &format!("{}/d", space.path("apps/v1", "deployments")), &held).await.unwrap();
    let roles = json!({"again": role("d", "d"), "gone": role("p", "nowhere"), "hidden": hidden});
    space.create(POLICIES, "broken", json!({"roles": roles})).await;
    gated(&space, "lost-0", "m", "nobody").await;
    // It has the labels of a role, and is another model's.
    gated(&space, "other-0", "n", "d").await;
    let path = format!("{}/broken/status", space.path("usher.dev/v1alpha1", "capacitypolicies"));
    let status = json!({"status": {"conditions": [{
        "type": "Accepted", "status": "False", "reason": "TargetConflict", "message": "the older one has it",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    space.send("PATCH", &path, &status).await.unwrap();
    let found = examined().await;
    let what = |code: &str| found.finding(code)["what"].as_str().unwrap().to_owned();
    assert!(what("capacity-policy-refused").contains("TargetConflict: the older one has it"));
    assert!(what("capacity-target-missing").contains("broken, role gone: there is no Deployment nowhere"));
    assert!(
        what("capacity-target-shared").contains("Deployment d is scaled by broken/again and sound/decode")
    );
    let overlap = what("capacity-selectors-overlap");
    assert!(overlap.contains("broken/again and sound/decode select the same pods, such as d-0"), "{overlap}");
    assert_eq!(what("update-held"), "no policy with mode Apply and updates is for Deployment d");
    let orphan = what("gate-orphaned");
    assert!(orphan.contains("2 pods wait") && orphan.ends_with(": lost-0, other-0"), "{orphan}");
    assert_eq!(capacity(&found).len(), 5, "{:#}", found.report);
    let text = found.report.to_string();
    assert!(text.contains("targets can't be looked for: StatefulSet s: "), "{text}");
    assert!(!text.contains("keda.sh"), "it isn't there: {text}");
    server.define(&[SCALED_OBJECTS]).await;
    let found = examined().await;
    let optional = found.finding("capacity-right-optional")["what"].as_str().unwrap();
    assert!(optional.contains("may not list scaledobjects of keda.sh"), "{optional}");
    // Without the right to read it a topology isn't there.
    let topology = json!({"clusterTopology": "racks"});
    let placed = json!({"roles": {"a": {"max": 2, "selector": {"part": "a"}}}, "deploy": {"steps": {"a": 1}, "topology": topology}});
    space.create(POLICIES, "placed", placed).await;
    let text = examined().await.report.to_string();
    assert!(text.contains("may not get, list, watch clustertopologies of usher.dev"), "{text}");
    // A policy of the picker's file counts as well.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policies.yaml");
    let policy = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: filed}\nspec: {mode: Apply, roles: {a: {max: 3, selector: {part: nobody}}}}\n";
    std::fs::write(&file, policy).unwrap();
    let file = file.display().to_string();
    let found = doctor.examines(&["--pool-name", "p", "--capacity-policy", &file]).await;
    let orphan = found.finding("gate-orphaned")["what"].as_str().unwrap();
    assert!(orphan.contains("1 pod waits") && orphan.ends_with(": other-0"), "{orphan}");
}
