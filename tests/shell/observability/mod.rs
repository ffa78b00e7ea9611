//! Dashboards and alerts: a real Prometheus scrapes a picker under load, whose faults are made one after the
//! other.

mod files;
mod peer;
mod prometheus;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use http::Request;
use tokio::process::{Child, Command};
use usher::sim::{EngineConfig, Fault, MetricsFault};

use crate::publishing::start_publishing;
use crate::store::Redis;
use crate::support::client::{self, Protocol};
use crate::support::envoy::Envoy;
use crate::support::listener;
use crate::support::servers::{SERVERS, Servers, quick};
use crate::support::usher::Usher;
use files::{dashboards, hurried, metrics, panels, rules, rules_text};
use prometheus::{Prometheus, is_installed};

const GUIDE: &str = "docs/guide/observability.md";

/// Streams of the replicas' prefixes and learned state, and the alerts where they are not shared.
const STREAMS: [(&[u8], &str); 2] = [
    (b"usher:v1:{default/shared}:prefixes", "UsherPrefixesNotShared"),
    (b"usher:v1:{default/shared}:learned", "UsherLearnedStateNotShared"),
];

/// Bound on waiting for an alert, so that a failure is not a hang. The longest `for` is 10 s, and machines are slow.
const DEADLINE: Duration = Duration::from_secs(180);

/// Series that say why an alert doesn't fire.
const STATE: &str =
    "{__name__=~\"usher_endpoint.*|llm_d_epp_(request_total|flow_control_queue_size|ready_endpoints)\"}";

/// Everything that panels show. `EVENTS` is where engines connect, and `TOKENS` a server that renders prompts.
const CONFIG: &str = "--config-text=
featureGates: [flowControl]
plugins:
- {type: approx-prefix-cache-producer}
- {type: token-producer, parameters: {vllm: {url: 'http://TOKENS', timeout: 5s}}}
- {type: precise-prefix-cache-producer, parameters: {kvEventsConfig: {zmqEndpoint: 'tcp://EVENTS'}}}
- {type: prefix-cache-scorer}
- {type: expected-latency-scorer}
- {type: concurrency-detector, parameters: {maxConcurrency: 6}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: expected-latency-scorer}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxRequests: 400
  maxBytes: 64Mi
  defaultPriorityBand: {maxRequests: 400, maxBytes: 64Mi}
";

/// Flow control by the metrics of the servers.
const BY_METRICS: &str =
    "{featureGates: [flowControl], plugins: [{type: utilization-detector}, {type: queue-scorer}]}";

/// Roles of the servers. All get all requests.
const ROLES: [&str; SERVERS] = ["both", "decode", "decode", "decode"];

/// A group of two roles sized by its queue, and one by a rule that always fires.
const POLICIES: &str = "
apiVersion: usher.dev/v1alpha1
kind: CapacityPolicy
metadata: {name: queue}
spec:
  interval: 1s
  roles: {both: {min: 1, max: 8}, decode: {min: 1, max: 8}}
  total: {metrics: [{name: queue_depth, target: 4}]}
  coordination:
    mode: Preferred
    pressure: {both: [{metric: running, target: 4}], decode: [{metric: running, target: 4}]}
---
apiVersion: usher.dev/v1alpha1
kind: CapacityPolicy
metadata: {name: rules}
spec:
  interval: 1s
  roles: {decode: {min: 1, max: 8}}
  rules:
  - {name: up, role: decode, metric: running, comparator: GREATER_THAN, threshold: -1, step: 1, cooldown: 1s}
";

/// An engine that takes a second for a request, one after the other.
fn one_at_a_time() -> EngineConfig {
    EngineConfig { max_running: 1, decode_step: Duration::from_millis(50), ..quick() }
}

/// `usher load`, until it is dropped.
fn load(target: SocketAddr, pace: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["load", "--stream", "--duration=1h", "--prefix-groups=4", "--prefix-tokens=128"])
        .arg(format!("--target=http://{target}"))
        .args(pace)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Waits until an expression returns something.
async fn until(prometheus: &Prometheus, expression: &str) {
    let (begin, mut pause) = (Instant::now(), tokio::time::interval(Duration::from_millis(200)));
    while prometheus.query(expression).await.is_empty() {
        if begin.elapsed() > DEADLINE {
            let (firing, state) = (prometheus.firing().await, prometheus.query(STATE).await);
            panic!("waited for {expression}; firing: {firing:?}; {state:#?}");
        }
        pause.tick().await;
    }
}

/// Waits until a picker listens to a server's KV events.
async fn until_heard(servers: &Servers, index: usize) {
    let (begin, mut pause) = (Instant::now(), tokio::time::interval(Duration::from_millis(50)));
    while servers.state(index).await["kv_events"]["subscribers"] != 1 {
        assert!(begin.elapsed() < DEADLINE, "nobody listens to server {index}");
        pause.tick().await;
    }
}

/// Waits until an alert fires.
async fn fires(prometheus: &Prometheus, alert: &str) {
    until(prometheus, &format!("ALERTS{{alertstate=\"firing\",alertname=\"{alert}\"}}")).await;
}

/// Makes servers respond late and at once, in turns, until an alert fires: nobody can tell which is next.
async fn fires_while_speed_changes(prometheus: &Prometheus, alert: &str, servers: &Servers) {
    let late = Fault { slow: Some(Duration::from_millis(400)), ..Fault::default() };
    let changes = async {
        for fault in [&late, &Fault::default()].into_iter().cycle() {
            set_faults(servers, fault.clone()).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::select! {
        () = fires(prometheus, alert) => {}
        () = changes => {}
    }
    set_faults(servers, Fault::default()).await;
}

/// Waits until it fires about one picker.
async fn fires_of(prometheus: &Prometheus, alert: &str, job: &str) {
    until(prometheus, &format!("ALERTS{{alertstate=\"firing\",alertname=\"{alert}\",job=\"{job}\"}}")).await;
}

async fn set_faults(servers: &Servers, fault: Fault) {
    for index in 0..SERVERS {
        servers.set_fault(index, &fault).await;
    }
}

/// The expression of a panel as Grafana sends it.
fn sent(expression: &str) -> String {
    expression.replace("$__rate_interval", "5s").replace("$job", ".*")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panels_have_data_and_alerts_fire_on_their_fault() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let policies = folder.path().join("policies.yaml");
    std::fs::write(&policies, POLICIES).unwrap();
    let events = listener().local_addr().unwrap().to_string();
    let (servers, renderer) = (start_publishing(&events).await, Servers::start_many(1).await);
    let policy = format!("--capacity-policy={}", policies.display());
    let open = ["--metrics-endpoint-auth=false"];
    let config = CONFIG.replace("EVENTS", &events).replace("TOKENS", &renderer.addresses[0].to_string());
    let flags = [&open[..], &[&config, &policy, "--gen-ai-metrics", "--memory-budget=1Gi"]].concat();
    let mut usher = Usher::start_with_roles(&servers.addresses, &ROLES, &flags).await;
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, BY_METRICS).unwrap();
    // It has less memory than it takes.
    let file = format!("--config-file={}", config.display());
    let queued = Servers::start_with(vec![one_at_a_time()]).await;
    let mut small =
        Usher::start(&queued.addresses, &[&open[..], &[&file, "--memory-budget=16Mi"]].concat()).await;
    let Some(mut redis) = Redis::start(&[]).await else { return };
    let store = redis.flag();
    let learns = "--config-text=plugins: [{type: prefix-cache-scorer}, {type: expected-latency-scorer}]\n";
    let shares = ["--pool-name=shared", "--worker-threads=1", &store, learns];
    let shares = [&open[..], &shares].concat();
    let replica =
        async |pod: &str| Usher::start_in(&servers.addresses[..1], &shares, &[("POD_NAME", pod)]).await;
    let (mut one, mut other) = (replica("one").await, replica("other").await);
    let envoy = Envoy::start("override-host.yaml", usher.address, &servers.addresses, &[]).await;
    let jobs = [
        ("usher", usher.port("metrics").await),
        ("small", small.port("metrics").await),
        ("one", one.port("metrics").await),
        ("other", other.port("metrics").await),
    ];
    let prometheus = Prometheus::start(&jobs, &hurried(&rules_text())).await;

    let more_than_it_serves = load(queued.addresses[0], &["--rate=4", "--max-in-flight=2000"]);
    for index in 0..SERVERS - 1 {
        until_heard(&servers, index).await;
    }
    // No topic names this model, so its prompts are cached and not published.
    let of_another_model = load(envoy.address, &["--rate=40", "--max-in-flight=2000", "--model=another"]);
    fires(&prometheus, "UsherKvEventsDisagree").await;
    drop(of_another_model);
    let traffic = load(envoy.address, &["--rate=40", "--max-in-flight=2000"]);
    until(&prometheus, "rate(llm_d_epp_request_total[5s]) > 0").await;
    let broken = Request::post("/v1/chat/completions").body(client::full("{")).unwrap();
    assert_eq!(client::send(envoy.address, Protocol::Http1, broken).await.status, 400);

    fires(&prometheus, "UsherMemoryBudgetNearlyUsed").await;
    fires_of(&prometheus, "UsherModelServerQueuesGrowing", "small").await;
    drop(more_than_it_serves);
    fires_while_speed_changes(&prometheus, "UsherPredictionOff", &servers).await;

    until(&prometheus, "rate(usher_precise_prefix_cached_tokens_total[5s]) > 0").await;
    until(&prometheus, "rate(usher_precise_prefix_predicted_tokens_total[5s]) > 0").await;
    until(&prometheus, "usher_kv_events_known == 2").await;
    // The last one doesn't publish.
    fires(&prometheus, "UsherKvEventsMissing").await;

    servers.set_fault(0, &Fault { metrics: Some(MetricsFault::Empty), ..Fault::default() }).await;
    fires(&prometheus, "UsherMetricsStale").await;

    set_faults(&servers, Fault { metrics: Some(MetricsFault::Error), ..Fault::default() }).await;
    fires(&prometheus, "UsherNoFreshEndpoints").await;
    fires(&prometheus, "UsherCapacityFrozen").await;

    for (file, job) in [(&policies, "usher"), (&config, "small")] {
        std::fs::write(folder.path().join("broken"), "kind: [").unwrap();
        std::fs::rename(folder.path().join("broken"), file).unwrap();
        fires_of(&prometheus, "UsherReloadFailing", job).await;
    }
    until(&prometheus, "usher_config_reload_failures_total{job=\"small\"} > 0").await;
    std::fs::write(&config, BY_METRICS).unwrap();
    until(&prometheus, "usher_config_current{job=\"small\"} == 1").await;

    // No metrics either: when most are ejected all are used, and the scorers may leave one without a request.
    let fails = Fault { status: Some(503), metrics: Some(MetricsFault::Error), ..Fault::default() };
    set_faults(&servers, fails).await;
    until(&prometheus, "gen_ai_server_request_duration_seconds_count{error_type=\"503\"}").await;
    fires(&prometheus, "UsherAllEndpointsEjected").await;

    set_faults(&servers, Fault { hang: true, ..Fault::default() }).await;
    fires(&prometheus, "UsherQueueGrowing").await;
    until(&prometheus, "llm_d_epp_request_error_total{model_name!=\"\"}").await;

    // From now on the servers work, and nobody asks the picker.
    set_faults(&servers, Fault::default()).await;
    drop(traffic);
    let past =
        servers.addresses.iter().map(|server| load(*server, &["--concurrency=2", "--output-tokens=400"]));
    let past: Vec<Child> = past.collect();
    fires(&prometheus, "UsherNotInPath").await;
    drop(past);

    until(&prometheus, "usher_replicas_age_seconds{replica=\"other\"}").await;
    for (stream, alert) in STREAMS {
        assert_eq!(redis.ask(&[b"SET", stream, b"text"]), "+OK\r\n");
        fires_of(&prometheus, alert, "one").await;
    }
    other.signal("STOP").await;
    fires_of(&prometheus, "UsherReplicaSilent", "one").await;
    redis.kill();
    fires_of(&prometheus, "UsherStateStoreAway", "one").await;

    let mut empty = Vec::new();
    for panel in panels() {
        if !prometheus.has_had(&sent(&panel.expression)).await {
            empty.push(format!("{}: {}", panel.name, panel.expression));
        }
    }
    for rule in rules() {
        for metric in metrics(&rule.expression) {
            if !prometheus.has_had(&metric).await {
                empty.push(format!("{}: {metric}", rule.name));
            }
        }
    }
    for (metric, labels) in peer::QUERIED {
        let labels: Vec<String> = labels.iter().map(|label| format!("{label}!=\"\"")).collect();
        let series = format!("{metric}{{{}}}", labels.join(","));
        if !prometheus.has_had(&series).await {
            empty.push(format!("llm-d: {series}"));
        }
    }
    let of_chat = "gen_ai_operation_name=\"chat\",gen_ai_request_model!=\"\",job=\"usher\"";
    for series in [
        format!("gen_ai_server_request_duration_seconds_count{{{of_chat},error_type=\"\"}}"),
        format!("gen_ai_server_request_duration_seconds_count{{{of_chat},error_type=\"503\"}}"),
        format!("gen_ai_server_time_to_first_token_seconds_count{{{of_chat}}}"),
        format!("gen_ai_server_time_per_output_token_seconds_count{{{of_chat}}}"),
        format!("gen_ai_client_token_usage_count{{{of_chat},gen_ai_token_type=\"output\"}}"),
    ] {
        if !prometheus.has_had(&series).await {
            empty.push(series);
        }
    }
    assert!(empty.is_empty(), "without data:\n{}", empty.join("\n"));
    assert!(!prometheus.has_had("{__name__=~\"gen_ai_.*\",job=\"small\"}").await, "nobody asked for them");

    usher.kill().await;
    small.kill().await;
    one.kill().await;
    other.kill().await;
    fires(&prometheus, "UsherDown").await;
    for rule in rules() {
        let series = format!("ALERTS{{alertstate=\"firing\",alertname=\"{}\"}}", rule.name);
        // Prometheus lists an alert before its series has a sample.
        let (begin, mut pause) = (Instant::now(), tokio::time::interval(Duration::from_millis(200)));
        while !prometheus.has_had(&series).await {
            assert!(begin.elapsed() < DEADLINE, "{series} has no sample");
            pause.tick().await;
        }
    }
}

#[test]
fn alerts_fire_on_synthetic_series() {
    if !is_installed() {
        return;
    }
    let file = format!("{}/rules_test.yaml", files::FOLDER);
    let ran = std::process::Command::new("promtool").args(["test", "rules", &file]).output().unwrap();
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(ran.status.success(), "{said}");
    let text = std::fs::read_to_string(file).unwrap();
    for rule in rules() {
        assert!(text.contains(&format!("alertname=\"{}\"", rule.name)), "{} has no test", rule.name);
    }
}

#[test]
fn alerts_have_a_description_and_a_runbook() {
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    for rule in rules() {
        let name = &rule.name;
        assert!(["critical", "warning"].contains(&rule.severity.as_str()), "{name}");
        for annotation in ["summary", "description"] {
            let text =
                rule.annotations[annotation].as_str().unwrap_or_else(|| panic!("{name}: no {annotation}"));
            assert!(text.ends_with('.'), "{name}: {annotation}: {text}");
        }
        assert_eq!(rule.annotations["runbook_url"], format!("{GUIDE}#{}", name.to_lowercase()), "{name}");
        assert!(guide.contains(&format!("\n### {name}\n")), "{GUIDE} has no heading {name}");
    }
}

#[test]
fn dashboards_can_be_installed_side_by_side() {
    let mut seen = std::collections::BTreeSet::new();
    for (file, dashboard) in dashboards() {
        assert!(seen.insert(dashboard["uid"].as_str().unwrap().to_owned()), "{file}: two of a uid");
        assert!(dashboard["title"].as_str().unwrap().starts_with("Usher: "), "{file}");
        assert_eq!(dashboard["id"], serde_json::Value::Null, "{file}: an id is of one Grafana");
        let mut ids = std::collections::BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: two panels of an id");
            if panel["type"] != "row" {
                assert_eq!(panel["datasource"]["uid"], "${datasource}", "{file}: {}", panel["title"]);
            }
        }
    }
    assert!(seen.len() >= 4);
}

#[test]
fn test_rules_scale_minutes_to_seconds() {
    let rules = "expr: deriv(m5_m[10m:1m]) > 5 # 5 more\n  for: 2m\n  x: llm_d[5m]";
    assert_eq!(hurried(rules), "expr: deriv(m5_m[10s:1s]) > 5 # 5 more\n  for: 2s\n  x: llm_d[5s]");
}
