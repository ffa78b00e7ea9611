//! `usher demo` from outside, with the real Envoy: its numbers, its errors, and that it
//! leaves nothing behind however it ends.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test may panic like the test")]

mod errors;
mod replicas;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Ports in a row that a demo with two servers takes.
const PORTS: u16 = 8;

/// Bound on waiting for what must happen, so that a failure is not a hang.
const DEADLINE: Duration = Duration::from_secs(30);

/// The Envoy binary, installed into the repository's own folder if need be.
fn envoy() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = root.join("deploy/envoy/get.sh");
        let output = Command::new("sh").arg(script).arg(root.join(".demo")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().into()
    })
}

/// A demo with a folder of its own, which is in the arguments of all its processes. It
/// has two servers, unless the arguments begin with another number.
fn demo(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    let servers: &[&str] = if arguments.first() == Some(&"--servers") { &[] } else { &["--servers", "2"] };
    command.arg("demo").args(servers).arg("--dir").arg(folder.path()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One that finds Envoy and free ports.
fn working_demo(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = demo(folder, arguments);
    command.args(["--port", "0"]).env("USHER_ENVOY", envoy());
    command
}

/// The arguments of the processes that belong to `folder`, without the demo's own.
fn processes_of(folder: &TempDir) -> Vec<String> {
    let folder = folder.path().to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        // What ended in the meantime can't be read.
        let line = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    all.filter(|line| line.contains(folder) && !line.contains(" demo ")).collect()
}

fn assert_free(ports: impl IntoIterator<Item = u16>) {
    for port in ports {
        TcpListener::bind(("127.0.0.1", port)).unwrap_or_else(|error| panic!("port {port}: {error}"));
    }
}

/// The one line that says what failed, and that nothing was printed as a result.
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = text.lines().filter(|line| line.starts_with("usher: "));
    let line = lines.next_back().unwrap_or_else(|| panic!("{text}"));
    assert_eq!((lines.next(), text.lines().last()), (None, Some(line)), "{text}");
    line.to_owned()
}

fn signal(name: &str, child: &Child) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Reads lines until one starts with `start`.
fn line_with(start: &str, from: &mut impl BufRead) -> String {
    let lines = from.lines().map(Result::unwrap);
    let mut before = Vec::new();
    for line in lines {
        if line.starts_with(start) {
            return line;
        }
        before.push(line);
    }
    panic!("no line {start} after {before:?}")
}

/// Starts a demo that stays, and gives the lines that it printed to try.
fn kept(folder: &TempDir) -> (Child, Hints) {
    let mut child =
        working_demo(folder, &["--keep", "--requests", "3"]).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let explain = concat!(env!("CARGO_BIN_EXE_usher"), " explain ");
    let [curl, explain, page] = ["curl ", explain, "The page is at "].map(|start| line_with(start, &mut out));
    (child, Hints { curl, explain, page })
}

/// Lines that a demo prints to try.
struct Hints {
    curl: String,
    explain: String,
    page: String,
}

/// Status line, headers and body of a response to a request on a connection of its own.
fn response_to(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

/// The port that a curl line asks.
fn port_in(curl: &str) -> u16 {
    let rest = curl.split("http://127.0.0.1:").nth(1).unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

#[test]
fn replay_prints_its_numbers_and_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let output = working_demo(&folder, &["--requests", "30", "--output", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();

    let runs = report["runs"].as_array().unwrap();
    let policies: Vec<&Value> = runs.iter().map(|run| &run["policy"]).collect();
    assert_eq!(policies, ["llm-d-router's", "Usher's"]);
    // The first 30 rows: a prompt costs its tokens, one for its role and three for that of the response.
    let rows: Vec<Value> = fs::read_to_string("deploy/demo/trace.jsonl")
        .unwrap()
        .lines()
        .take(30)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let sum = |of: &dyn Fn(&Value) -> u64| rows.iter().map(of).sum::<u64>();
    for run in runs {
        assert_eq!((&run["requests"], &run["statuses"]), (&30.into(), &json!({"200": 30})));
        assert_eq!(run["failures"], json!({}));
        assert_eq!(run["tokens"]["prompt"], sum(&|row| row["input_length"].as_u64().unwrap() + 4));
        let completion = sum(&|row| (row["output_length"].as_u64().unwrap() / 8).max(1));
        assert_eq!(run["tokens"]["completion"], completion);
        // All rows begin with the same block, and 30 requests at 2 servers meet it again.
        assert!(run["tokens"]["cached"].as_u64().unwrap() >= 512, "{run}");
        let pods = run["pods"].as_object().unwrap();
        assert_eq!(pods.keys().collect::<Vec<_>>(), ["sim-0", "sim-1"]);
        for field in ["requests", "prompt", "completion", "cached"] {
            let of_pods: u64 = pods.values().map(|pod| pod[field].as_u64().unwrap()).sum();
            assert_eq!(run["tokens"][field], of_pods, "{field}");
        }
        let added = &run["added_ms"];
        assert_eq!((added["samples"].as_u64(), added["failed"].as_u64()), (Some(20), Some(0)));
        for times in [added, &run["ttft_ms"], &run["tpot_ms"], &run["latency_ms"]] {
            assert!(times["p50"].as_f64().unwrap() <= times["p99"].as_f64().unwrap(), "{run}");
        }
        let good = run["good_percent"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&good), "{run}");
        assert!(run["usher"]["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{run}");
    }

    let ports = report["ports"].as_object().unwrap().values();
    let ports = ports.flat_map(|port| port.as_array().cloned().unwrap_or_else(|| vec![port.clone()]));
    let ports: Vec<u16> = ports.map(|port| port.as_u64().unwrap().try_into().unwrap()).collect();
    assert_eq!(ports.len(), usize::from(PORTS));
    assert_free(ports);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the logs of a good run are removed");
}

#[test]
fn pairings_are_compared_by_first_tokens_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--servers", "4", "--scenario", "pd", "--requests", "30", "--output", "json"];
    let output = working_demo(&folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs[0]["pairing"], "independent");
    let prompts: u64 = fs::read_to_string("deploy/demo/trace.jsonl")
        .unwrap()
        .lines()
        .take(30)
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["input_length"].as_u64().unwrap() + 1)
        .sum();
    for run in runs {
        assert_eq!(
            (&run["requests"], &run["statuses"]),
            (&30.into(), &serde_json::json!({"200": 30})),
            "{run}"
        );
        // Every prompt was computed by another server, and moved but for what was there.
        assert_eq!((&run["remote_prefills"], &run["own_prefills"]), (&30.into(), &0.into()), "{run}");
        let moved: u64 = run["moved_bytes"].as_object().unwrap().values().map(|b| b.as_u64().unwrap()).sum();
        assert!(moved > prompts / 2 * 262_144 && moved <= prompts * 262_144, "{run}");
        for layer in ["region", "none"] {
            assert_eq!(run["moved_bytes"][layer], 0, "{run}");
        }
        let times = &run["first_token_ms"];
        assert!(times["mean"].as_f64().unwrap() <= times["p99"].as_f64().unwrap(), "{run}");
    }
    let envoy = report["ports"]["envoy"].as_u64().unwrap().try_into().unwrap();
    assert_free(envoy..envoy + PORTS + 2);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the logs of good runs are removed");
}

#[test]
fn requests_wait_for_servers_and_are_all_served() {
    let folder = tempfile::tempdir().unwrap();
    // All of them are due before there is a server.
    let arguments = ["--scenario", "scale-from-zero", "--requests", "60", "--output", "json"];
    let output = working_demo(&folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["statuses"]), (&60.into(), &serde_json::json!({"200": 60})));
    assert_eq!((&report["most_waiting"], &report["waited"]), (&60.into(), &60.into()), "{report}");
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(number("servers_after_seconds") >= 3.0, "{report}");
    assert!(number("mean_wait_seconds") > 0.5, "{report}");
    let (early, late) = (&report["early"], &report["late"]);
    assert_eq!((&early["requests"], &late["requests"]), (&60.into(), &0.into()), "{report}");
    assert!(early["first_token_ms"]["p50"].as_f64().unwrap() > 500.0, "{report}");
    let shares: Vec<u64> =
        report["pods"].as_object().unwrap().values().map(|share| share.as_u64().unwrap()).collect();
    assert_eq!(shares.len(), 2);
    // Half and a tenth of that.
    assert!(shares.iter().all(|share| *share <= 33), "{report}");
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the logs of a good run are removed");
}

#[test]
fn outlier_scenario_recovers_only_with_outlier_detection() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--servers", "4", "--scenario", "outlier", "--requests", "300", "--output", "json"];
    let output = working_demo(&folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let [off, on] = [&runs[0], &runs[1]];
    assert_eq!((&off["detection"], &on["detection"]), (&false.into(), &true.into()));
    assert_eq!((&off["recovery_ms"], &off["unexpected"]), (&Value::Null, &serde_json::json!({})));
    assert_eq!(on["unexpected"], serde_json::json!({}));
    assert!(on["recovery_ms"].as_f64().unwrap() > 0.0, "{on}");
    for run in [off, on] {
        assert!(run["broken"]["requests"].as_u64().unwrap() >= 300, "{run}");
        assert_eq!(run["recovered"]["failed"], 0, "{run}");
        assert!(run["recovered"]["to_one"].as_u64().unwrap() > 0, "{run}");
    }
    let drawn = |run: &Value| run["broken"]["to_one"].as_u64().unwrap();
    assert!((1..drawn(off)).contains(&drawn(on)), "{on} {off}");
    let envoy = report["ports"]["envoy"].as_u64().unwrap().try_into().unwrap();
    assert_free(envoy..envoy + PORTS + 2);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}

#[test]
fn precise_scenario_predicts_the_hits_that_happen() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--servers", "2", "--scenario", "precise", "--requests", "120", "--output", "json"];
    let output = working_demo(&folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let policies: Vec<&Value> = runs.iter().map(|run| &run["policy"]).collect();
    assert_eq!(policies, ["approximate", "precise"]);
    for run in runs {
        assert_eq!((&run["requests"], &run["statuses"]), (&120.into(), &json!({"200": 120})));
        // Servers count what Usher counts.
        let cached = ["evictions", "restart"].map(|part| run[part]["cached"].as_f64().unwrap());
        assert!(cached.iter().all(|cached| *cached > 0.0), "{run}");
        assert!(cached.iter().sum::<f64>() <= run["tokens"]["cached"].as_f64().unwrap(), "{run}");
    }
    let off = |run: &Value| run["off_percent"].as_f64().unwrap();
    assert!(off(&runs[1]) < off(&runs[0]) && off(&runs[1]) < 1.0, "{report}");
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}

#[test]
fn servers_follow_the_load_without_a_failed_request() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--servers", "4", "--scenario", "autoscale", "--output", "json"];
    let output = working_demo(&folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["requests"], 300);
    assert_eq!((&report["statuses"], &report["failures"]), (&json!({"200": 300}), &json!({})));

    let ticks = report["ticks"].as_array().unwrap();
    let of = |name: &str| ticks.iter().map(|tick| tick[name].as_u64().unwrap()).collect::<Vec<_>>();
    let (current, desired) = (of("current"), of("desired"));
    // 17 requests per second of 1.3 s are 22 at once, and a server is to have four.
    for sizes in [&current, &desired] {
        assert_eq!((sizes[0], sizes.last(), sizes.iter().max()), (0, Some(&0), Some(&4)), "{report}");
    }
    assert!(
        of("waiting").iter().any(|waiting| *waiting > 0),
        "somebody waited for the first server: {report}"
    );
    // It is asked for first, then it is there.
    let reached = |sizes: &[u64]| sizes.iter().position(|size| *size == 4);
    assert!(reached(&desired) < reached(&current), "{report}");
    let reasons: Vec<&str> = ticks
        .iter()
        .flat_map(|tick| tick["reasons"].as_array().unwrap())
        .map(|r| r.as_str().unwrap())
        .collect();
    for reason in ["Metric", "DownWindow"] {
        assert!(reasons.contains(&reason), "{reasons:?}");
    }
    let count = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((count("most_servers"), count("started")), (4, count("ended")), "{report}");
    assert!(count("started") >= 4, "{report}");

    let envoy = report["ports"]["envoy"].as_u64().unwrap().try_into().unwrap();
    assert_free(envoy..envoy + PORTS + 2);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the logs of a good run are removed");
}

#[test]
fn autoscale_scenario_refuses_keep_and_trace() {
    for (flags, part) in [(&["--keep"][..], "--keep"), (&["--trace", "x"][..], "autoscale replays no trace")]
    {
        let folder = tempfile::tempdir().unwrap();
        let output = demo(&folder, &[flags, &["--scenario", "autoscale"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.starts_with("usher: ") && text.contains(part) && text.contains("leave it out"),
            "{text}"
        );
    }
}

#[test]
fn odd_server_count_is_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(&folder, &["--servers", "5", "--scenario", "pd"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("usher: ") && text.contains("even number"), "{text}");
}

#[test]
fn outlier_scenario_refuses_one_server_and_a_trace() {
    for (flags, part) in [(["--servers", "1"], "at least 2"), (["--trace", "x"], "leave it out")] {
        let folder = tempfile::tempdir().unwrap();
        let servers: &[&str] =
            if flags[0] == "--servers" { &flags } else { &["--servers", "2", flags[0], flags[1]] };
        let arguments = [servers, &["--scenario", "outlier"]].concat();
        let output = demo(&folder, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.starts_with("usher: ") && text.contains(part), "{text}");
    }
}

#[test]
fn kept_demo_serves_its_printed_command_until_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, Hints { curl, explain, page }) = kept(&folder);
    let port = port_in(&curl);
    let body = curl.split("-d '").nth(1).unwrap().strip_suffix('\'').unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\
                content-type: application/json";
    let length = body.len();
    let response = response_to(port, &format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}"));
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
    assert!(response.contains("x-inference-pod: sim-") && response.contains("\"usage\""), "{response}");

    let explained =
        Command::new(env!("CARGO_BIN_EXE_usher")).args(explain.split(' ').skip(1)).output().unwrap();
    let text = String::from_utf8_lossy(&explained.stdout);
    assert!(explained.status.success() && text.contains("sim-"), "{explained:?}");
    let get = "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/html\r\nconnection: close\r\n\r\n";
    let html = response_to(port_in(&page), get);
    assert!(html.starts_with("HTTP/1.1 200 OK") && html.contains("<title>"), "{html}");

    // A doctor finds everything by the gateway alone.
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_usher"));
    let doctor =
        doctor.args(["doctor", "--output", "json", "--gateway", &format!("http://127.0.0.1:{port}")]);
    let examined = doctor.output().unwrap();
    assert!(examined.status.success(), "{examined:?}");
    let report: Value = serde_json::from_slice(&examined.stdout).unwrap();
    assert_eq!(report["checks"][0]["check"], "path");
    let proof = report["checks"][0]["detail"].as_str().unwrap();
    assert!(proof.contains("served where the picker chose"), "{proof}");
    assert_eq!(
        (&report["counts"]["ok"], &report["counts"]["warning"]),
        (&13.into(), &0.into()),
        "{report:#}"
    );

    signal("-INT", &child);
    assert!(child.wait().unwrap().success());
    assert_free(port..port + PORTS);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}

#[test]
fn killed_demo_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let (mut child, Hints { curl, .. }) = kept(&folder);
    // Servers, Usher, Envoy, and what watches over them.
    assert_eq!(processes_of(&folder).len(), 4, "{:?}", processes_of(&folder));
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody waits for the processes now. One that is ending has no arguments any more
    // and may still have its ports.
    let (port, begin) = (port_in(&curl), Instant::now());
    let taken = || (port..port + PORTS).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_err());
    while taken().is_some() || !processes_of(&folder).is_empty() {
        assert!(begin.elapsed() < DEADLINE, "{:?}, port {:?}", processes_of(&folder), taken());
        std::thread::yield_now();
    }
}

#[test]
fn ctrl_c_prints_one_line_and_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    // At this speed the replay takes hours.
    let mut child = working_demo(&folder, &["--speed", "0.01"]).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    line_with("1 of 2, ", &mut errors);
    signal("-INT", &child);
    let line = line_with("usher: ", &mut errors);
    assert!(line.contains("interrupted"), "{line}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}
