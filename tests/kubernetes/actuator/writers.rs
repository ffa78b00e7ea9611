//! Who writes, when others do.

use std::time::Duration;

use super::group::Group;
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_foreign_write_is_the_baseline_and_two_are_another_writer() {
    let Some(server) = Server::shared().await else { return };
    let spec = "{mode: Apply, interval: 2s, roles: {decode: {min: 2, max: 6, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";
    let group = Group::new(server, spec).await;
    group.workload("Deployment", "decode", 3).await;
    let picker = group.picker(server, &[]).await;
    picker.turns(true).await;
    // Within the bounds it is what somebody wants.
    group.scale("decode", 5).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(group.replicas("decode").await, 5);
    // Once outside of them it comes back.
    group.scale("decode", 9).await;
    group.become_replicas(&[("decode", 6)]).await;
    // Again and again: another one wants it so.
    group.scale("decode", 9).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    group.scale("decode", 8).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(group.replicas("decode").await, 8, "it steps back");
    // Until it has been quiet.
    group.become_replicas(&[("decode", 6)]).await;
}
