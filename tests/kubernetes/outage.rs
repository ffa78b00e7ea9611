//! The API server goes away, and comes back having forgotten what it said.

use std::time::Instant;

use crate::metrics::page;
use crate::objects::{OBJECTIVES, POOLS, REWRITES, least};
use crate::picker::Picker;
use crate::relay::Relay;
use crate::server::Server;
use crate::support::eventually;

/// Waits until the picker's metrics say of all kinds of objects whether it hears of changes,
/// and for how long it has not heard of the API server.
async fn connected(picker: &Picker, connected: bool) {
    let wanted = u8::from(connected);
    eventually(&format!("connected {wanted} of all kinds"), async || {
        let page = page(picker).await;
        let says = |kind| {
            page.contains(&format!("usher_kubernetes_connected{{resource=\"{kind}\"}} {wanted}\n"))
                && page.contains(&format!("usher_kubernetes_age_seconds{{resource=\"{kind}\"}} "))
        };
        ["pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"]
            .into_iter()
            .all(says)
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_served_during_an_api_server_outage() {
    let Some(mut server) = Server::own().await else { return };
    server.define(&[POOLS, OBJECTIVES, REWRITES]).await;
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.5.0.1", "m").await;
    space.pod("b", "10.5.0.2", "m").await;
    let relay = Relay::to(server.port).await;
    let flags = ["--pool-name=p", "--pool-namespace", &space.name, "--metrics-endpoint-auth=false"];
    let picker = Picker::start(&server, relay.port, &flags).await;
    picker.becomes(&["10.5.0.1:8000", "10.5.0.2:8000"]).await;
    // The rules are known, too.
    picker.turns(true).await;
    connected(&picker, true).await;

    // Away for everybody.
    server.down();
    picker.says(&["cannot follow Kubernetes objects; keeping the last known ones"]).await;
    picker.becomes(&["10.5.0.1:8000", "10.5.0.2:8000"]).await;
    assert!(picker.is_healthy("").await);
    connected(&picker, false).await;
    server.up().await;
    connected(&picker, true).await;
    space.status("b", "10.5.0.2", false).await;
    picker.becomes(&["10.5.0.1:8000"]).await;

    // Away for the picker alone, which misses what happens; and the server starts anew, so
    // that it can't say what did.
    relay.cut();
    space.delete_pod("a", 0).await;
    space.pod("c", "10.5.0.3", "m").await;
    space.change_pool("n", &[8000]).await;
    space.pod("d", "10.5.0.4", "n").await;
    server.down();
    server.up().await;
    assert_eq!(picker.members().await, ["10.5.0.1:8000".to_owned()].into());
    relay.mend();
    picker.becomes(&["10.5.0.4:8000"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn picker_waits_for_an_unreachable_api_server() {
    let Some(mut server) = Server::own().await else { return };
    server.define(&[POOLS]).await;
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.5.1.1", "m").await;
    server.down();
    let picker = Picker::of_pool(&server, &space, &["--metrics-endpoint-auth=false"]).await;
    picker.says(&["cannot follow Kubernetes objects"]).await;
    assert!(!picker.is_healthy("").await);
    server.up().await;
    picker.turns(true).await;
    picker.becomes(&["10.5.1.1:8000"]).await;
    // Kinds that are not defined here are asked for, which is nothing to worry about.
    connected(&picker, true).await;
    server.down();
    connected(&picker, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silently_dropped_connections_are_detected() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.5.2.1", "m").await;
    let relay = Relay::to(server.port).await;
    let flags = ["--pool-name=p", "--pool-namespace", &space.name];
    let picker = Picker::start(server, relay.port, &flags).await;
    picker.turns(true).await;
    picker.becomes(&["10.5.2.1:8000"]).await;
    // As when packets are dropped: both ends believe that they are connected.
    relay.mute();
    let muted = Instant::now();
    space.pod("b", "10.5.2.2", "m").await;
    assert_eq!(picker.members().await, ["10.5.2.1:8000".to_owned()].into());
    picker.becomes(&["10.5.2.1:8000", "10.5.2.2:8000"]).await;
    println!("noticed after {:?}", muted.elapsed());
    picker.says(&["cannot follow Kubernetes objects", "did not respond within"]).await;
}
