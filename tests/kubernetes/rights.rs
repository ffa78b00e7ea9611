//! Log lines, health and decisions of a picker without the rights that it needs.

use crate::objects::{election, least};
use crate::picker::Picker;
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_and_counts_once_it_is_granted() {
    let Some(server) = Server::shared().await else { return };
    for (missing, named) in least().iter().zip(["pods", "inferencepools", "inferenceobjectives"]) {
        let rest: Vec<_> = least().into_iter().filter(|rule| rule != missing).collect();
        let space = server.space(&rest).await;
        space.pool("m", &[8000]).await;
        space.pod("a", "10.3.0.1", "m").await;
        let picker = Picker::of_pool(server, &space, &[]).await;
        picker.says(&["denies access", "get, list and watch", "epp", "cannot list", named]).await;
        assert!(!picker.is_healthy("").await, "{named}");
        space.grant("more", std::slice::from_ref(missing)).await;
        picker.turns(true).await;
        picker.becomes(&["10.3.0.1:8000"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_without_lease_rights_never_leads() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.3.1.1", "m").await;
    let picker = Picker::of_pool(server, &space, &["--ha-enable-leader-election"]).await;
    picker.says(&["may not take part in the election", "coordination.k8s.io"]).await;
    picker.becomes(&["10.3.1.1:8000"]).await;
    assert!(!picker.is_healthy("").await && picker.is_healthy("liveness").await);
    space.grant("leases", &[election()]).await;
    picker.turns(true).await;
}
