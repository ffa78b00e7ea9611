//! Endpoints of a pool.

use serde_json::json;

use crate::objects::{POOLS, least, rule};
use crate::picker::{Picker, Response};
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_matching_pods_are_endpoints() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.1.0.1", "m").await;
    space.pod("other", "10.1.0.2", "x").await;
    let picker = Picker::of_pool(server, &space, &[]).await;
    picker.turns(true).await;
    assert_eq!(picker.members().await, ["10.1.0.1:8000".to_owned()].into(), "all of it from the start");
    space.pod("b", "10.1.0.3", "m").await;
    picker.becomes(&["10.1.0.1:8000", "10.1.0.3:8000"]).await;
    space.status("a", "10.1.0.1", false).await;
    picker.becomes(&["10.1.0.3:8000"]).await;
    space.status("a", "10.1.0.9", true).await;
    picker.becomes(&["10.1.0.3:8000", "10.1.0.9:8000"]).await;
    space.mark("other", json!({"labels": {"app": "m"}})).await;
    picker.becomes(&["10.1.0.2:8000", "10.1.0.3:8000", "10.1.0.9:8000"]).await;
    space.mark("b", json!({"labels": {"app": "x"}})).await;
    picker.becomes(&["10.1.0.2:8000", "10.1.0.9:8000"]).await;
    space.delete_pod("a", 0).await;
    picker.becomes(&["10.1.0.2:8000"]).await;
    space.delete_pod("other", 0).await;
    picker.becomes(&[]).await;
    assert!(picker.is_healthy("").await, "a pool without pods is a pool");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_port_is_an_endpoint_unless_annotated() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000, 8001]).await;
    space.pod("a", "10.1.1.1", "m").await;
    let picker = Picker::of_pool(server, &space, &[]).await;
    picker.becomes(&["10.1.1.1:8000", "10.1.1.1:8001"]).await;
    space.mark("a", json!({"annotations": {"llm-d.ai/active-ports": "8001"}})).await;
    picker.becomes(&["10.1.1.1:8001"]).await;
    let older = json!({"llm-d.ai/active-ports": null, "inference.networking.k8s.io/active-ports": "8000"});
    space.mark("a", json!({"annotations": older})).await;
    picker.becomes(&["10.1.1.1:8000"]).await;
    space.mark("a", json!({"annotations": {"inference.networking.k8s.io/active-ports": ""}})).await;
    picker.becomes(&[]).await;
    space.mark("a", json!({"annotations": {"inference.networking.k8s.io/active-ports": null}})).await;
    picker.becomes(&["10.1.1.1:8000", "10.1.1.1:8001"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_is_changed_deleted_and_recreated() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pod("a", "10.1.2.1", "m").await;
    space.pod("b", "10.1.2.2", "n").await;
    let picker = Picker::of_pool(server, &space, &[]).await;
    assert!(!picker.is_healthy("").await);
    picker.becomes(&[]).await;
    space.pool("m", &[8000]).await;
    picker.turns(true).await;
    picker.becomes(&["10.1.2.1:8000"]).await;
    space.change_pool("m", &[8001]).await;
    picker.becomes(&["10.1.2.1:8001"]).await;
    space.change_pool("n", &[8000]).await;
    picker.becomes(&["10.1.2.2:8000"]).await;
    space.delete(POOLS, "p").await;
    picker.turns(false).await;
    picker.becomes(&[]).await;
    space.status("b", "10.1.2.3", true).await;
    space.pool("n", &[8000]).await;
    picker.turns(true).await;
    picker.becomes(&["10.1.2.3:8000"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_needs_no_pool_and_no_other_rights() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&[rule(&[""], &["pods"], &["get", "list", "watch"])]).await;
    for (name, ip, app) in [("a", "10.1.3.1", "m"), ("b", "10.1.3.2", "n"), ("c", "10.1.3.3", "x")] {
        space.pod(name, ip, app).await;
    }
    let flags = [
        "--endpoint-selector=app in (m,n),!canary",
        "--endpoint-target-ports=8000,8001",
        "--pool-namespace",
        &space.name,
    ];
    let picker = Picker::start(server, server.port, &flags).await;
    picker.turns(true).await;
    picker.becomes(&["10.1.3.1:8000", "10.1.3.1:8001", "10.1.3.2:8000", "10.1.3.2:8001"]).await;
    space.mark("b", json!({"labels": {"canary": "1"}})).await;
    picker.becomes(&["10.1.3.1:8000", "10.1.3.1:8001"]).await;
}

/// Sessions stay at their endpoint.
const SESSIONS: &str = "
plugins:
- {type: session-affinity-filter, parameters: {strategy: session_id}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: session-affinity-filter
  - pluginRef: queue-scorer
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_pod_has_no_sessions() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.1.4.1", "m").await;
    let picker =
        Picker::of_pool(server, &space, &["--allow-experimental-plugins", "--config-text", SESSIONS]).await;
    picker.turns(true).await;
    picker.becomes(&["10.1.4.1:8000"]).await;
    let session = async || match picker.ask(&[("x-session-id", "s")], "m").await {
        Response::Routed { candidates, .. } => candidates,
        Response::Refused { status } => panic!("{status}"),
    };
    session().await;
    space.pod("b", "10.1.4.2", "m").await;
    picker.becomes(&["10.1.4.1:8000", "10.1.4.2:8000"]).await;
    assert_eq!(session().await, ["10.1.4.1:8000".to_owned()].into(), "it stays where it is");
    // The same pod, away for a moment.
    space.status("a", "10.1.4.1", false).await;
    picker.becomes(&["10.1.4.2:8000"]).await;
    space.status("a", "10.1.4.1", true).await;
    picker.becomes(&["10.1.4.1:8000", "10.1.4.2:8000"]).await;
    assert_eq!(session().await, ["10.1.4.1:8000".to_owned()].into(), "its pod was only not ready");
    // Another pod of the same name.
    space.delete_pod("a", 0).await;
    picker.becomes(&["10.1.4.2:8000"]).await;
    space.pod("a", "10.1.4.1", "m").await;
    picker.becomes(&["10.1.4.1:8000", "10.1.4.2:8000"]).await;
    let both = ["10.1.4.1:8000".to_owned(), "10.1.4.2:8000".to_owned()];
    assert_eq!(session().await, both.into(), "it may go anywhere");
}
