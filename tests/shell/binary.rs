//! The program as a process: exit codes, errors on stderr, signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::LazyLock;

use rustls::version::{TLS12, TLS13};

use crate::metrics_tls::{self, Authority};
use crate::support::listener;

fn usher(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    command.args(arguments).env_remove("NAMESPACE").stdin(Stdio::null());
    command
}

/// The flag that names an endpoints file without endpoints.
fn endpoints() -> &'static str {
    static FLAG: LazyLock<(String, tempfile::TempPath)> = LazyLock::new(|| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"endpoints: []").unwrap();
        let path = file.into_temp_path();
        (format!("--endpoints-file={}", path.display()), path)
    });
    &FLAG.0
}

fn output(arguments: &[&str]) -> Output {
    usher(arguments).output().unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &str) {
    let output = output(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty());
    let is_of_clap = stderr.ends_with(" --help`\n");
    assert!(is_of_clap || stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.starts_with("usher: ") && stderr.contains(says), "{arguments:?}: {stderr}");
}

/// Free ports of loopback, and no admin server.
const QUIET: [&str; 7] = [
    "serve",
    "--bind-address=127.0.0.1",
    "--grpc-port=0",
    "--grpc-health-port=0",
    "--metrics-port=0",
    "--admin-address=off",
    "--zap-encoder=json",
];

#[test]
fn usage_errors_exit_2_and_failures_exit_1() {
    fails(&["serve", "--grpc-port=many"], 2, "--grpc-port");
    fails(&["serve", "--lora-info-metric=x"], 2, "--lora-info-metric");
    fails(&["serve", "--zap-encoder=xml"], 2, "--zap-encoder");
    fails(&["observe"], 2, "observe");
    fails(&QUIET, 2, "--endpoints-file");
    fails(&[&QUIET[..], &["--endpoints-file=/nonexistent"]].concat(), 2, "/nonexistent");
    let no_certificate = [endpoints(), "--metrics-cert-dir=/nonexistent"];
    fails(&[&QUIET[..], &no_certificate].concat(), 2, "/nonexistent/tls.crt (--metrics-cert-dir)");
    let taken = listener();
    let port = taken.local_addr().unwrap().port();
    let flag = format!("--metrics-port={port}");
    fails(&[&QUIET[..], &[&flag]].concat(), 1, &format!("127.0.0.1:{port} (--metrics-port)"));
    fails(&[&QUIET[..], &[endpoints(), "--cert-path=/nonexistent"]].concat(), 2, "/nonexistent/tls.crt");
}

#[test]
fn wrong_arguments_name_suggestions_and_help() {
    // Arguments; the error, and the command whose help is named.
    for (arguments, says, command) in [
        (
            &["serve", "--endpoint-file=x"][..],
            "unexpected argument '--endpoint-file' found\n\n  tip: a similar argument exists: '--endpoints-file'\n",
            "usher serve",
        ),
        (&["serv"], "unrecognized subcommand 'serv'\n\n  tip: ", "usher"),
        (&["demo", "--scenario=x"], "'--scenario <SCENARIO>'\n  [possible values: ", "usher demo"),
        (
            &["capacity", "check", "--polic"],
            "unexpected argument '--polic' found\n\nUsage: ",
            "usher capacity check",
        ),
    ] {
        fails(arguments, 2, says);
        fails(arguments, 2, &format!("\n\nsee `{command} --help`\n"));
    }
}

#[test]
fn two_sources_of_endpoints_are_refused_with_their_places() {
    let config = "plugins: [{type: file-discovery, parameters: {path: a}}]\ndataLayer: {discovery: {pluginRef: file-discovery}}\n";
    let says = "and from the plugin 'file-discovery' (--config-text:1:11, dataLayer.discovery); keep one";
    fails(&[&QUIET[..], &[endpoints(), "--config-text", config]].concat(), 2, says);
    let selector = ["--endpoint-selector=app=vllm", "--endpoint-target-ports=8000"];
    let says = "and from --endpoint-selector app=vllm; keep one";
    fails(&[&QUIET[..], &[endpoints()], &selector[..]].concat(), 2, says);
}

#[test]
fn pool_flags_are_accepted_with_file_discovery() {
    let config = "plugins: [{type: file-discovery, parameters: {path: a}}]\ndataLayer: {discovery: {pluginRef: file-discovery}}\n";
    let selector = ["--endpoint-selector=app=vllm", "--endpoint-target-ports=8000"];
    for flags in [&["--pool-name=p"][..], &selector] {
        let says = "a: the endpoints file can't be read";
        fails(&[&QUIET[..], flags, &["--config-text", config]].concat(), 2, says);
    }
}

#[test]
fn every_new_problem_of_the_endpoints_file_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints.yaml");
    let good = "endpoints:\n- {name: a, address: 127.0.0.1, port: \"8000\"}\n";
    let put = |text: &str| {
        let new = folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &path).unwrap();
    };
    put(good);
    let mut process = Process::start(&[&format!("--endpoints-file={}", path.display())]);
    process.logged("serving");
    let refused = "endpoints file can't be used, keeping the endpoints as they are";
    for (text, says) in [
        ("endpoints: [", "unclosed bracket"),
        ("pods: []", "`endpoints`"),
        ("endpoints: []", "lists no endpoint"),
    ] {
        put(text);
        let line = process.logged(refused);
        assert!(line["error"].as_str().unwrap().contains(says), "{text}: {line}");
        assert_eq!(line["endpoints"], 1);
    }
    put(good);
    process.logged("endpoints file can be used again");
}

#[test]
fn help_and_version_go_to_stdout() {
    for (arguments, says) in
        [(&["serve", "--help"][..], "--drain-timeout"), (&["--version"], env!("CARGO_PKG_VERSION"))]
    {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains(says));
    }
}

#[test]
fn version_is_printed_as_text_and_json() {
    let said = |arguments: &[&str]| {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = said(&["version"]);
    let first = format!("usher {}\ncommit    ", env!("CARGO_PKG_VERSION"));
    assert!(
        text.starts_with(&first) && text.contains("\nfeatures  jemalloc, lab\nEnvoy     tested with 1."),
        "{text}"
    );
    assert_eq!(said(&["--version"]), text);
    assert_eq!(said(&["-V"]), format!("usher {}\n", env!("CARGO_PKG_VERSION")));
    let json: serde_json::Value = serde_json::from_str(&said(&["version", "--output=json"])).unwrap();
    assert_eq!(
        (&json["version"], &json["features"]),
        (&env!("CARGO_PKG_VERSION").into(), &serde_json::json!(["jemalloc", "lab"]))
    );
}

#[test]
fn completions_and_manual_list_the_commands() {
    for (shell, says) in
        [("bash", "complete -F _usher"), ("zsh", "#compdef usher"), ("fish", "complete -c usher")]
    {
        let text = String::from_utf8(output(&["completions", shell]).stdout).unwrap();
        assert!(text.contains(says) && text.contains("endpoints-file"), "{shell}: {}", text.len());
    }
    for (command, says) in [
        (&[][..], "usher\\-serve(1)"),
        (&["serve"], "endpoints\\-file"),
        (&["capacity", "check"], "usher\\-capacity\\-check"),
    ] {
        let text = String::from_utf8(output(&[&["man"], command].concat()).stdout).unwrap();
        assert!(text.contains(".TH usher") && text.contains(says), "{command:?}: {text}");
    }
    let page = String::from_utf8(output(&["man", "serve"]).stdout).unwrap();
    let heading = format!(".TH usher-serve 1  \"usher {}\" \n", env!("CARGO_PKG_VERSION"));
    assert!(page.contains(&heading), "{}", page.lines().take(4).collect::<String>());
    fails(&["man", "swerve"], 2, "no command \"swerve\"; it has ");
}

#[test]
fn endpoints_of_a_running_picker_are_shown() {
    let mut process = Process::start(&["--admin-address=127.0.0.1:0"]);
    let admin = address(&process.logged("serving"), "admin").to_string();
    let text = output(&["endpoints", "--admin", &admin]);
    assert_eq!((text.status.code(), text.stdout), (Some(0), b"no endpoints\n".to_vec()));
    let page = output(&["endpoints", "--output=json", "--admin-address", &format!("http://{admin}")]).stdout;
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&page).unwrap()["endpoints"],
        serde_json::json!([])
    );
    drop(process);
    fails(&["endpoints", "--admin", &admin], 1, "give the --admin-address of a running usher serve");
    fails(&["endpoints", "--admin", "ftp://x"], 2, "--admin: ");
}

/// A process that serves. Killed if the test ends before it does.
struct Process {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Process {
    fn start(flags: &[&str]) -> Self {
        let mut child =
            usher(&[&QUIET[..], &[endpoints()], flags].concat()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// Reads the log up to the line with `message`.
    fn logged(&mut self, message: &str) -> serde_json::Value {
        self.lines_until(message).pop().unwrap()
    }

    /// The lines of the log up to the one with `message`.
    fn lines_until(&mut self, message: &str) -> Vec<serde_json::Value> {
        let mut lines: Vec<serde_json::Value> = Vec::new();
        while lines.last().is_none_or(|line| line["message"] != message) {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "ended before {message:?}");
            lines.push(serde_json::from_str(&line).unwrap());
        }
        lines
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address(line: &serde_json::Value, field: &str) -> SocketAddr {
    line[field].as_str().unwrap().parse().unwrap()
}

#[test]
fn sigterm_drains_and_exits_zero() {
    let mut process = Process::start(&["--drain-timeout=10ms", "--enable-pprof"]);
    assert_eq!(process.logged("flag has no effect")["flag"], "--enable-pprof");
    let serving = process.logged("serving");
    TcpStream::connect(address(&serving, "extproc")).unwrap();
    process.signal("-TERM");
    process.logged("draining: still accepting");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(address(&serving, "health")).is_err());
}

#[test]
fn start_is_logged_in_one_line() {
    let admin = listener().local_addr().unwrap().to_string();
    let admin_flag = format!("--admin-address={admin}");
    let mut process = Process::start(&[&admin_flag, "--worker-threads=1", "--config-text=plugins: []"]);
    let lines = process.lines_until("serving");
    let serving = lines.last().unwrap();
    for port in ["extproc", "health", "metrics"] {
        assert!(address(serving, port).ip().is_loopback(), "{serving}");
    }
    let (version, file) = (env!("CARGO_PKG_VERSION"), endpoints().trim_start_matches("--endpoints-file="));
    for (field, value) in [
        ("version", version),
        ("admin", admin.as_str()),
        ("certificate", "self-signed"),
        ("config", "--config-text"),
        ("endpoints", &format!("file {file}")),
    ] {
        assert_eq!(serving[field], value, "{serving}");
    }
    assert!(serving["commit"].as_str().is_some_and(|commit| !commit.is_empty()), "{serving}");
    process.signal("-INT");
    let stopped = process.lines_until("stopped");
    for line in lines.iter().chain(&stopped) {
        let text = line.to_string();
        assert!(!text.contains("::") && !text.contains("Some(") && line.get("target").is_none(), "{text}");
    }
    assert!(stopped.iter().any(|line| line["signal"] == "SIGINT"), "{stopped:?}");
    assert_eq!(stopped.last().unwrap()["gracefully"], true);
}

#[test]
fn sigint_skips_the_window() {
    let mut process = Process::start(&["--drain-timeout=1h"]);
    process.logged("serving");
    process.signal("-INT");
    assert_eq!(process.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_at_once_with_exit_code_1() {
    let mut process = Process::start(&["--drain-timeout=1h"]);
    process.logged("serving");
    process.signal("-TERM");
    process.logged("draining: still accepting");
    process.signal("-INT");
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
}

#[test]
fn endpoints_file_disables_metrics_authorization() {
    let mut process = Process::start(&["--metrics-endpoint-auth"]);
    let lines = process.lines_until("serving");
    let [.., serving] = &lines[..] else { panic!("{lines:?}") };
    let protected = (serving["metrics_auth"].as_bool(), serving["metrics_tls"].as_bool());
    assert_eq!(protected, (Some(false), Some(false)));
    let mut stream = TcpStream::connect(address(serving, "metrics")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("llm_d_epp_info"), "{page}");
    let unused = lines.iter().find(|line| line["message"] == "flag has no effect").unwrap();
    assert_eq!(unused["flag"], "--metrics-endpoint-auth");
    assert!(unused["reason"].as_str().unwrap().contains("--metrics-client-ca-file"), "{unused}");
}

#[test]
fn syncer_that_another_key_replaces_is_one_warning() {
    let shared = "
plugins: [{type: local-syncer}, {type: redis-syncer}]
dataLayer:
  crossReplicaSyncerPluginRef: redis-syncer
  crossReplicaSyncInterval: 1s
  crossReplica: {syncerPluginRef: local-syncer}
";
    let warnings = |flags: &[&str]| {
        let mut process = Process::start(flags);
        let lines = process.lines_until("serving");
        let warns = |line: &&serde_json::Value| line["level"].as_str().is_some_and(|level| level == "WARN");
        lines.iter().filter(warns).cloned().collect::<Vec<_>>()
    };
    let warned = warnings(&["--config-text", shared]);
    let [warning] = &warned[..] else { panic!("{warned:?}") };
    let said = warning["warning"].as_str().unwrap();
    let named = "without effect: dataLayer.crossReplicaSyncerPluginRef, plugin 'redis-syncer'";
    assert!(said.ends_with(named), "{said}");
    assert_eq!(warnings(&["--config-text", "plugins: [{type: queue-scorer}]"]), [serde_json::Value::Null; 0]);
    fails(
        &[&QUIET[..], &["--config-text", &shared.replace("Ref: redis", "Ref: radish")]].concat(),
        2,
        "declare",
    );
}

/// Log lines of a process until it serves: its warnings, and the notes on its configuration.
fn says(flags: &[&str]) -> Vec<String> {
    let lines = Process::start(flags).lines_until("serving");
    let notable = |line: &&serde_json::Value| line["level"] == "WARN" || line["note"].is_string();
    lines.iter().filter(notable).map(ToString::to_string).collect()
}

#[test]
fn contradictory_limits_and_zero_ttls_are_noted() {
    let config = |flow: &str| format!("featureGates: [flowControl]\nflowControl: {{{flow}}}\n");
    let larger = "a larger body than maxBytes is refused";
    // flags and flow control; what is said
    for (flag, flow, what) in [
        ("--locator-ttl=0s", "", "--locator-ttl is 0"),
        ("--v=2", "defaultRequestTTL: 0s", "defaultRequestTTL is 0"),
        ("--v=2", "noEndpointRequestTTL: 0s", "noEndpointRequestTTL is 0"),
        ("--v=2", "maxBytes: 1Mi", larger),
        ("--v=2", "priorityBands: [{priority: 7, maxBytes: 1Mi}]", "priority 7"),
        (
            "--v=2",
            "priorityBands: [{priority: 7, maxBytes: 1Mi}, {priority: 0, maxBytes: 2Mi}]",
            "priority 7 (1048576), priority 0 (2097152)",
        ),
        ("--refresh-metrics-interval=1s", "", "metricsStalenessThreshold to 2s or more"),
        ("--max-request-body-bytes=2Gi", "", larger),
        ("--v=2", "maxRequests: 5, priorityBands: [{priority: 0, maxRequests: 6}]", "is never reached"),
        ("--memory-budget=64Mi", "", "the largest request body does not fit into the memory budget"),
        (
            "--refresh-metrics-interval=1ms",
            "",
            "--refresh-metrics-interval is below the shortest interval and was raised",
        ),
        ("--pool-name=p", "", "--pool-name only names the pool in metrics; endpoints come from /"),
    ] {
        let said = says(&[flag, "--config-text", &config(flow)]);
        assert_eq!(said.iter().filter(|line| line.contains(what)).count(), 1, "{flag} {flow}: {said:?}");
    }
    let fine = config("maxBytes: 32Mi, maxRequests: 5, defaultRequestTTL: 1s");
    let said = says(&["--config-text", &fine]);
    assert!(said.iter().all(|line| !line.contains("maxBytes") && !line.contains("is 0")), "{said:?}");
    assert!(said.iter().all(|line| !line.contains("--pool-name")), "{said:?}");
}

#[tokio::test]
async fn the_metrics_port_asks_for_a_certificate_with_client_ca_path() {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let (folder, ours, gateways) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = ours.sign(ServerAuth);
    std::fs::write(path("tls.crt"), certificate).unwrap();
    std::fs::write(path("tls.key"), key).unwrap();
    std::fs::write(path("gateways.pem"), &gateways.pem).unwrap();
    let mut process = Process::start(&[
        &format!("--client-ca-path={}", path("gateways.pem")),
        &format!("--metrics-cert-dir={}", folder.path().display()),
        "--metrics-endpoint-auth=false",
    ]);
    let metrics = address(&process.logged("serving"), "metrics");
    let with = async |client| metrics_tls::ask(metrics, &ours, client, &[&TLS12, &TLS13]).await;
    let page = with(Some((&gateways, ClientAuth))).await.unwrap();
    assert!(page.contains("usher_memory_budget_bytes"), "{page}");
    assert!(with(None).await.is_err());
    assert!(with(Some((&ours, ClientAuth))).await.is_err());
}
