//! docs/guide/migrate-from-llm-d.md says of flags and plugins what the program does.

use usher::cli::{Command, parse};
use usher::registry::plugin_types;

use super::guide::{assert_known, becomes, matches, section, table};
use super::reference::flags::command;

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
    // The short form of --v.
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
fn flags_match_their_migration_rows() {
    let rows = table("Flags");
    assert_known(&rows, &FLAGS.map(|(flag, _)| flag));
    for (flag, value) in FLAGS {
        let mut flags: Vec<String> = vec![format!("{flag}={value}")];
        flags.extend(beside(flag).iter().map(|other| (*other).to_owned()));
        let accepted = accepts(&flags);
        assert_eq!(accepted.is_err(), REFUSED.contains(&flag), "{flags:?}: {accepted:?}");
    }
    // What is accepted without effect is missing, and nothing else is.
    for (flag, value) in FLAGS.into_iter().filter(|(flag, _)| !REFUSED.contains(flag)) {
        let given = format!("{flag}={value}");
        let arguments = [&["usher", "serve", &given], beside(flag)].concat();
        let Ok(Command::Serve(args)) = parse(arguments.iter().map(Into::into)) else { panic!("{flag}") };
        let settings = args.settings(Default::default()).unwrap();
        let mut unused = settings.unused.iter().filter(|unused| !unused.with_a_file);
        let is = becomes(&rows, flag);
        assert_eq!(unused.any(|unused| unused.flag == flag), is == "missing", "{flag} is {is}");
    }
}

#[test]
fn flags_of_usher_alone_are_listed() {
    let section = section("Flags");
    let (_, named) = section.split_once("\nUsher's own").unwrap();
    let named: Vec<&str> = named.split('`').filter(|name| name.starts_with("--")).collect();
    let command = command();
    let flags = command.get_arguments().filter_map(|flag| flag.get_long()).map(|long| format!("--{long}"));
    let ours: Vec<String> = flags.filter(|flag| FLAGS.iter().all(|(theirs, _)| theirs != flag)).collect();
    for flag in &ours {
        assert!(named.iter().any(|named| matches(named, flag)), "{flag} is not named");
    }
    for named in named {
        assert!(ours.iter().any(|flag| matches(named, flag)), "{named} is no flag of ours");
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
fn plugin_types_match_their_migration_rows() {
    let rows = table("Plugins");
    let theirs: Vec<&str> = PLUGINS.split_whitespace().collect();
    let known: Vec<&str> = plugin_types().map(|plugin_type| plugin_type.name).collect();
    assert_known(&rows, &known);
    for name in &theirs {
        assert!(known.contains(name), "{name} is neither there nor refused by its name");
    }
    for plugin_type in plugin_types() {
        let is = becomes(&rows, plugin_type.name);
        let name = plugin_type.name;
        assert_eq!(is == "ours", !theirs.contains(&name), "{name} is {is}");
        // Refused, or accepted without effect, which its summary says.
        let idle = plugin_type.summary.starts_with("Would ");
        assert_eq!(!plugin_type.is_supported() || idle, is == "missing", "{name} is {is}");
    }
}
