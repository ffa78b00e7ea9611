//! Every flag of llm-d-router is understood, so that its deployments start unchanged.

use std::ffi::OsString;

use usher::cli::{CliError, Command, parse};
use usher::settings::ServeSettings;

fn serve(flags: &[&str]) -> Result<ServeSettings, String> {
    match parse(["usher", "serve"].iter().chain(flags).map(OsString::from)) {
        Ok(Command::Serve(args)) => args.settings(Default::default()),
        Err(CliError::Arguments(text) | CliError::Usage(text)) => Err(text),
        other => panic!("{other:?}"),
    }
}

/// Name, and a value that differs from the default. Each is valid alone or with what the
/// third column adds.
const FLAGS: [(&str, &str, &[&str]); 52] = [
    ("grpc-port", "19002", &[]),
    ("grpc-health-port", "19003", &[]),
    ("metrics-port", "19090", &[]),
    ("ha-enable-leader-election", "true", &[]),
    ("drain-timeout", "1m30s", &[]),
    ("grpc-max-recv-msg-size", "10MiB", &[]),
    ("grpc-max-send-msg-size", "25MB", &[]),
    ("pool-group", "inference.networking.x-k8s.io", &[]),
    ("pool-namespace", "models", &[]),
    ("pool-name", "llama", &[]),
    ("endpoint-selector", "app in (vllm,sglang),role!=encode", &["--endpoint-target-ports=8000"]),
    ("endpoint-target-ports", "8000,8001", &[]),
    ("disable-endpoint-subset-filter", "true", &[]),
    ("emit-endpoint-scores", "true", &[]),
    ("refresh-metrics-interval", "100ms", &[]),
    ("refresh-prometheus-metrics-interval", "10s", &[]),
    ("metrics-staleness-threshold", "3s", &[]),
    ("v", "5", &[]),
    ("zap-devel", "false", &[]),
    ("zap-encoder", "json", &[]),
    ("zap-log-level", "debug", &[]),
    ("zap-stacktrace-level", "panic", &[]),
    ("zap-time-encoding", "iso8601", &[]),
    ("tracing", "false", &[]),
    ("health-checking", "true", &[]),
    ("enable-pprof", "false", &[]),
    ("cert-path", "/etc/certs", &[]),
    ("enable-cert-reload", "true", &[]),
    ("secure-serving", "false", &[]),
    ("tls-min-version", "VersionTLS13", &[]),
    ("tls-cipher-suites", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", &[]),
    ("metrics-endpoint-auth", "false", &[]),
    ("metrics-client-ca-file", "/etc/ca.crt", &["--metrics-cert-dir=/etc/certs"]),
    ("metrics-cert-dir", "/etc/certs", &[]),
    ("enable-grpc-stream-metrics", "true", &[]),
    ("config-file", "/config/default-plugins.yaml", &[]),
    ("config-text", "kind: EndpointPickerConfig", &[]),
    ("allow-experimental-plugins", "true", &[]),
    // Ours.
    ("bind-address", "127.0.0.1", &[]),
    ("admin-address", "127.0.0.1:19095", &[]),
    ("max-request-body-bytes", "64Mi", &[]),
    ("body-idle-timeout", "1m", &[]),
    ("endpoints-file", "/etc/endpoints.yaml", &[]),
    ("allow-empty-endpoints", "true", &[]),
    ("worker-threads", "3", &[]),
    ("client-ca-path", "/etc/ca.crt", &[]),
    ("outlier-first-byte-timeout", "5s", &[]),
    ("locator-ttl", "0s", &[]),
    ("locator-max-subsets", "100", &[]),
    ("memory-budget", "512Mi", &[]),
    ("decision-records", "100", &[]),
    ("prefix-index-bytes", "64Mi", &["--memory-budget=off"]),
];

const BOOLEANS: [&str; 13] = [
    "ha-enable-leader-election",
    "disable-endpoint-subset-filter",
    "emit-endpoint-scores",
    "zap-devel",
    "tracing",
    "health-checking",
    "enable-pprof",
    "enable-cert-reload",
    "secure-serving",
    "metrics-endpoint-auth",
    "enable-grpc-stream-metrics",
    "allow-experimental-plugins",
    "allow-empty-endpoints",
];

#[test]
fn every_flag_is_accepted_in_every_form() {
    for (name, value, with) in FLAGS {
        let joined = format!("--{name}={value}");
        let mut forms = vec![vec![joined.as_str()], vec![joined.as_str(), joined.as_str()]];
        let bare = format!("--{name}");
        if BOOLEANS.contains(&name) {
            forms.push(vec![bare.as_str()]);
        } else {
            forms.push(vec![bare.as_str(), value]);
        }
        for form in forms {
            let flags = [&form, with].concat();
            if let Err(error) = serve(&flags) {
                panic!("{flags:?}: {error}");
            }
        }
    }
}

#[test]
fn removed_metric_name_flags_name_their_replacement() {
    for name in [
        "total-queued-requests-metric",
        "total-running-requests-metric",
        "kv-cache-usage-percentage-metric",
        "lora-info-metric",
        "cache-info-metric",
    ] {
        let error = serve(&[&format!("--{name}=vllm:x")]).unwrap_err();
        assert!(error.contains(&format!("--{name}")) && error.contains("configuration"), "{error}");
    }
}

#[test]
fn rendered_chart_arguments_start_a_server() {
    let settings = serve(&[
        "--pool-name",
        "llama",
        "--pool-namespace",
        "models",
        "--pool-group",
        "inference.networking.k8s.io",
        "--zap-encoder",
        "json",
        "--config-file",
        "/config/default-plugins.yaml",
        "--grpc-health-port",
        "9003",
        "--tracing=false",
        "--metrics-endpoint-auth=false",
        "--v=1",
    ])
    .unwrap();
    assert_eq!(settings.pool.name.as_deref(), Some("llama"));
    assert!(settings.log.json);
    assert_eq!(settings.unused_flags(true).count(), 0);
}

#[test]
fn a_memory_budget_is_a_size_the_containers_or_none() {
    use usher::settings::MemoryBudget;
    let budget = |value: &str| serve(&[&format!("--memory-budget={value}")]).map(|s| s.memory.budget);
    assert_eq!(serve(&[]).unwrap().memory.budget, MemoryBudget::Container);
    assert_eq!(budget("auto"), Ok(MemoryBudget::Container));
    assert_eq!(budget(""), Ok(MemoryBudget::Container));
    assert_eq!(budget("off"), Ok(MemoryBudget::Off));
    assert_eq!(budget("1.5Gi"), Ok(MemoryBudget::Bytes(3 << 29)));
    for (value, says) in
        [("1Mi", "at least 16Mi"), ("0", "at least 16Mi"), ("many", "auto or off"), ("-1", "negative")]
    {
        let error = budget(value).unwrap_err();
        assert!(error.contains("--memory-budget") && error.contains(says), "{error}");
    }
    // Half of what is left of a budget for bodies and prefixes, in MiB.
    for (budget, most) in [(16, 2), (64, 8), (96, 24), (1024, 384)] {
        let serve = |index: u64| {
            serve(&[&format!("--memory-budget={budget}Mi"), &format!("--prefix-index-bytes={index}")])
        };
        assert_eq!(serve(most << 20).unwrap().memory.prefix_index, Some(most << 20));
        let error = serve((most << 20) + 1).unwrap_err();
        assert!(error.contains("--prefix-index-bytes") && error.contains("--memory-budget"), "{error}");
        assert!(error.contains(&format!("at most {}", most << 20)), "{error}");
    }
    assert_eq!(serve(&["--prefix-index-bytes=0"]).unwrap().memory.prefix_index, Some(0));
    let error = serve(&["--locator-max-subsets=0"]).unwrap_err();
    assert!(error.contains("--locator-max-subsets"), "{error}");
}
