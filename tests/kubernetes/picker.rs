//! The `usher` program before an API server, asked as a gateway asks it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Instant;

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Kind;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, body_mutation::Mutation,
};
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
use futures_util::StreamExt;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::objects::Space;
use crate::server::Server;
use crate::support::eventually;
use crate::support::log::Log;

/// Flags of an election with Kubernetes' usual times: a leader that a loaded machine stops for some seconds
/// keeps a lease of 15 s, and not the default of 4.
pub(crate) const STEADY: [&str; 4] = [
    "--ha-enable-leader-election",
    "--leader-elect-lease-duration=15s",
    "--leader-elect-renew-deadline=10s",
    "--leader-elect-retry-period=1s",
];

/// A running `usher serve`.
pub(crate) struct Picker {
    // Killed when dropped.
    child: Child,
    pub(crate) log: Log,
    _folder: TempDir,
    pub(crate) extproc: SocketAddr,
    health: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) started: Instant,
}

/// Outcome of a request.
#[derive(Debug)]
pub(crate) enum Response {
    /// Routed to one of these endpoints, with this body.
    Routed { candidates: BTreeSet<String>, body: Value },
    /// Refused with this status.
    Refused { status: i32 },
}

impl Picker {
    /// Serves the pool `p` of a namespace.
    pub(crate) async fn of_pool(server: &Server, space: &Space, flags: &[&str]) -> Self {
        Self::start(
            server,
            server.port,
            &[&["--pool-name=p", "--pool-namespace", &space.name], flags].concat(),
        )
        .await
    }

    /// With these flags, and the API server behind this port.
    pub(crate) async fn start(server: &Server, port: u16, flags: &[&str]) -> Self {
        Self::start_as(&server.kubeconfig("epp", port), flags).await
    }

    /// With these flags, in a pod of this name.
    pub(crate) async fn of_pod(server: &Server, pod: &str, flags: &[&str]) -> Self {
        Self::spawn(&server.kubeconfig("epp", server.port), Some(pod), flags).await
    }

    /// With these flags, and this access to an API server.
    pub(crate) async fn start_as(access: &Value, flags: &[&str]) -> Self {
        Self::spawn(access, None, flags).await
    }

    /// With these flags, this access to an API server, and in a pod of this name.
    pub(crate) async fn spawn(access: &Value, pod: Option<&str>, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, access.to_string()).unwrap();
        // Another build than the test's own, to measure.
        let program = std::env::var_os("USHER_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_usher").into());
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(["serve", "--bind-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0"])
            .args(["--metrics-port=0", "--admin-address=off", "--zap-encoder=json", "--secure-serving=false"])
            .args(["--emit-endpoint-scores", "--worker-threads=1", "--drain-timeout=9s"])
            .args(flags)
            .env("KUBECONFIG", kubeconfig)
            .env_remove("NAMESPACE")
            .env_remove("POD_NAME")
            .envs(pod.map(|name| ("POD_NAME", name)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Log::follow("usher", child.stderr.take().unwrap());
        let address = async |name: &str| {
            log.find(0, "its addresses", |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "serving").then(|| line[name].as_str()?.parse().ok())?
            })
            .await
        };
        let (extproc, health) = (address("extproc").await, address("health").await);
        let metrics = address("metrics").await;
        Self { child, log, _folder: folder, extproc, health, metrics, started }
    }

    /// Sends a request as a gateway does, and returns its outcome.
    pub(crate) async fn ask(&self, headers: &[(&str, &str)], model: &str) -> Response {
        let mut client = ExternalProcessorClient::connect(format!("http://{}", self.extproc)).await.unwrap();
        let header = |(key, value): &(&str, &str)| HeaderValue {
            key: (*key).to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        };
        let path = [(":method", "POST"), (":path", "/v1/completions")];
        let headers = HeaderMap { headers: path.iter().chain(headers).map(header).collect() };
        let body = serde_json::json!({"model": model, "prompt": "hi"}).to_string().into_bytes();
        let messages = [
            Kind::RequestHeaders(HttpHeaders { headers: Some(headers), ..HttpHeaders::default() }),
            Kind::RequestBody(HttpBody { body, end_of_stream: true, ..HttpBody::default() }),
        ];
        let messages =
            messages.map(|kind| ProcessingRequest { request: Some(kind), ..ProcessingRequest::default() });
        // The request's side stays open, as a gateway's does until the response has passed. It ends
        // with this look: what nobody ends is a request that runs, and keeps what it was decided by.
        let (_open, closed) = tokio::sync::oneshot::channel::<()>();
        let rest = futures_util::stream::once(closed).filter_map(async |_| None);
        let messages = futures_util::stream::iter(messages).chain(rest);
        let mut replies = client.process(messages).await.unwrap().into_inner();
        let first = replies.message().await.unwrap().expect("the stream ended");
        if let Some(Reply::ImmediateResponse(refusal)) = &first.response {
            return Response::Refused { status: refusal.status.unwrap().code };
        }
        let candidates = candidates(&first);
        let Some(Reply::RequestHeaders(headers)) = first.response else { panic!("{first:?}") };
        let set = headers.response.unwrap().header_mutation.unwrap().set_headers;
        let destination = set.into_iter().filter_map(|option| option.header);
        let mut destination = destination
            .filter(|header| header.key == "x-gateway-destination-endpoint")
            .map(|header| String::from_utf8(header.raw_value).unwrap());
        let endpoint = destination.next_back().expect("no destination");
        assert!(candidates.contains(&endpoint), "{endpoint} of {candidates:?}");
        let Some(Reply::RequestBody(body)) = replies.message().await.unwrap().unwrap().response else {
            panic!()
        };
        let Some(Mutation::StreamedResponse(chunk)) = body.response.unwrap().body_mutation.unwrap().mutation
        else {
            panic!("no body")
        };
        Response::Routed { candidates, body: serde_json::from_slice(&chunk.body).unwrap() }
    }

    /// All endpoints that a request may go to now.
    pub(crate) async fn members(&self) -> BTreeSet<String> {
        match self.ask(&[], "m").await {
            Response::Routed { candidates, .. } => candidates,
            Response::Refused { status } => {
                assert_eq!(status, 503);
                BTreeSet::new()
            }
        }
    }

    /// Waits until requests may go to exactly these.
    pub(crate) async fn becomes(&self, members: &[&str]) {
        let wanted: BTreeSet<String> = members.iter().map(|member| (*member).to_owned()).collect();
        let what = format!("the endpoints {members:?}");
        eventually(&what, async || (self.members().await == wanted).then_some(())).await;
    }

    /// Waits until the model `model` is served as `served`.
    pub(crate) async fn serves(&self, model: &str, served: &str) {
        let what = format!("{model} to be served by {served}");
        eventually(&what, async || match self.ask(&[], model).await {
            Response::Routed { body, .. } => (body["model"] == served).then_some(()),
            Response::Refused { .. } => None,
        })
        .await;
    }

    /// Returns `true` if it says of a service that it serves.
    pub(crate) async fn is_healthy(&self, service: &str) -> bool {
        let port = Endpoint::from_shared(format!("http://{}", self.health)).unwrap();
        let Ok(channel) = port.connect().await else { return false };
        let check = HealthCheckRequest { service: service.to_owned() };
        let response = HealthClient::new(channel).check(check).await;
        response.is_ok_and(|response| response.into_inner().status == i32::from(ServingStatus::Serving))
    }

    /// Waits until it says that it serves, or that it doesn't.
    pub(crate) async fn turns(&self, healthy: bool) {
        let what = if healthy { "the picker to serve" } else { "the picker not to serve" };
        eventually(what, async || (self.is_healthy("").await == healthy).then_some(())).await;
    }

    /// Waits for a line of the log with all of these words.
    pub(crate) async fn says(&self, words: &[&str]) {
        let fits = |line: &str| words.iter().all(|word| line.contains(word)).then_some(());
        self.log.find(0, &format!("{words:?}"), fits).await;
    }

    /// Name in the election, which it says when it first leads.
    pub(crate) async fn identity(&self) -> String {
        let named = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "leader election state changed")
                .then(|| line["identity"].as_str().map(str::to_owned))?
        };
        self.log.find(0, "its name in the election", named).await
    }

    /// Waits until its metrics have this line.
    pub(crate) async fn exports(&self, line: &str) {
        eventually(line, async || {
            crate::metrics::page(self).await.lines().any(|found| found == line).then_some(())
        })
        .await;
    }

    /// Ends it without a warning.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Memory in KiB by a line of `/proc/PID/status`: `VmRSS` is what it holds now, `VmHWM` the
    /// most that it ever held.
    pub(crate) fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')).unwrap();
        value.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Returns `true` if it has not ended yet.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let (signal, pid) = (format!("-{name}"), self.child.id().unwrap().to_string());
        assert!(std::process::Command::new("kill").args([&signal, &pid]).status().unwrap().success());
    }
}

/// The endpoints that were scored, from the metadata of a reply.
fn candidates(reply: &ProcessingResponse) -> BTreeSet<String> {
    fn within<'a>(value: &'a ValueKind, name: &str) -> Option<&'a ValueKind> {
        match value {
            ValueKind::StructValue(fields) => fields.fields.get(name)?.kind.as_ref(),
            _ => None,
        }
    }
    let metadata = ValueKind::StructValue(reply.dynamic_metadata.clone().unwrap());
    let scores = within(&metadata, "envoy.lb")
        .and_then(|lb| within(lb, "x-gateway-destination-endpoint-scores"))
        .unwrap_or_else(|| panic!("no scores: {reply:?}"));
    let ValueKind::StructValue(scores) = scores else { panic!("scores of another shape: {scores:?}") };
    scores.fields.keys().cloned().collect()
}
