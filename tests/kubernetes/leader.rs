//! Readiness of several replicas.

use std::time::{Duration, Instant};

use crate::objects::{Space, election, least};
use crate::picker::{Picker, STEADY};
use crate::relay::Relay;
use crate::server::Server;
use crate::support::eventually;

/// Understands nothing that a pool of `appProtocol: http` speaks.
const GRPC_ONLY: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: vllmgrpc-parser
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}]}
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}
";

const ELECTS: &str = "--ha-enable-leader-election";

/// A pool with one pod, at an address of its own, and the rights to elect a leader.
async fn space(server: &Server, ip: &str) -> Space {
    let space = server.space(&[least(), vec![election()]].concat()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", ip, "m").await;
    space
}

async fn is_ready(picker: &Picker, ready: bool) {
    eventually("readiness", async || (picker.is_healthy("readiness").await == ready).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_leads_after_a_crash_or_a_stop() {
    let Some(server) = Server::shared().await else { return };
    let space = space(server, "10.4.0.1").await;
    let mut first = Picker::of_pool(server, &space, &STEADY).await;
    is_ready(&first, true).await;
    let holder = space.holder().await.unwrap();
    let second = Picker::of_pool(server, &space, &STEADY).await;
    // One that waits knows the endpoints, and answers whoever asks it.
    second.becomes(&["10.4.0.1:8000"]).await;
    assert!(second.is_healthy("liveness").await && !second.is_healthy("readiness").await);
    assert!(!second.is_healthy("").await && !second.is_healthy("no-such-name").await);
    first.kill().await;
    let crashed = Instant::now();
    is_ready(&second, true).await;
    println!("takeover after a crash: {:?}", crashed.elapsed());
    assert_ne!(space.holder().await.unwrap(), holder);
    let third = Picker::of_pool(server, &space, &STEADY).await;
    third.becomes(&["10.4.0.1:8000"]).await;
    assert!(!third.is_healthy("readiness").await);
    second.terminate();
    let stopped = Instant::now();
    second.says(&["lease released"]).await;
    // While it drains, which is over in 9 s, it still responds.
    second.becomes(&["10.4.0.1:8000"]).await;
    is_ready(&second, false).await;
    assert!(second.is_healthy("liveness").await);
    is_ready(&third, true).await;
    println!("takeover after a stop: {:?}", stopped.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_leader_serves_until_it_learns_of_another() {
    let Some(server) = Server::shared().await else { return };
    let space = space(server, "10.4.1.1").await;
    let relay = Relay::to(server.port).await;
    let flags = ["--pool-name=p", "--pool-namespace", &space.name, ELECTS];
    let first = Picker::start(server, relay.port, &flags).await;
    is_ready(&first, true).await;
    relay.cut();
    first.says(&["cannot renew the lease; leading until it expires"]).await;
    // Long after its lease is over another takes it, and both serve.
    let second = Picker::of_pool(server, &space, &[ELECTS]).await;
    is_ready(&second, true).await;
    assert!(first.is_healthy("readiness").await);
    first.becomes(&["10.4.1.1:8000"]).await;
    relay.mend();
    is_ready(&first, false).await;
    assert!(second.is_healthy("readiness").await);
    assert!(tokio::time::timeout(Duration::from_secs(60), space.holder()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unready_replica_does_not_hold_the_lease() {
    let Some(server) = Server::shared().await else { return };
    let space = space(server, "10.4.2.1").await;
    let broken = Picker::of_pool(server, &space, &[ELECTS, "--config-text", GRPC_ONLY]).await;
    broken.says(&["does not understand the pool's appProtocol"]).await;
    let sound = Picker::of_pool(server, &space, &[ELECTS]).await;
    is_ready(&sound, true).await;
    assert!(!broken.is_healthy("readiness").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_times_match_the_flags() {
    let Some(server) = Server::shared().await else { return };
    let space = space(server, "10.4.3.1").await;
    let times = [
        "--leader-elect-lease-duration=7s",
        "--leader-elect-renew-deadline=5s",
        "--leader-elect-retry-period=300ms",
    ];
    let first = Picker::of_pool(server, &space, &[&[ELECTS], &times[..]].concat()).await;
    is_ready(&first, true).await;
    let path = space.path("coordination.k8s.io/v1", "leases");
    let path = format!("{path}/epp-{}-p.llm-d.ai", space.name);
    let lease = space.get(&path).await.unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 7);
    // Without a leader that lives the others wait for as long as its lease says, not theirs.
    let second = Picker::of_pool(server, &space, &[ELECTS]).await;
    second.becomes(&["10.4.3.1:8000"]).await;
    let renewed = async || space.get(&path).await.unwrap()["spec"]["renewTime"].clone();
    let mut writes = std::collections::BTreeSet::new();
    eventually("several renewals", async || {
        writes.insert(renewed().await.as_str()?.to_owned());
        (writes.len() >= 4).then_some(())
    })
    .await;
    assert!(!second.is_healthy("readiness").await);
}
