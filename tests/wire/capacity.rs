//! Capacity policies in the server: plans on the admin port and in the metrics, KEDA's four calls over
//! gRPC, and the way from no pods.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use usher::scaling::keda::METRIC;
use usher::scaling::keda::proto::external_scaler_client::ExternalScalerClient;
use usher::scaling::keda::proto::{GetMetricsRequest, IsActiveResponse, ScaledObjectRef};

use crate::support::*;

const PATIENCE: Duration = Duration::from_secs(60);
const POST: [(&str, &str); 1] = [(":path", "/v1/completions")];
pub const WAITS: &str = "--config-text={featureGates: [flowControl], plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 100}}, {type: queue-scorer}], flowControl: {saturationDetector: {pluginRef: concurrency-detector}}}";

pub fn policy(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

/// One role from zero, sized by its queue; nothing but demand makes it tick a second time.
pub fn from_zero() -> String {
    policy(
        "llama",
        "interval: 30m, roles: {decode: {min: 0, max: 8}}, total: {metrics: [{name: queue_depth, target: 4}]}",
    )
}

fn replace(path: &Path, text: &str) {
    let written = path.with_extension("new");
    std::fs::write(&written, text).unwrap();
    std::fs::rename(written, path).unwrap();
}

fn endpoints(pods: &[(&str, &str, u16)]) -> String {
    let entry = |(name, role, port): &(&str, &str, u16)| {
        format!("- {{name: {name}, address: 127.0.0.1, port: '{port}', labels: {{llm-d.ai/role: {role}}}}}\n")
    };
    if pods.is_empty() {
        return "endpoints: []".to_owned();
    }
    format!("endpoints:\n{}", pods.iter().map(entry).collect::<String>())
}

pub struct Group {
    pub picker: Picker,
    endpoints: PathBuf,
    policies: PathBuf,
}

impl Group {
    pub async fn start(pods: &[(&str, &str, u16)], policies: &str, flags: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (list, file) = (files.path().join("endpoints.yaml"), files.path().join("policies.yaml"));
        std::fs::write(&list, endpoints(pods)).unwrap();
        std::fs::write(&file, policies).unwrap();
        let given = [
            format!("--endpoints-file={}", list.display()),
            format!("--capacity-policy={}", file.display()),
            "--keda-address=127.0.0.1:0".to_owned(),
        ];
        let flags: Vec<&str> = given.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        Self { picker: Picker::serve(files, &flags).await, endpoints: list, policies: file }
    }

    pub fn page(&self, path: &str) -> Value {
        let response = Picker::get(self.picker.admin, path);
        serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }

    /// Asks until there is a result, and returns it. Panics after `PATIENCE`.
    pub async fn until<T>(&self, what: &str, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let start = std::time::Instant::now();
        loop {
            if let Some(response) = ask(self) {
                return response;
            }
            assert!(start.elapsed() < PATIENCE, "waited for {what}: {:#}", self.page("/capacity/v1/plans"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The plan of the first policy, once it has one that is as it should be.
    pub async fn plan(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        self.until(what, |group| {
            let plan = group.page("/capacity/v1/plans")["plans"][0].clone();
            (plan["plan"].is_object() && is_it(&plan)).then_some(plan)
        })
        .await
    }

    pub async fn keda(&self) -> ExternalScalerClient<Channel> {
        let channel = Channel::from_shared(format!("http://{}", self.picker.keda.unwrap())).unwrap();
        ExternalScalerClient::new(channel.connect().await.unwrap())
    }
}

pub fn object(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ScaledObjectRef { name: "llama".to_owned(), namespace: "default".to_owned(), scaler_metadata: metadata }
}

fn metrics_of(metadata: &[(&str, &str)], name: &str) -> GetMetricsRequest {
    GetMetricsRequest { scaled_object_ref: Some(object(metadata)), metric_name: name.to_owned() }
}

pub async fn pushed(stream: &mut Streaming<IsActiveResponse>) -> bool {
    tokio::time::timeout(PATIENCE, stream.message()).await.expect("a push").unwrap().unwrap().result
}

fn refused(status: &Status, parts: &[&str]) {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    for part in parts {
        assert!(status.message().contains(part), "{part} not in {}", status.message());
    }
}

#[tokio::test]
async fn keda_gets_the_desired_replicas() {
    let two = "roles: {prefill: {min: 3, max: 8}, decode: {min: 0, max: 8}}, total: {metrics: [{name: queue_depth, target: 4}]}";
    let still = policy("still", &format!("paused: true, {two}"));
    let policies = format!("{}---\n{}---\n{still}", policy("pd", two), from_zero());
    let group = Group::start(&[("p-1", "prefill", 1)], &policies, &[]).await;
    group.plan("a plan", |_| true).await;
    let mut keda = group.keda().await;
    // One that is paused says nothing, so that autoscalers keep what there is.
    let paused = object(&[("policy", "still"), ("role", "prefill")]);
    let status = keda.is_active(paused).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "policy 'still' is blocked: Suspended")
    );
    for (metadata, desired) in [
        (&[("policy", "pd"), ("role", "prefill")][..], 3),
        (&[("policy", "pd"), ("role", "decode")], 0),
        // The only role needs no name.
        (&[("policy", "llama"), ("scalerAddress", "usher:9006")], 0),
    ] {
        let active = keda.is_active(object(metadata)).await.unwrap().into_inner();
        assert_eq!(active.result, desired > 0, "{metadata:?}");
        for size in [1, 7] {
            let text = size.to_string();
            let metadata = [metadata, &[("targetSize", text.as_str())]].concat();
            let spec = keda.get_metric_spec(object(&metadata)).await.unwrap().into_inner().metric_specs;
            assert_eq!((spec.len(), spec[0].metric_name.as_str()), (1, METRIC));
            assert_eq!((spec[0].target_size, spec[0].target_size_float), (size, size as f64));
            let values = keda.get_metrics(metrics_of(&metadata, METRIC)).await.unwrap().into_inner();
            let value = &values.metric_values[0];
            assert_eq!((values.metric_values.len(), value.metric_name.as_str()), (1, METRIC));
            assert_eq!(
                (value.metric_value, value.metric_value_float),
                (desired * size, (desired * size) as f64)
            );
        }
    }
    let status = keda.is_active(object(&[("policy", "qwen"), ("role", "decode")])).await.unwrap_err();
    refused(&status, &["unknown policy 'qwen'", "the policies are pd, llama, still"]);
    let status = keda.get_metric_spec(object(&[("policy", "pd"), ("role", "encode")])).await.unwrap_err();
    refused(&status, &["unknown role 'encode'", "the roles of policy 'pd' are decode, prefill"]);
    let status = keda.get_metrics(metrics_of(&[("policy", "pd")], METRIC)).await.unwrap_err();
    refused(&status, &["no role in scalerMetadata"]);
    refused(&keda.is_active(object(&[])).await.unwrap_err(), &["no policy in scalerMetadata"]);
    let wrong = [("policy", "llama"), ("targetSize", "0")];
    refused(&keda.get_metric_spec(object(&wrong)).await.unwrap_err(), &["targetSize '0'", "from 1 to"]);
    // Long names are read up to a bound, and repeated up to another.
    let status = keda.is_active(object(&[("policy", &"x".repeat(8000))])).await.unwrap_err();
    refused(&status, &["unknown policy 'xxx"]);
    assert!(status.message().len() < 300, "{status:?}");
    let status = keda.is_active(object(&[("policy", &"x".repeat(64 << 10))])).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    let status = keda.get_metrics(metrics_of(&[("policy", "llama")], "s0-other")).await.unwrap_err();
    refused(&status, &["unknown metric 's0-other'", METRIC]);
    let mut stream = keda.stream_is_active(object(&[("policy", "qwen")])).await.unwrap().into_inner();
    refused(&stream.message().await.unwrap_err(), &["unknown policy 'qwen'"]);
}

#[tokio::test]
async fn frozen_time_is_counted_in_seconds() {
    let spec =
        "interval: 1s, roles: {decode: {min: 0, max: 8}}, total: {metrics: [{name: queue_depth, target: 4}]}";
    // Nobody responds there.
    let group = Group::start(&[("d-1", "decode", 1)], &policy("p", spec), &[]).await;
    let frozen = "usher_capacity_frozen_seconds{policy=\"p\",reason=\"StaleData\"}";
    group.until("two seconds", |group| group.picker.metric(frozen).filter(|held| *held >= 2.0)).await;
    let kept = policy("p", "interval: 1s, roles: {decode: {min: 0, max: 8}}");
    replace(&group.policies, &kept);
    group.until("no reason", |group| group.picker.metric(frozen).is_none().then_some(())).await;
}

#[tokio::test]
async fn queued_request_scales_from_zero_and_is_served() {
    let group = Group::start(&[], &from_zero(), &[WAITS]).await;
    let before = group.plan("a plan", |_| true).await;
    assert_eq!((&before["plan"]["total"], &before["waiting"]), (&json!(0), &json!(0)));
    let mut keda = group.keda().await;
    let metadata = [("policy", "llama"), ("role", "decode")];
    let mut push = keda.stream_is_active(object(&metadata)).await.unwrap().into_inner();
    assert!(!pushed(&mut push).await, "what holds is said first");

    let mut request = group.picker.stream().await;
    request.send(headers(&POST, false));
    request.send(body(PROMPT, true));
    // The policy's interval is half an hour, so only the request can have brought this about.
    assert!(pushed(&mut push).await);
    let plan = group.page("/capacity/v1/plans")["plans"][0].clone();
    assert_eq!((&plan["waiting"], &plan["plan"]["roles"][0]["desired"]), (&json!(1), &json!(1)));
    let desired = "usher_capacity_desired_replicas{policy=\"llama\",role=\"decode\"}";
    assert_eq!(group.picker.metric(desired), Some(1.0));
    let values = keda.get_metrics(metrics_of(&metadata, METRIC)).await.unwrap().into_inner();
    assert_eq!(values.metric_values[0].metric_value, 1);

    replace(&group.endpoints, &endpoints(&[("d-1", "decode", 4242)]));
    let destination = tokio::time::timeout(PATIENCE, request.request_headers()).await.unwrap();
    assert_eq!(destination.destination(), "127.0.0.1:4242");
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_is_counted() {
    let roles = |min: u32| policy("p", &format!("interval: 1s, roles: {{decode: {{min: {min}, max: 8}}}}"));
    let group = Group::start(&[("d-1", "decode", 1)], &roles(2), &[]).await;
    group.plan("two pods", |plan| plan["plan"]["total"] == 2).await;
    replace(&group.policies, &roles(9));
    let refused = "usher_capacity_policy_reloads_total{result=\"refused\"}";
    group.until("a refusal", |group| (group.picker.metric(refused) == Some(1.0)).then_some(())).await;
    assert_eq!(group.page("/capacity/v1/plans")["plans"][0]["plan"]["total"], 2);
    replace(&group.policies, &format!("{}---\n{}", roles(3), from_zero()));
    group.plan("three pods", |plan| plan["plan"]["total"] == 3).await;
    assert_eq!(group.page("/capacity/v1/plans")["plans"].as_array().unwrap().len(), 2);
    let current = "usher_capacity_current_replicas{policy=\"p\",role=\"decode\"}";
    assert_eq!(group.picker.metric(current), Some(1.0));
    let reason = "usher_capacity_decisions_total{policy=\"p\",reason=\"Min\"}";
    assert!(group.picker.metric(reason) >= Some(2.0), "{:?}", group.picker.metric(reason));
    replace(&group.policies, &from_zero());
    group.until("its end", |group| group.picker.metric(current).is_none().then_some(())).await;
    assert_eq!(group.picker.metric(reason), None);
}

/// A model server's page of metrics, with these waiting and running requests; counts how often its extra metric was
/// asked for.
pub fn model_server([waiting, running]: [u32; 2], tokens: &'static str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..read]).to_string();
            counted.fetch_add(usize::from(head.contains("tokens_in_work")), Relaxed);
            let page = format!(
                "vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {running}\nvllm:kv_cache_usage_perc 0.5\ntokens_in_work{{e=\"0\"}} {tokens}\ntokens_in_work{{e=\"1\"}} 1\n"
            );
            let length = page.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{page}"
            );
        }
    });
    (port, asked)
}

#[tokio::test]
async fn any_metric_of_a_page_is_read_while_a_rule_names_it() {
    let select = "--config-text={plugins: [{type: metrics-data-source, parameters: {selectMetrics: true}}, {type: core-metrics-extractor}, {type: queue-scorer}], dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}}";
    let (port, asked) = model_server([7, 3], "41");
    let rule = |metric: &str, above: u32| {
        let rule = format!(
            "{{name: up, role: decode, metric: {metric}, comparator: GREATER_THAN, threshold: {above}, step: 2, cooldown: 1h}}"
        );
        policy("r", &format!("interval: 1s, roles: {{decode: {{min: 1, max: 8}}}}, rules: [{rule}]"))
    };
    let staleness = "--metrics-staleness-threshold=30s";
    let group =
        Group::start(&[("d-1", "decode", port)], &rule("queue_depth", 100), &[select, staleness]).await;
    let outcome = |group: &Group| group.page("/capacity/v1/rules")["rules"][0].clone();
    let quiet = group.until("a value", |group| Some(outcome(group)).filter(|row| row["value"] == 7.0)).await;
    assert_eq!((&quiet["outcome"], &quiet["lastFiredMs"]), (&json!("Quiet"), &Value::Null));
    assert_eq!(asked.load(Relaxed), 0, "nobody names it");

    replace(&group.policies, &rule("tokens_in_work", 40));
    let fired =
        group.until("a rule", |group| Some(outcome(group)).filter(|row| row["lastFiredMs"].is_u64())).await;
    assert_eq!(
        (&fired["value"], &fired["role"], &fired["policy"]),
        (&json!(42.0), &json!("decode"), &json!("r"))
    );
    assert!(asked.load(Relaxed) > 0);
    let rests =
        group.until("a rest", |group| Some(outcome(group)).filter(|row| row["outcome"] == "Cooldown")).await;
    assert!(rests["lastFiredMs"].as_u64() >= Some(900), "{rests}");
    // What it asked for stands until it is there.
    let plan = group.plan("a plan", |plan| plan["plan"]["stages"]["rules"][0]["outcome"] == "Cooldown").await;
    let role = &plan["plan"]["roles"][0];
    assert_eq!(
        (&role["current"], &role["desired"], &plan["plan"]["state"]),
        (&json!(1), &json!(3), &json!("Scale"))
    );
    assert_eq!(plan["signals"], json!([{"name": "tokens_in_work", "source": "read for policies"}]));

    replace(&group.policies, &rule("queue_depth", 100));
    group.until("the other rule", |group| Some(outcome(group)).filter(|row| row["value"] == 7.0)).await;
    let before = asked.load(Relaxed);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(asked.load(Relaxed), before, "nobody names it any more");
}

#[tokio::test]
async fn unknown_metric_names_are_startup_errors() {
    for (metric, parts) in [
        ("queue_dept", &["policy 'x': unknown metric 'queue_dept'", "did you mean `queue_depth`?"][..]),
        (
            "'not a name'",
            &[
                "unknown metric 'not a name'",
                "known are queue_depth, running, kv_cache_utilization, in_flight, ttft",
            ],
        ),
        ("DCGM_FI_DEV_GPU_TEMP", &["no dcgm-data-source"]),
    ] {
        let files = tempfile::tempdir().unwrap();
        let (list, file) = (files.path().join("endpoints.yaml"), files.path().join("policies.yaml"));
        std::fs::write(&list, endpoints(&[])).unwrap();
        let spec = format!("roles: {{a: {{max: 3}}}}, total: {{metrics: [{{name: {metric}, target: 4}}]}}");
        std::fs::write(&file, policy("x", &spec)).unwrap();
        let flags =
            [format!("--endpoints-file={}", list.display()), format!("--capacity-policy={}", file.display())];
        let arguments = ["usher", "serve"].into_iter().chain(flags.iter().map(String::as_str));
        let usher::cli::Command::Serve(args) = usher::cli::parse(arguments.map(Into::into)).unwrap() else {
            panic!("not serve")
        };
        let error = usher::Setup::new(args.settings(Default::default()).unwrap()).err().unwrap().to_string();
        for part in parts {
            assert!(error.contains(part), "{part} not in {error}");
        }
        assert!(error.contains("policies.yaml") && !error.contains('\n'), "{error}");
    }
}
