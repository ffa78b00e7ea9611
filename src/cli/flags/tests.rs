use std::ffi::OsString;
use std::time::Duration;

use tracing::Level;

use crate::cli::{CliError, Command, parse};
use crate::settings::{
    ConfigSource, ElectionTimes, Environment, LogSettings, OutlierSettings, ServeSettings,
};

fn with_namespace(flags: &[&str], namespace: Option<&str>) -> Result<ServeSettings, String> {
    let arguments = ["usher", "serve"].iter().chain(flags).map(OsString::from);
    match parse(arguments) {
        Ok(Command::Serve(args)) => {
            args.settings(Environment { namespace: namespace.map(str::to_owned), ..Environment::default() })
        }
        Err(CliError::Arguments(text) | CliError::Usage(text)) => Err(text),
        other => panic!("{other:?}"),
    }
}

fn serve(flags: &[&str]) -> Result<ServeSettings, String> {
    with_namespace(flags, None)
}

fn unused(flags: &[&str], file_discovery: bool) -> Vec<&'static str> {
    serve(flags).unwrap().unused_flags(file_discovery).map(|unused| unused.flag).collect()
}

#[test]
fn defaults_match_llm_d_router() {
    let settings = serve(&[]).unwrap();
    assert_eq!(settings.listen.grpc_port, 9002);
    assert_eq!(settings.listen.health_port, 9003);
    assert_eq!(settings.listen.metrics_port, 9090);
    assert_eq!(settings.listen.bind, None);
    assert_eq!(settings.listen.admin.unwrap().to_string(), "127.0.0.1:9095");
    assert!(!settings.listen.admin_given);
    assert_eq!(settings.limits.max_recv_message, 4 << 20);
    assert_eq!(settings.limits.max_send_message, i32::MAX as usize);
    assert_eq!(settings.limits.max_request_body, 32 << 20);
    assert_eq!(settings.limits.body_idle_timeout, Some(Duration::from_secs(30)));
    assert!(settings.worker_threads >= 1);
    assert_eq!(settings.drain_timeout, Duration::from_secs(30));
    assert_eq!(settings.refresh_metrics_interval, Duration::from_millis(50));
    assert_eq!(settings.metrics_staleness, Duration::from_secs(2));
    assert_eq!(settings.config, ConfigSource::Default);
    assert_eq!(settings.pool.group, "inference.networking.k8s.io");
    assert_eq!(settings.pool.namespace, "default");
    assert_eq!(settings.pool.name, None);
    assert_eq!(settings.log, LogSettings { level: Level::INFO, json: false });
    let tls = settings.tls.as_ref().unwrap();
    assert!(tls.cert_dir.is_none() && tls.tls12_suites.is_none() && !tls.reload && !tls.only_tls13);
    assert!(!settings.allow_experimental_plugins && !settings.emit_endpoint_scores);
    assert!(!settings.disable_subset_filter && !settings.stream_metrics && !settings.pool.leader_election);
    let second = Duration::from_secs(1);
    let outliers = OutlierSettings {
        failures: 3,
        failed_scrapes: 3,
        first_byte: 2 * second,
        first_pause: second,
        longest_pause: 2 * second,
        successes: 4,
    };
    assert_eq!(settings.outliers, Some(outliers));
    assert_eq!(settings.unused_flags(false).count(), 0);
}

#[test]
fn outlier_detection_can_be_tuned_and_turned_off() {
    assert_eq!(
        serve(&["--outlier-detection=false", "--outlier-consecutive-failures=9"]).unwrap().outliers,
        None
    );
    let flags = [
        "--outlier-consecutive-failures=5",
        "--outlier-consecutive-failed-scrapes=0",
        "--outlier-first-byte-timeout=7s",
        "--outlier-probe-interval=500ms",
        "--outlier-max-probe-interval=1m",
        "--outlier-consecutive-successes=2",
    ];
    let want = OutlierSettings {
        failures: 5,
        failed_scrapes: 0,
        first_byte: Duration::from_secs(7),
        first_pause: Duration::from_millis(500),
        longest_pause: Duration::from_secs(60),
        successes: 2,
    };
    assert_eq!(serve(&flags).unwrap().outliers, Some(want));
    let older = [
        "--sick-pods",
        "--sick-after-failures=5",
        "--sick-after-failed-scrapes=0",
        "--sick-first-byte-timeout=7s",
        "--sick-probe-pause=500ms",
        "--sick-probe-longest-pause=1m",
        "--sick-recovery-successes=2",
    ];
    assert_eq!(serve(&older).unwrap().outliers, Some(want), "older names");
    for flag in [
        "--outlier-consecutive-failures=0",
        "--outlier-consecutive-successes=0",
        "--outlier-probe-interval=1",
    ] {
        let error = serve(&[flag]).unwrap_err();
        assert!(error.contains(flag.split('=').next().unwrap()), "{error}");
    }
}

#[test]
fn the_times_of_an_election_can_be_set() {
    let times = |flags: &[&str]| {
        let flags: Vec<&str> =
            ["--pool-name=p", "--ha-enable-leader-election"].iter().chain(flags).copied().collect();
        serve(&flags).map(|settings| settings.pool.election)
    };
    let seconds = |lease, renew, retry| {
        let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_secs);
        ElectionTimes { lease, renew, retry }
    };
    assert_eq!(times(&[]), Ok(seconds(4, 3, 1)));
    let go = [
        "--leader-elect-lease-duration=15s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=2s",
    ];
    assert_eq!(times(&go), Ok(seconds(15, 10, 2)));
    assert_eq!(unused(&go, false).len(), 3, "nobody is elected");
    for wrong in [
        "--leader-elect-lease-duration=3s",
        "--leader-elect-lease-duration=4500ms",
        "--leader-elect-lease-duration=2h",
        "--leader-elect-renew-deadline=4s",
        "--leader-elect-renew-deadline=1s",
        "--leader-elect-retry-period=0",
    ] {
        let error = times(&[wrong]).unwrap_err();
        assert!(error.contains(wrong.split('=').next().unwrap()), "{wrong}: {error}");
    }
}

/// docs/guide/kubernetes.md: lease, renew and retry in seconds, and what follows from them.
#[test]
fn the_table_of_leases_holds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/kubernetes.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| lease | renew |")).skip(2);
    let mut count = 0;
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [lease, renew, retry]: [u64; 3] = std::array::from_fn(|cell| cells[cell].parse().unwrap());
        let flags = [
            "--ha-enable-leader-election".to_owned(),
            format!("--leader-elect-lease-duration={lease}s"),
            format!("--leader-elect-renew-deadline={renew}s"),
            format!("--leader-elect-retry-period={retry}s"),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        serve(&flags).unwrap_or_else(|error| panic!("{row}: {error}"));
        let (takeover, most) = (format!("{} to {lease} s", lease - retry), format!("{} s", lease + retry));
        assert_eq!(cells[3..5], [takeover, most], "{row}");
        assert_eq!(cells[5].replace(',', ""), (3600 / retry).to_string(), "{row}");
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn boolean_flags_take_an_optional_value_after_an_equals_sign() {
    let scores = |flags: &[&str]| serve(flags).unwrap().emit_endpoint_scores;
    for text in ["--emit-endpoint-scores", "--emit-endpoint-scores=true", "--emit-endpoint-scores=T"] {
        assert!(scores(&[text]), "{text}");
    }
    assert!(scores(&["--emit-endpoint-scores=1"]));
    for text in ["--emit-endpoint-scores=false", "--emit-endpoint-scores=0", "--emit-endpoint-scores=F"] {
        assert!(!scores(&[text]), "{text}");
    }
    assert!(serve(&["--secure-serving=0"]).unwrap().tls.is_none());
    // As with pflag, the next argument is not its value.
    assert!(scores(&["--emit-endpoint-scores", "--pool-name=p"]));
    assert!(serve(&["--emit-endpoint-scores", "false"]).is_err());
    let error = serve(&["--emit-endpoint-scores=yes"]).unwrap_err();
    assert!(error.contains("--emit-endpoint-scores") && error.contains("true or false"), "{error}");
}

#[test]
fn the_last_of_a_repeated_flag_wins_and_lists_add_up() {
    let settings = serve(&[
        "--grpc-port=1",
        "--grpc-port",
        "2",
        "--secure-serving=false",
        "--secure-serving",
        "--endpoint-selector=app=vllm",
        "--endpoint-target-ports=8000,8001",
        "--endpoint-target-ports",
        "8000,8002",
    ])
    .unwrap();
    assert_eq!(settings.listen.grpc_port, 2);
    assert!(settings.tls.is_some());
    assert_eq!(settings.pool.endpoint_target_ports, [8000, 8001, 8002]);
}

#[test]
fn values_may_start_with_a_dash_and_may_be_empty() {
    let text = "---\nkind: EndpointPickerConfig";
    let settings = serve(&["--config-text", text, "--config-file=", "--cert-path=", "--pool-name="]).unwrap();
    assert_eq!(settings.config, ConfigSource::Text(text.to_owned()));
    assert_eq!(settings.tls.unwrap().cert_dir, None);
    assert_eq!(settings.pool.name, None);
    let sizes = serve(&["--grpc-max-recv-msg-size=", "--grpc-max-send-msg-size="]).unwrap().limits;
    assert_eq!((sizes.max_recv_message, sizes.max_send_message), (4 << 20, i32::MAX as usize));
}

#[test]
fn verbosity_and_zap_choose_the_level() {
    let table: [(&[&str], Level); 13] = [
        (&["-v=1"], Level::INFO),
        (&["-v", "2"], Level::INFO),
        (&["-v3"], Level::DEBUG),
        (&["--v=4"], Level::DEBUG),
        (&["--v", "5"], Level::TRACE),
        (&["-v=9"], Level::TRACE),
        (&["-v=-1"], Level::INFO),
        (&["--zap-log-level=debug"], Level::DEBUG),
        (&["--zap-log-level=error", "-v=5"], Level::ERROR),
        (&["--zap-log-level=info", "-v=5"], Level::INFO),
        (&["--zap-log-level=5"], Level::TRACE),
        (&["--zap-log-level=3"], Level::DEBUG),
        (&["--zap-log-level=", "-v=5"], Level::TRACE),
    ];
    for (flags, level) in table {
        assert_eq!(serve(flags).unwrap().log.level, level, "{flags:?}");
    }
    let json = |flags: &[&str]| serve(flags).unwrap().log.json;
    assert!(json(&["--zap-encoder", "json"]) && json(&["--zap-devel=false"]));
    assert!(!json(&["--zap-encoder=console", "--zap-devel=false"]) && !json(&["--zap-devel"]));
}

#[test]
fn namespace_comes_from_the_flag_then_the_environment() {
    let namespace = |flags, environment| with_namespace(flags, environment).unwrap().pool.namespace;
    assert_eq!(namespace(&["--pool-namespace=a"], Some("b")), "a");
    assert_eq!(namespace(&["--pool-namespace="], Some("b")), "b");
    assert_eq!(namespace(&[], Some("")), "default");
}

#[test]
fn sizes_and_intervals() {
    let limits =
        serve(&["--grpc-max-recv-msg-size=10MiB", "--grpc-max-send-msg-size", "25MB"]).unwrap().limits;
    assert_eq!((limits.max_recv_message, limits.max_send_message), (10 << 20, 25_000_000));
    let refreshed = |text| serve(&["--refresh-metrics-interval", text]).unwrap().refresh_metrics_interval;
    assert_eq!(refreshed("1ms"), Duration::from_millis(50));
    assert_eq!(refreshed("1s"), Duration::from_secs(1));
    assert_eq!(serve(&["--body-idle-timeout=0s"]).unwrap().limits.body_idle_timeout, None);
    assert_eq!(serve(&["--drain-timeout=24h"]).unwrap().drain_timeout, Duration::from_secs(86_400));
    assert_eq!(serve(&["--worker-threads=3"]).unwrap().worker_threads, 3);
    assert!(serve(&["--admin-address=off"]).unwrap().listen.admin.is_none());
    let admin = serve(&["--admin-address", "[::1]:1"]).unwrap().listen;
    assert!(admin.admin_given && admin.admin.unwrap().is_ipv6());
}

#[test]
fn tls_flags() {
    let tls = |flags: &[&str]| serve(flags).unwrap().tls.unwrap();
    assert!(tls(&["--tls-min-version=VersionTLS13"]).only_tls13);
    assert!(!tls(&["--tls-min-version=VersionTLS10"]).only_tls13);
    assert!(!tls(&["--tls-min-version="]).only_tls13);
    let two =
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
    assert_eq!(tls(&[two]).tls12_suites.unwrap().len(), 2);
    assert_eq!(tls(&["--tls-cipher-suites="]).tls12_suites, None);
    let reload = tls(&["--cert-path=/certs", "--enable-cert-reload"]);
    assert!(reload.reload && reload.cert_dir.unwrap().ends_with("certs"));
}

/// Flags that are refused, and texts that the error must contain: the flag, and the remedy.
#[test]
fn flag_errors_name_the_flag_and_a_remedy() {
    let table: &[(&[&str], &[&str])] = &[
        (&["--config=a", "--config-text=b"], &["--config-file"]),
        (&["--config-file=a", "--config-text=b"], &["--config-file", "--config-text", "one of them"]),
        (&["--pool-name=a", "--endpoint-selector=b=c"], &["--pool-name", "--endpoint-selector", "one of"]),
        (&["--endpoint-selector=a=b"], &["--endpoint-target-ports"]),
        (&["--endpoint-target-ports=1,2,3,4,5,6,7,8,9"], &["--endpoint-target-ports", "at most 8"]),
        (&["--endpoint-target-ports=65536"], &["--endpoint-target-ports", "65535"]),
        (&["--endpoint-target-ports=8000,0"], &["--endpoint-target-ports", "1 to 65535"]),
        (&["--endpoint-target-ports=http"], &["--endpoint-target-ports", "8000,8001"]),
        (
            &["--endpoint-selector=app in (a,b", "--endpoint-target-ports=1"],
            &["--endpoint-selector", "at character 12", "a comma or )"],
        ),
        (&["--endpoint-selector=a=b", "--endpoint-target-ports="], &["--endpoint-target-ports", "8000"]),
        (&["--grpc-port=65536"], &["--grpc-port", "65535"]),
        (&["--metrics-port=-1"], &["--metrics-port", "65535"]),
        (&["--grpc-port=9003"], &["--grpc-port", "--grpc-health-port", "9003"]),
        (&["--tls-min-version=VersionTLS14"], &["--tls-min-version", "VersionTLS13"]),
        (&["--tls-cipher-suites=NONE"], &["--tls-cipher-suites", "NONE", "TLS_ECDHE_RSA_WITH_AES"]),
        (&["--metrics-client-ca-file=ca"], &["--metrics-client-ca-file", "--metrics-cert-dir"]),
        (&["--client-ca-path=ca", "--secure-serving=false"], &["--client-ca-path", "--secure-serving"]),
        (
            &["--metrics-cert-dir=d", "--metrics-endpoint-auth=false"],
            &["--metrics-cert-dir", "--metrics-client-ca-file"],
        ),
        (&["--drain-timeout=30"], &["--drain-timeout", "30s"]),
        (&["--drain-timeout=2562000h"], &["--drain-timeout", "at most 24h"]),
        (&["--drain-timeout=24h1s"], &["--drain-timeout", "at most 24h"]),
        (&["--body-idle-timeout=25h"], &["--body-idle-timeout", "'25h'", "at most 24h"]),
        (&["--locator-ttl=61m"], &["--locator-ttl", "'61m'", "at most 1h"]),
        (&["--outlier-first-byte-timeout=2h"], &["--outlier-first-byte-timeout", "'2h'", "at most 1h"]),
        (&["--outlier-probe-interval=1000h"], &["--outlier-probe-interval", "'1000h'", "at most 24h"]),
        (&["--outlier-max-probe-interval=1000h"], &["--outlier-max-probe-interval", "at most 24h"]),
        (&["--outlier-consecutive-failures=10001"], &["--outlier-consecutive-failures", "'10001'", "10000"]),
        (
            &["--outlier-consecutive-failed-scrapes=-1"],
            &["--outlier-consecutive-failed-scrapes", "'-1'", "10000"],
        ),
        (&["--outlier-consecutive-successes=4000000000"], &["--outlier-consecutive-successes", "10000"]),
        (&["--grpc-max-recv-msg-size=3Gi"], &["--grpc-max-recv-msg-size", "2147483647"]),
        (&["--grpc-max-recv-msg-size=0"], &["--grpc-max-recv-msg-size", "10Mi"]),
        (&["--max-request-body-bytes=much"], &["--max-request-body-bytes", "10Mi"]),
        (&["--worker-threads=0"], &["--worker-threads", "1"]),
        (&["--prefix-index-bytes=1"], &["--prefix-index-bytes", "'1'", "from 1Mi"]),
        (&["--bind-address=localhost"], &["--bind-address"]),
        (&["--admin-address=9095"], &["--admin-address", "127.0.0.1:9095"]),
        (&["--zap-encoder=xml"], &["--zap-encoder", "json or console"]),
        (&["--zap-log-level=loud"], &["--zap-log-level", "debug"]),
        (&["-v=much"], &["-v"]),
        (&["--emit-endpoint-score"], &["--emit-endpoint-score", "'--emit-endpoint-scores'"]),
        (&["somewhere"], &["somewhere"]),
    ];
    for (flags, parts) in table {
        let error = serve(flags).unwrap_err();
        let is_of_clap = error.ends_with("\n\nsee `usher serve --help`");
        assert!(is_of_clap || !error.contains('\n'), "{error}");
        for part in *parts {
            assert!(error.contains(part), "{flags:?}: {error}");
        }
    }
}

#[test]
fn flags_without_effect_are_named_once() {
    let all = [
        "--ha-enable-leader-election",
        "--enable-pprof",
        "--metrics-endpoint-auth",
        "--zap-stacktrace-level=error",
        "--zap-time-encoding=epoch",
        "--tls-min-version=VersionTLS11",
        "--enable-cert-reload",
        "--refresh-prometheus-metrics-interval=10s",
    ];
    let mut expected: Vec<_> = all.iter().map(|flag| flag.split('=').next().unwrap()).collect();
    expected.sort_unstable();
    expected.dedup();
    let mut named = unused(&all, true);
    named.sort_unstable();
    assert_eq!(named, expected);

    let off = [
        "--ha-enable-leader-election=false",
        "--enable-pprof=false",
        "--metrics-endpoint-auth=false",
        "--metrics-cert-dir=",
        "--zap-devel=false",
        "--zap-time-encoding=rfc3339nano",
        "--tls-min-version=VersionTLS12",
        "--health-checking",
        "--refresh-prometheus-metrics-interval=5s",
    ];
    assert_eq!(unused(&off, true), Vec::<&str>::new());

    let pool = ["--pool-name=p", "--pool-namespace=n", "--pool-group=g"];
    assert_eq!(unused(&pool, true), Vec::<&str>::new());
    assert_eq!(unused(&pool, false), Vec::<&str>::new());
    let elects = ["--pool-name=p", "--ha-enable-leader-election"];
    assert_eq!(unused(&elects, true), ["--ha-enable-leader-election"]);
    assert_eq!(unused(&elects, false), Vec::<&str>::new());
}

#[test]
fn metrics_port_is_protected_by_default() {
    let port = |flags: &[&str]| serve(flags).unwrap().metrics_port;
    let default = port(&[]);
    assert!(default.auth && default.tls.is_none());
    assert!(!port(&["--metrics-endpoint-auth=false"]).auth);
    let tls = port(&["--metrics-cert-dir=certs"]).tls.unwrap();
    assert!(tls.cert_dir.unwrap().ends_with("certs") && tls.client_ca.is_none());
    let checked =
        port(&["--metrics-cert-dir=certs", "--metrics-client-ca-file=ca", "--metrics-endpoint-auth=false"]);
    assert!(!checked.auth && checked.tls.unwrap().client_ca.unwrap().ends_with("ca"));
    // Whoever is checked at one port is checked at the other.
    let shared = port(&["--client-ca-path=gateways"]).tls.unwrap();
    assert!(shared.cert_dir.is_none() && shared.client_ca.unwrap().ends_with("gateways"));
    let shared = port(&[
        "--client-ca-path=gateways",
        "--cert-path=certs",
        "--metrics-client-ca-file=ca",
        "--metrics-cert-dir=own",
    ]);
    let shared = shared.tls.unwrap();
    assert!(shared.cert_dir.unwrap().ends_with("own") && shared.client_ca.unwrap().ends_with("ca"));
    let shared =
        port(&["--client-ca-path=gateways", "--metrics-cert-dir=own", "--metrics-endpoint-auth=false"]);
    assert!(shared.tls.unwrap().client_ca.unwrap().ends_with("gateways"));
    // Without a file the right to read is asked for, and nothing is worth a warning.
    assert_eq!(unused(&["--pool-name=p", "--metrics-endpoint-auth"], false), Vec::<&str>::new());
}

#[test]
fn help_shows_every_flag_under_a_heading() {
    let arguments = ["usher", "serve", "--help"].map(OsString::from);
    let Err(CliError::Help(help)) = parse(arguments) else { panic!("no help") };
    let page = help.to_string();
    for heading in
        ["Server:", "TLS:", "Configuration:", "Pool:", "Outlier ejection:", "Metrics:", "Logs and traces:"]
    {
        assert!(page.lines().any(|line| line == heading), "{heading}\n{page}");
    }
    assert!(!page.contains("--lora-info-metric"), "{page}");
}

#[test]
fn keda_needs_an_address_and_a_policy() {
    let policy = "--capacity-policy=p.yaml";
    let settings = serve(&[policy, "--keda-address=[::]:9006"]).unwrap();
    assert_eq!(settings.listen.keda.unwrap().to_string(), "[::]:9006");
    assert_eq!(serve(&[policy, "--keda-address="]).unwrap().listen.keda, None);
    for text in [
        "9006",
        ":9006",
        "usher:9006",
        "0.0.0.0",
        "0.0.0.0:",
        "0.0.0.0:99999",
        "::9006",
        "http://0.0.0.0:9006",
    ] {
        let error = serve(&[policy, &format!("--keda-address={text}")]).unwrap_err();
        let parts = ["--keda-address", &format!("{text:?}"), "0.0.0.0:9006"];
        assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{error}");
    }
    let error = serve(&["--keda-address=0.0.0.0:9006"]).unwrap_err();
    assert!(error.contains("give --capacity-policy"), "{error}");
}

#[test]
fn prometheus_address_is_parsed() {
    let policy = "--capacity-policy=p.yaml";
    let read = |url: &str| serve(&[policy, &format!("--prometheus-address={url}")]);
    for (url, tls, host, port, prefix) in [
        ("http://prometheus.monitoring:9090", false, "prometheus.monitoring", 9090, ""),
        ("http://prometheus/", false, "prometheus", 80, ""),
        ("https://10.0.0.1/select/0/prometheus/", true, "10.0.0.1", 443, "/select/0/prometheus"),
        ("https://[fd00::1]:8443", true, "fd00::1", 8443, ""),
        ("http://[fd00::1]", false, "fd00::1", 80, ""),
    ] {
        let read = read(url).unwrap().prometheus.unwrap();
        let expected = (tls, host, port, prefix);
        assert_eq!((read.tls, read.host.as_str(), read.port, read.prefix.as_str()), expected, "{url}");
        assert_eq!((read.ca_file, read.token_file), (None, None));
    }
    for (url, says) in [
        ("prometheus:9090", "http://"),
        ("ftp://prometheus", "http://"),
        ("/api", "http://"),
        ("http://", "no URL"),
        ("http://:9090", "no host"),
        ("http://prometheus:", "no port"),
        ("http://prometheus:0", "no port"),
        ("http://prometheus:99999", "port"),
        ("http://prometheus:x", "no port"),
        ("http://user:hush@prometheus", "--prometheus-token-file"),
        ("http://prometheus/?key=hush", "query of its own"),
        ("http://prometheus/#hush", "query of its own"),
    ] {
        let error = read(url).unwrap_err();
        assert!(error.contains("--prometheus-address") && error.contains(says), "{url}: {error}");
        assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
    }
    let all = ["--prometheus-address=https://p", "--prometheus-ca-file=ca", "--prometheus-token-file=t"];
    let read = serve(&[&[policy], &all[..]].concat()).unwrap().prometheus.unwrap();
    assert_eq!((read.ca_file, read.token_file), (Some("ca".into()), Some("t".into())));
    for (flags, says) in [
        (&all[..1], "give --capacity-policy"),
        (&[policy, all[1]], "give --prometheus-address"),
        (&[policy, all[2]], "give --prometheus-address"),
        (&[policy, "--prometheus-address=http://p", all[1]], "for https://"),
    ] {
        let error = serve(flags).unwrap_err();
        assert!(error.contains(says), "{flags:?}: {error}");
    }
    assert_eq!(serve(&[policy]).unwrap().prometheus, None);
}
