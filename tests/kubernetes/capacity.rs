//! How many pods there are as the API server knows them, and which replica says how many there should be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::Channel;
use usher::scaling::keda::METRIC;
use usher::scaling::keda::proto::external_scaler_client::ExternalScalerClient;
use usher::scaling::keda::proto::{GetMetricsRequest, ScaledObjectRef};

use crate::objects::{Space, election, least};
use crate::picker::Picker;
use crate::server::Server;
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
        let policy = format!("--capacity-policy={}", self.path.display());
        let flags = [&[policy.as_str(), "--keda-address=127.0.0.1:0"], flags].concat();
        let picker = Picker::of_pool(server, space, &flags).await;
        let address: SocketAddr = picker
            .log
            .find(0, "the port for KEDA", |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "external scaler for KEDA open")
                    .then(|| line["address"].as_str()?.parse().ok())?
            })
            .await;
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        (picker, ExternalScalerClient::new(channel))
    }
}

fn metrics() -> GetMetricsRequest {
    let object = Some(ScaledObjectRef::default());
    GetMetricsRequest { scaled_object_ref: object, metric_name: METRIC.to_owned() }
}

async fn becomes(keda: &ExternalScalerClient<Channel>, pods: i64) {
    eventually("the number of pods", async || {
        let answer = keda.clone().get_metrics(metrics()).await.ok()?.into_inner();
        (answer.metric_values[0].metric_value == pods).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_start_count_before_they_are_endpoints() {
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
async fn keda_hears_of_the_leader_only() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&[least(), vec![election()]].concat()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.9.1.1", "m").await;
    let policy = Policy::write();
    let elects = ["--ha-enable-leader-election"];
    let (mut first, keda) = policy.picker(server, &space, &elects).await;
    becomes(&keda, 1).await;
    let (second, mut standby) = policy.picker(server, &space, &elects).await;
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
    let mut pushed = standby.stream_is_active(object).await.unwrap().into_inner();
    let early = tokio::time::timeout(Duration::from_secs(2), pushed.message()).await;
    assert!(early.is_err(), "a stream that has nothing to say says nothing and goes on: {early:?}");
    first.kill().await;
    let said = tokio::time::timeout(Duration::from_secs(60), pushed.message()).await.expect("a push");
    assert!(said.unwrap().unwrap().result, "it leads now");
    becomes(&standby, 1).await;
}
