//! `usher doctor` before an API server: rights, kinds of objects, the pool and what belongs to it.

use std::net::SocketAddr;

use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use usher::sim::{SimConfig, SimHandle, start};

use crate::objects::{Space, election, least, reviews, rule, send, user};
use crate::program::{Examined, examined_with};
use crate::server::Server;
use crate::support::{eventually, listener, nobody};

/// What the doctor reads besides the picker.
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
async fn a_pool_with_all_that_belongs_to_it_is_sound() {
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
async fn each_right_that_is_missing_is_named_with_its_rule() {
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
async fn the_rights_to_ask_who_may_read_metrics_are_looked_at() {
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
async fn what_a_pool_lacks_is_found() {
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
async fn a_server_without_the_kinds_and_one_that_is_away() {
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
