//! Who acts, of several replicas and after a restart.

use super::group::{Group, pair};
use crate::server::Server;

const ELECTS: &str = "--ha-enable-leader-election";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_goes_on_in_the_middle_of_a_step() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &pair("")).await;
    group.workload("Deployment", "decode", 0).await;
    group.workload("Deployment", "prefill", 0).await;
    let mut first = group.picker(server, &[ELECTS]).await;
    group.become_replicas(&[("decode", 4), ("prefill", 2)]).await;
    let second = group.picker(server, &[ELECTS]).await;
    group.ready_pods("decode", 0..4).await;
    group.ready_pods("prefill", 0..1).await;
    first.kill().await;
    // Whoever leads now knows where the group stands.
    second.turns(true).await;
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!((group.replicas("decode").await, group.replicas("prefill").await), (4, 2));
    group.ready_pods("prefill", 1..2).await;
    group.become_replicas(&[("decode", 8), ("prefill", 4)]).await;
    let events = group.events("decode").await;
    assert_eq!(events.len(), 2, "each step was written once: {events:?}");
}
