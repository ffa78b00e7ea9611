//! A new version of the picker is rolled out while requests come in through a real Envoy:
//! none of them may fail.
//!
//! Deployment controller, kubelet and endpoint controller are played by the test
//! ([`workload`]): no time of a real cluster is shorter than theirs here.

mod gateway;
mod load;
mod workload;

use std::time::Duration;

use crate::objects::{election, least};
use crate::server::Server;
use crate::support::servers::Servers;
use gateway::{Gateway, Judges};
use load::Load;
use workload::{Deployment, Strategy};

/// Strategy of the chart for one replica: the new one is ready before the old one goes.
const ONE: Strategy = Strategy { replicas: 1, max_surge: 1, max_unavailable: 0 };

/// Two replicas that elect a leader: only one is ever available.
const TWO: Strategy = Strategy { replicas: 2, max_surge: 1, max_unavailable: 1 };

/// Rolls a deployment out twice, the second time back, under load through two Envoys: one
/// that asks the pickers for their health, and one that knows only what Kubernetes says.
async fn rolls_out(strategy: Strategy, flags: &[&str]) {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&[least(), vec![election()]].concat()).await;
    let servers = Servers::start().await;
    let ports: Vec<u16> = servers.addresses.iter().map(std::net::SocketAddr::port).collect();
    space.pool("m", &ports).await;
    space.pod("model", "127.0.0.1", "m").await;

    let mut deployment = Deployment::start(server, &space, strategy, flags, "old").await;
    let asks = Gateway::start(&servers, &deployment, Judges::Health).await;
    let believes = Gateway::start(&servers, &deployment, Judges::Nothing).await;
    let load = [Load::start(asks.address()), Load::start(believes.address())];
    for load in &load {
        load.until_answered(400).await;
    }
    deployment.roll_out("new").await;
    deployment.roll_out("old").await;
    for (load, name) in load.into_iter().zip(["with health checks", "without"]) {
        load.until_answered(400).await;
        let (answered, streams, failed) = load.finish().await;
        println!(
            "{strategy:?} {name}: {answered} requests and {streams} long responses, {} failed",
            failed.len()
        );
        assert!(
            failed.is_empty(),
            "{} of {answered} failed: {:#?}",
            failed.len(),
            &failed[..failed.len().min(5)]
        );
        assert!(streams > 0, "no response was longer than a drain");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_is_replaced_without_a_failed_request() {
    rolls_out(ONE, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_of_elected_replicas_fails_no_request() {
    rolls_out(TWO, &["--ha-enable-leader-election"]).await;
}

/// The time that a whole rollout may take, with a large margin.
const ROLLOUT: Duration = Duration::from_secs(120);
