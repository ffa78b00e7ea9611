//! `deploy/compare.sh` as its users see it: two pickers, the same requests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const USHER: &str = env!("CARGO_BIN_EXE_usher");

/// Longest wait for anything here.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server with the emptiest KV cache; no two have the same.
const BY_CACHE: &str = "plugins: [{type: kv-cache-utilization-scorer}]\n";

/// Few requests, and a new load for every sixth.
const SMALL: [&str; 4] = ["--requests=18", "--servers=4", "--change-every=6", "--pause=1ms"];

fn compare(peer: &[&str]) -> Command {
    let mut command = Command::new("deploy/compare.sh");
    command.env("USHER_BIN", USHER).args(peer).stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

/// The report of a comparison with Usher itself.
#[track_caller]
fn report(peer: &str, flags: &[&str]) -> Value {
    let mut command = compare(&[peer]);
    command.args(SMALL).args(["--output", "json"]).args(flags);
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn usher() -> String {
    format!("{USHER} serve")
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn deterministic_picker_agrees_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "config.yaml", BY_CACHE);
    let report = report(&usher(), &["--config-file", &config]);
    assert_eq!(
        (&report["requests"], &report["agree"], &report["differ"]),
        (&json!(18), &json!(18), &json!(0))
    );
    assert_eq!((&report["usher_with_itself"], &report["peer_with_itself"]), (&json!(0), &json!(0)));
    assert_eq!((&report["kinds"], &report["differences"]), (&json!({}), &json!([])));
    assert_eq!(report["notes"], json!([]), "both read all metrics");
}

#[test]
fn random_picks_count_as_chance() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "config.yaml", "plugins: [{type: random-picker}]\n");
    let report = report(&usher(), &["--config-file", &config]);
    let [between, own, others] =
        ["differ", "usher_with_itself", "peer_with_itself"].map(|count| report[count].as_u64().unwrap());
    // Three of four differ; that none of 18 does has a probability below 1 in 10^10.
    assert!(between > 0 && own > 0 && others > 0, "{report:#}");
    let beyond = report["beyond_chance"].as_u64().unwrap();
    assert!(beyond < between, "{report:#}");
}

#[test]
fn different_configuration_differs_beyond_chance() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "config.yaml", BY_CACHE);
    // The fullest first: never the same server.
    let other = write(
        folder.path(),
        "other.yaml",
        "plugins: [{type: kv-cache-utilization-scorer}]\n\
         schedulingProfiles: [{name: default, plugins: [{pluginRef: kv-cache-utilization-scorer, weight: -1}]}]\n",
    );
    let flags = ["--config-file", &config, "--peer-config-file", &other];
    let report = report(&usher(), &flags);
    assert_eq!((&report["differ"], &report["beyond_chance"]), (&json!(18), &json!(18)));
    assert_eq!(report["kinds"], json!({"destination": [18, 0, 0]}));
    let differences = report["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 18);
    for line in differences {
        let cache = |picker: &str| {
            let server = line[picker]["destination"].as_str().unwrap();
            line["loads"][server]["kv_cache"].as_f64().unwrap()
        };
        let loads =
            line["loads"].as_object().unwrap().values().map(|load| load["kv_cache"].as_f64().unwrap());
        let (least, most) =
            loads.fold((1.0f64, 0.0f64), |(least, most), one| (least.min(one), most.max(one)));
        assert_eq!((cache("usher"), cache("peer")), (least, most), "{line:#}");
    }
    let mut command = compare(&[&usher()]);
    command.args(SMALL).args(flags).args(["--show", "5"]);
    let output = output(command);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "usher and other       0      18  100.0 %",
        "usher and itself     18       0    0.0 %",
        "chance: 18, on",
        "destination: server-",
        "(waiting ",
        "… and 13 more; --show N lists more",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn statuses_and_headers_are_separate_differences() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "config.yaml", BY_CACHE);
    let nobody = write(
        folder.path(),
        "nobody.yaml",
        "plugins: [{type: by-label, parameters: {label: nobody, validValues: [x]}}, {type: kv-cache-utilization-scorer}]\n",
    );
    let refused = report(&usher(), &["--config-file", &config, "--peer-config-file", &nobody]);
    assert_eq!(refused["kinds"], json!({"status": [18, 0, 0]}));
    let first = &refused["differences"][0];
    assert_eq!((&first["usher"]["status"], &first["peer"]["status"]), (&json!("routed"), &json!("429")));
    assert_eq!(first["peer"]["headers"]["x-llm-d-request-dropped-reason"], "rejected-saturated");

    let pd = |decider: &str| {
        format!(
            "plugins:\n- {{type: disagg-profile-handler, parameters: {{deciders: {{prefill: d}}}}}}\n\
             - {{name: d, {decider}}}\n- type: prefill-filter\n- type: decode-filter\n- type: kv-cache-utilization-scorer\n\
             schedulingProfiles:\n\
             - {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: kv-cache-utilization-scorer}}]}}\n\
             - {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: kv-cache-utilization-scorer}}]}}\n"
        )
    };
    let always = write(folder.path(), "always.yaml", &pd("type: always-disagg-pd-decider"));
    let never = write(folder.path(), "never.yaml", &pd("type: prefix-based-pd-decider"));
    let report = report(&usher(), &["--prefill=2", "--config-file", &always, "--peer-config-file", &never]);
    assert_eq!(report["kinds"], json!({"header x-prefiller-host-port": [18, 0, 0]}));
    let prefill = report["differences"][0]["usher"]["headers"]["x-prefiller-host-port"].as_str().unwrap();
    assert!(["server-0", "server-1"].contains(&prefill), "{prefill}");
    assert_eq!(report["differences"][0]["peer"]["headers"], json!({}));
}

#[test]
fn failed_comparison_is_a_one_line_error() {
    let usage = output(compare(&[]));
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8(usage.stderr).unwrap().starts_with("usage: deploy/compare.sh COMMAND"));
    let folder = tempfile::tempdir().unwrap();
    let broken = write(folder.path(), "broken.yaml", "plugins: [{type: no-such-scorer}]\n");
    let script = write(folder.path(), "ends.sh", "#!/bin/sh\necho 'no licence' >&2\nexit 3\n");
    let table: [(&[&str], i32, &[&str]); 7] = [
        (&["/nowhere/epp"], 1, &["the other picker ended", "/nowhere/epp"]),
        (&["sh", "--requests=0"], 2, &["--requests"]),
        (&[""], 2, &["COMMAND is empty"]),
        (&["x", "--config-file=/nowhere.yaml"], 2, &["/nowhere.yaml"]),
        (&["x", "--trace=/nowhere.jsonl"], 2, &["/nowhere.jsonl"]),
        (&["x", "--prefill=8"], 2, &["none of 8 servers is left to decode"]),
        (
            &["x", "--config-file", &broken],
            1,
            &["usher ended", "plugin type 'no-such-scorer' is not registered"],
        ),
    ];
    for (arguments, code, says) in table {
        assert_fails(arguments, code, says);
    }
    assert_fails(
        &[&format!("sh {script}")],
        1,
        &["the other picker ended (exit status: 3): no licence; its output is in"],
    );
    // Something that serves, and not this.
    let sim = format!("sh -c 'exec {USHER} sim --count=1 --port=${{1#*=}}' sh");
    assert_fails(&[&sim], 1, &["the other picker: 127.0.0.1:", "is no ext_proc server"]);
}

#[track_caller]
fn assert_fails(arguments: &[&str], code: i32, says: &[&str]) {
    let mut command = compare(arguments);
    let folder = tempfile::tempdir().unwrap();
    // What stays for a look at it goes with the test.
    command.env("TMPDIR", folder.path());
    if arguments.len() == 1 {
        command.args(SMALL);
    }
    let output = output(command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    // Behind the progress.
    let last = said.rfind("\nusher: ").map_or(&said[..], |end| &said[end + 1..]);
    assert!(last.starts_with("usher: "), "{said}");
    for part in says {
        assert!(last.contains(part), "{arguments:?}: {part:?} is not in {last}");
    }
    assert!(output.stdout.is_empty());
}

/// A comparison that goes on for minutes, and the process of the picker that it runs.
fn started(folder: &Path) -> (Child, u32) {
    let pid_file = folder.join("pid");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' --grpc-port='*) echo $$ > {}.new; mv {0}.new {0};; esac\nexec {USHER} serve \"$@\"\n",
        pid_file.display()
    );
    let script = PathBuf::from(write(folder, "picker.sh", &script));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = compare(&["sh"]);
    command.arg("--usher").arg(&script).args(["--requests=200", "--pause=1s"]);
    let child = command.env("TMPDIR", folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = eventually("the picker's process", || fs::read_to_string(&pid_file).ok()?.trim().parse().ok());
    (child, pid)
}

fn eventually<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns `true` if a process runs. One that nobody waited for yet has ended all the same.
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim().starts_with(['Z', 'X']))
}

#[cfg(target_os = "linux")]
#[test]
fn interrupted_or_killed_comparison_stops_its_pickers() {
    for (signal, code) in [("-INT", Some(1)), ("-TERM", Some(1)), ("-KILL", None)] {
        let folder = tempfile::tempdir().unwrap();
        let (mut comparison, picker) = started(folder.path());
        assert!(runs(picker));
        let killed = Command::new("kill").args([signal, &comparison.id().to_string()]).status().unwrap();
        assert!(killed.success());
        assert_eq!(comparison.wait().unwrap().code(), code, "{signal}");
        eventually("end of the picker", || (!runs(picker)).then_some(()));
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let left = left.filter(|name| name.to_string_lossy().starts_with("usher-compare-")).count();
        // Nobody can clean up after a kill.
        assert_eq!(left, usize::from(code.is_none()), "{signal}");
    }
}
