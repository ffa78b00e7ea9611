//! Number of pods as the API server knows it, and which replica says how many there should be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use usher::scaling::keda::METRIC;
use usher::scaling::keda::proto::external_scaler_client::ExternalScalerClient;
use usher::scaling::keda::proto::{GetMetricsRequest, IsActiveResponse, ScaledObjectRef};

use crate::objects::{Space, election, least};
use crate::picker::{Picker, STEADY};
use crate::relay::Relay;
use crate::server::Server;
use crate::sharing::Redis;
use crate::support::eventually;

/// Keeps as many pods as there are, within bounds: what is desired is what was counted.
const POLICY: &str = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {interval: 1s, roles: {decode: {min: 1, max: 8, selector: {app: m}}}}\n";

struct Policy {
    _folder: TempDir,
    path: PathBuf,
}

impl Policy {
    fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, POLICY).unwrap();
        Self { _folder: folder, path }
    }

    /// A picker that ticks it, and KEDA's way to ask it.
    async fn picker(
        &self,
        server: &Server,
        space: &Space,
        flags: &[&str],
    ) -> (Picker, ExternalScalerClient<Channel>) {
        self.picker_behind(server, server.port, space, flags).await
    }

    /// The same, with the API server behind this port.
    async fn picker_behind(
        &self,
        server: &Server,
        port: u16,
        space: &Space,
        flags: &[&str],
    ) -> (Picker, ExternalScalerClient<Channel>) {
        let policy = format!("--capacity-policy={}", self.path.display());
        let pool = ["--pool-name=p", "--pool-namespace", &space.name];
        let flags = [&pool[..], &[policy.as_str(), "--keda-address=127.0.0.1:0"], flags].concat();
        let picker = Picker::start(server, port, &flags).await;
        let address = port_for_keda(&picker).await;
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        (picker, ExternalScalerClient::new(channel))
    }
}

async fn port_for_keda(picker: &Picker) -> SocketAddr {
    let open = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line["message"] == "serving").then(|| line["keda"].as_str()?.parse().ok())?
    };
    picker.log.find(0, "the port for KEDA", open).await
}

/// A connection of HTTP/2 without a call.
async fn idle(address: SocketAddr) -> TcpStream {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    connection.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()).await.unwrap();
    connection
}

/// Waits until the other end closes a connection.
async fn closes(mut connection: TcpStream) {
    // Less than it takes to be pinged, and given up.
    let closed = tokio::time::timeout(Duration::from_secs(50), connection.read_to_end(&mut Vec::new())).await;
    closed.expect("it stays open").ok();
}

fn metrics() -> GetMetricsRequest {
    let object = Some(ScaledObjectRef::default());
    GetMetricsRequest { scaled_object_ref: object, metric_name: METRIC.to_owned() }
}

async fn becomes(keda: &ExternalScalerClient<Channel>, pods: i64) {
    eventually("the number of pods", async || {
        let response = keda.clone().get_metrics(metrics()).await.ok()?.into_inner();
        (response.metric_values[0].metric_value == pods).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starting_pods_count_before_they_are_endpoints() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.9.0.1", "m").await;
    let policy = Policy::write();
    let (picker, keda) = policy.picker(server, &space, &[]).await;
    becomes(&keda, 1).await;
    for (name, ip) in [("b", "10.9.0.2"), ("c", "10.9.0.3")] {
        space.pod(name, ip, "m").await;
        space.status(name, ip, false).await;
    }
    becomes(&keda, 3).await;
    picker.becomes(&["10.9.0.1:8000"]).await;
    space.status("b", "10.9.0.2", true).await;
    picker.becomes(&["10.9.0.1:8000", "10.9.0.2:8000"]).await;
    becomes(&keda, 3).await;
    space.delete_pod("c", 0).await;
    becomes(&keda, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keda_gets_metrics_of_the_leader_only() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&[least(), vec![election()]].concat()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.9.1.1", "m").await;
    let policy = Policy::write();
    let (mut first, keda) = policy.picker(server, &space, &STEADY).await;
    becomes(&keda, 1).await;
    let (second, mut standby) = policy.picker(server, &space, &STEADY).await;
    second.becomes(&["10.9.1.1:8000"]).await;
    // Names can be checked, and there is nothing to say yet.
    let object = ScaledObjectRef::default();
    assert_eq!(standby.get_metric_spec(object.clone()).await.unwrap().into_inner().metric_specs.len(), 1);
    let unknown = ScaledObjectRef {
        scaler_metadata: [("role".to_owned(), "encode".to_owned())].into(),
        ..ScaledObjectRef::default()
    };
    let status = standby.get_metric_spec(unknown).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    for status in [
        standby.is_active(object.clone()).await.unwrap_err(),
        standby.get_metrics(metrics()).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("another replica leads"), "{status:?}");
    }
    ends(stream(&standby).await).await;
    first.kill().await;
    eventually("a push by the one that leads now", async || {
        let mut pushed = standby.stream_is_active(object.clone()).await.ok()?.into_inner();
        pushed.message().await.ok()??.result.then_some(())
    })
    .await;
    becomes(&standby, 1).await;
}

/// A Service leads KEDA to any ready replica: one that only serves sends it away, until it comes to the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_replicas_that_do_not_lead_keep_no_keda_connection() {
    let Some(server) = Server::shared().await else { return };
    let Some(redis) = Redis::start(&[]).await else { return };
    let space = server.space(&[least(), vec![election()]].concat()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.9.3.1", "m").await;
    let (policy, store) = (Policy::write(), redis.flag());
    let flags = [&STEADY[..], &[&store]].concat();
    let (mut first, keda) = policy.picker(server, &space, &flags).await;
    becomes(&keda, 1).await;
    let (second, mut other) = policy.picker(server, &space, &flags).await;
    second.turns(true).await;
    let status = other.get_metrics(metrics()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    ends(stream(&other).await).await;
    closes(idle(port_for_keda(&second).await).await).await;
    becomes(&keda, 1).await;
    first.kill().await;
    becomes(&other, 1).await;
}

/// A stream for `external-push`.
async fn stream(keda: &ExternalScalerClient<Channel>) -> Streaming<IsActiveResponse> {
    // Connections end while it is asked for.
    eventually("a stream", async || {
        let asked = keda.clone().stream_is_active(ScaledObjectRef::default()).await;
        asked.ok().map(tonic::Response::into_inner)
    })
    .await
}

/// Waits until a stream is ended, which has nothing more to say.
async fn ends(mut stream: Streaming<IsActiveResponse>) {
    let said = tokio::time::timeout(Duration::from_secs(60), stream.message()).await;
    said.expect("it stays silent").expect_err("it says something");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_leadership_closes_keda_connections() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&[least(), vec![election()]].concat()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.9.2.1", "m").await;
    let (policy, elects) = (Policy::write(), ["--ha-enable-leader-election"]);
    let relay = Relay::to(server.port).await;
    let (first, at_first) = policy.picker_behind(server, relay.port, &space, &elects).await;
    becomes(&at_first, 1).await;
    let (second, at_second) = policy.picker(server, &space, &elects).await;
    second.becomes(&["10.9.2.1:8000"]).await;
    let mut attached = stream(&at_first).await;
    assert!(attached.message().await.unwrap().unwrap().result);
    let kept = idle(port_for_keda(&first).await).await;
    // Cut off from the API server it serves requests on, and another takes the lease.
    relay.cut();
    ends(attached).await;
    closes(kept).await;
    becomes(&at_second, 1).await;
    let mut attached = stream(&at_second).await;
    assert!(attached.message().await.unwrap().unwrap().result);
    // Who comes to the first one all the same doesn't stay there.
    ends(stream(&at_first).await).await;
    closes(idle(port_for_keda(&first).await).await).await;
    relay.mend();
    // One that ends serves requests on while it drains, which is over in 9 s.
    second.terminate();
    second.says(&["draining: still accepting"]).await;
    second.becomes(&["10.9.2.1:8000"]).await;
    ends(attached).await;
    becomes(&at_first, 1).await;
}
