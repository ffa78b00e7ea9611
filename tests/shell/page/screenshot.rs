//! The picture of the page in the documentation.

use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use tokio::process::Command;
use usher::sim::{Fault, SimConfig};

use super::browser::Browser;
use crate::support::client::{self, Protocol};
use crate::support::envoy::Envoy;
use crate::support::listener;
use crate::support::usher::Usher;

const CONFIG: &str = "--config-text=
featureGates: [flowControl]
plugins:
- {type: approx-prefix-cache-producer}
- {type: expected-latency-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 6}}
schedulingProfiles: [{name: default, plugins: [{pluginRef: expected-latency-scorer}]}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxRequests: 400
  priorityBands: [{priority: 10, maxRequests: 200}, {priority: 0, maxRequests: 200}]
";

const POLICY: &str = "
apiVersion: usher.dev/v1alpha1
kind: CapacityPolicy
metadata: {name: llama}
spec:
  interval: 1s
  roles: {decode: {min: 1, max: 8}}
  total: {metrics: [{name: running, target: 4}]}
";

/// Four servers of which one fails, under somewhat more load than they can take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes docs/page.png: make screenshot"]
async fn screenshot() {
    let browser = Browser::start(1060, 860).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let (mut running, mut servers) = (Vec::new(), Vec::new());
    for first_index in 0..4 {
        let config = SimConfig { first_index, ..SimConfig::default() };
        let server = usher::sim::start(config, vec![listener()]).await.unwrap();
        servers.push(server.addresses()[0]);
        running.push(server);
    }
    let admin = listener().local_addr().unwrap();
    let flags =
        [CONFIG, &format!("--admin-address={admin}"), &format!("--capacity-policy={}", policy.display())];
    let usher = Usher::start_with_roles(&servers, &["decode"; 4], &flags).await;
    let envoy = Envoy::start("override-host.yaml", usher.address, &servers, &[]).await;
    let _load = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["load", "--stream", "--duration=1h", "--rate=9", "--arrivals=poisson", "--tokens=1500"])
        .args(["--output-tokens=220", "--prefix-groups=6", "--prefix-tokens=900", "--model=llama-3.1-8b"])
        .arg(format!("--target=http://{}", envoy.address))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    browser.open(&format!("http://{admin}/")).await;
    let points = "(document.querySelector('polyline')?.getAttribute('points') ?? '').split(' ').length";
    browser.until(&format!("{points} > 20")).await;
    let fault = serde_json::to_string(&Fault { status: Some(503), ..Fault::default() }).unwrap();
    let set = Request::post("/admin/fault").body(client::full(fault)).unwrap();
    client::send(servers[2], Protocol::Http1, set).await;
    browser.until("document.querySelector('#problems').innerText.includes('1 endpoint ejected')").await;
    browser.until(&format!("{points} > 40")).await;
    let picture = STANDARD.decode(browser.picture().await).unwrap();
    let path = format!("{}/docs/page.png", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(path, picture).unwrap();
    assert_eq!(browser.errors(true), Vec::<String>::new());
}
