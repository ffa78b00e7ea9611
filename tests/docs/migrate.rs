//! docs/guide/migrate-from-llm-d.md says of flags and plugins what the program does.

use usher::cli::{Command, parse};
use usher::registry::{find_type, plugin_types};

use super::guide::{assert_names, table};

/// The Go picker's flags, each with a value that it takes.
const FLAGS: [(&str, &str); 44] = [
    ("--grpc-port", "9002"),
    ("--grpc-health-port", "9003"),
    ("--metrics-port", "9090"),
    ("--ha-enable-leader-election", "true"),
    ("--drain-timeout", "30s"),
    ("--grpc-max-recv-msg-size", "10MiB"),
    ("--grpc-max-send-msg-size", "25MB"),
    ("--pool-group", "inference.networking.k8s.io"),
    ("--pool-namespace", "models"),
    ("--pool-name", "llama"),
    ("--endpoint-selector", "app=llama"),
    ("--endpoint-target-ports", "8000,8001"),
    ("--disable-endpoint-subset-filter", "true"),
    ("--emit-endpoint-scores", "true"),
    ("--refresh-metrics-interval", "50ms"),
    ("--refresh-prometheus-metrics-interval", "5s"),
    ("--metrics-staleness-threshold", "2s"),
    ("--total-queued-requests-metric", "vllm:num_requests_waiting"),
    ("--total-running-requests-metric", "vllm:num_requests_running"),
    ("--kv-cache-usage-percentage-metric", "vllm:kv_cache_usage_perc"),
    ("--lora-info-metric", "vllm:lora_requests_info"),
    ("--cache-info-metric", "vllm:cache_config_info"),
    ("--v", "4"),
    ("--zap-devel", "false"),
    ("--zap-encoder", "json"),
    ("--zap-log-level", "info"),
    ("--zap-stacktrace-level", "error"),
    ("--zap-time-encoding", "iso8601"),
    ("--tracing", "true"),
    ("--health-checking", "true"),
    ("--enable-pprof", "true"),
    ("--cert-path", "/certs"),
    ("--enable-cert-reload", "true"),
    ("--secure-serving", "true"),
    ("--tls-min-version", "VersionTLS12"),
    ("--tls-cipher-suites", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("--metrics-endpoint-auth", "true"),
    ("--metrics-client-ca-file", "/ca.crt"),
    ("--metrics-cert-dir", "/certs"),
    ("--enable-grpc-stream-metrics", "true"),
    ("--config-file", "/config/epp.yaml"),
    ("--config-text", "{}"),
    ("--allow-experimental-plugins", "true"),
    // The short form of --v, which has no row.
    ("-v", "2"),
];

/// Flags that the Go picker refuses when they are set, as Usher does.
const REFUSED: [&str; 5] = [
    "--total-queued-requests-metric",
    "--total-running-requests-metric",
    "--kv-cache-usage-percentage-metric",
    "--lora-info-metric",
    "--cache-info-metric",
];

/// Other flags that a flag needs beside it.
fn beside(flag: &str) -> &'static [&'static str] {
    match flag {
        "--endpoint-selector" => &["--endpoint-target-ports=8000"],
        "--metrics-client-ca-file" => &["--metrics-cert-dir=/certs"],
        "--enable-cert-reload" => &["--cert-path=/certs"],
        _ => &[],
    }
}

fn accepts(flags: &[String]) -> Result<(), String> {
    let arguments = ["usher", "serve"].map(str::to_owned).into_iter().chain(flags.iter().cloned());
    match parse(arguments.map(Into::into)).map_err(|error| error.to_string())? {
        Command::Serve(args) => args.settings(Default::default()).map(drop),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flag_has_a_row_and_does_what_it_says() {
    let rows = table("Flags");
    assert_names(&rows, FLAGS.iter().map(|(flag, _)| *flag).filter(|flag| *flag != "-v"));
    for (flag, value) in FLAGS {
        let mut flags: Vec<String> = vec![format!("{flag}={value}")];
        flags.extend(beside(flag).iter().map(|other| (*other).to_owned()));
        let accepted = accepts(&flags);
        assert_eq!(accepted.is_err(), REFUSED.contains(&flag), "{flags:?}: {accepted:?}");
    }
    // What is accepted without effect is missing, and nothing else is.
    for row in rows.iter().filter(|row| !REFUSED.contains(&&*row.name)) {
        let value = FLAGS.iter().find(|(flag, _)| *flag == row.name).unwrap().1;
        let flag = format!("{}={value}", row.name);
        let arguments = [&["usher", "serve", &flag], beside(&row.name)].concat();
        let Ok(Command::Serve(args)) = parse(arguments.iter().map(Into::into)) else { panic!("{row:?}") };
        let settings = args.settings(Default::default()).unwrap();
        let mut unused = settings.unused.iter().filter(|unused| !unused.with_a_file);
        assert_eq!(unused.any(|unused| unused.flag == row.name), row.is == "missing", "{row:?}");
    }
}

/// The plugin types that the Go picker registers.
const PLUGINS: &str = "
queue-scorer running-requests-size-scorer kv-cache-utilization-scorer lora-affinity-scorer prefix-cache-scorer
precise-prefix-cache-scorer load-aware-scorer active-request-scorer token-load-scorer no-hit-lru-scorer
session-affinity-scorer header-label-affinity-scorer context-length-aware mm-embeddings-cache-scorer latency-scorer
endpoint-attribute-scorer topology-affinity-scorer multicluster-queue-scorer
multicluster-kv-cache-utilization-scorer multicluster-prefix-cache-scorer
decode-filter prefill-filter encode-filter label-selector-filter by-label-selector by-label endpoint-attribute-filter
utilization-filter prefix-cache-affinity-filter slo-headroom-tier-filter session-affinity-filter
multicluster-session-affinity-filter topology-affinity-filter header-based-testing-filter
max-score-picker random-picker weighted-random-picker
single-profile-handler disagg-profile-handler pd-profile-handler data-parallel-profile-handler header-profile-handler
disagg-headers-handler prefill-header-handler prefix-based-pd-decider always-disagg-pd-decider
always-disagg-multimodal-decider
token-producer tokenizer approx-prefix-cache-producer multicluster-approx-prefix-cache-producer
precise-prefix-cache-producer burst-prefix-cache-producer inflight-load-producer mm-embeddings-cache-producer
predicted-latency-producer session-id-producer p2p-source-producer
latency-slo-admitter probabilistic-admitter disaggregatedset-rollout-screener request-attribute-reporter
agent-identity destination-endpoint-served-verifier
openai-parser anthropic-parser vllmhttp-parser sglanghttp-parser vllmgrpc-parser vertexai-parser passthrough-parser
file-discovery multicluster-file-discovery metrics-data-source models-data-source dcgm-data-source
k8s-notification-source endpoint-notification-source multicluster-metrics-data-source core-metrics-extractor
models-data-extractor dcgm-extractor topology-extractor multicluster-metrics-extractor
utilization-detector concurrency-detector global-strict-fairness-policy round-robin-fairness-policy
program-aware-fairness fcfs-ordering-policy edf-ordering-policy slo-deadline-ordering-policy
static-usage-limit-policy priority-holdback-policy soft-reflective-ceiling-policy sheddable-eviction-filter
priority-then-time-eviction-order-policy
local-syncer redis-syncer k8s-peer-discovery
";

#[test]
fn every_plugin_type_has_a_row_and_is_there_or_missing_as_it_says() {
    let rows = table("Plugins");
    assert_names(&rows, plugin_types().map(|plugin_type| plugin_type.name));
    let theirs: Vec<&str> = PLUGINS.split_whitespace().collect();
    for name in &theirs {
        assert!(rows.iter().any(|row| row.name == *name), "{name} is in no table");
    }
    for row in &rows {
        assert_eq!(row.is == "ours", !theirs.contains(&row.name.as_str()), "{row:?}");
        let plugin_type = find_type(&row.name).unwrap();
        if matches!(&*row.is, "same" | "better" | "ours") {
            assert!(plugin_type.is_supported(), "{row:?}");
            continue;
        }
        // Refused, or accepted without effect, which its summary says.
        let idle = plugin_type.summary.starts_with("Would ");
        assert!(!plugin_type.is_supported() || idle, "{row:?}: it is there");
    }
    for plugin_type in plugin_types().filter(|plugin_type| plugin_type.summary.starts_with("Would ")) {
        let row = rows.iter().find(|row| row.name == plugin_type.name).unwrap();
        assert_eq!(row.is, "missing", "{row:?}: it has no effect");
    }
}

#[test]
fn every_older_name_of_a_family_is_given_once() {
    let rows = table("Metrics");
    let mut older: Vec<&str> = rows.iter().filter_map(|row| row.older.as_deref()).collect();
    assert!(older.len() > 30 && older.iter().all(|name| !name.starts_with("llm_d_epp_")), "{older:?}");
    let count = older.len();
    older.sort_unstable();
    older.dedup();
    assert_eq!(older.len(), count, "{older:?}");
}
