//! `usher check` and `usher capacity check` of ClusterTopologies.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use usher::cli::check::Output;

use crate::check::{check, only};

const TOPOLOGY: &str = "\
apiVersion: usher.dev/v1alpha1
kind: ClusterTopology
metadata:
  name: racks
spec:
  layers: [kubernetes.io/hostname, example.com/rack]
";

#[test]
fn topology_is_checked_and_described() {
    let (code, out, err) = check("-", TOPOLOGY, Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\
racks is valid: a topology of 2 layers
  layers       kubernetes.io/hostname, example.com/rack; from the smallest
               domains to the largest
";
    assert_eq!(out, expected);
    let (_, out, _) = check("-", TOPOLOGY, Output::Json);
    let file = only(&out);
    assert_eq!((&file["kind"], &file["policies"]), (&json!("ClusterTopology"), &json!([])));
    let layers = ["kubernetes.io/hostname", "example.com/rack"];
    assert_eq!(file["topologies"], json!([{"name": "racks", "layers": layers}]));
}

#[test]
fn all_errors_of_topologies_and_policies_are_in_the_order_of_the_file() {
    let wrong =
        TOPOLOGY.replace("example.com/rack", "kubernetes.io/hostname").replace("spec:", "spec:\n  layer: a");
    let policy =
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {roles: {}}\n";
    let (code, _, err) = check("-", &format!("{policy}---\n{wrong}---\n{policy}"), Output::Text);
    assert_eq!(code, 1);
    let errors: Vec<&str> = err.lines().filter(|line| line.starts_with("<stdin>:")).collect();
    let starts = [
        "<stdin>:4:8: spec.roles is empty",
        "<stdin>:11:3: unknown field 'layer'",
        "<stdin>:12:36: spec.layers.1 'kubernetes.io/hostname' is a duplicate",
        "<stdin>:14:1: a second policy is called 'p'",
        "<stdin>:17:8: spec.roles is empty",
    ];
    assert_eq!(errors.len(), starts.len(), "{err}");
    for (error, start) in errors.iter().zip(starts) {
        assert!(error.starts_with(start), "{error}, not {start}");
    }
}

/// Exit code and the JSON of `usher capacity check`.
fn capacity_check(input: &str) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    command.args(["capacity", "check", "-", "--output", "json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), only(&String::from_utf8(output.stdout).unwrap()))
}

#[test]
fn capacity_check_takes_topologies_and_refuses_other_kinds() {
    let (code, file) = capacity_check(TOPOLOGY);
    assert_eq!((code, &file["kind"], &file["valid"]), (Some(0), &json!("ClusterTopology"), &json!(true)));
    let (code, file) = capacity_check("kind: ConfigMap\n");
    assert_eq!((code, &file["errors"][0]["message"]), (Some(1), &json!("kind 'ConfigMap' is not known")));
    let (code, file) = capacity_check("endpoints: []\n");
    assert_eq!(code, Some(1));
    assert_eq!(file["errors"][0]["message"], "this is an endpoints file, not a CapacityPolicy");
}

#[test]
fn topology_in_a_file_of_policies_to_serve_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let [policies, endpoints] = ["policies.yaml", "endpoints.yaml"].map(|name| folder.path().join(name));
    std::fs::write(&policies, TOPOLOGY).unwrap();
    std::fs::write(&endpoints, "endpoints: []\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    command.args([
        "serve",
        "--grpc-port=0",
        "--grpc-health-port=0",
        "--metrics-port=0",
        "--admin-address=off",
    ]);
    command.arg("--endpoints-file").arg(&endpoints).arg("--capacity-policy").arg(&policies);
    let output = command.env_remove("NAMESPACE").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("policies.yaml:2:7: this is a ClusterTopology, not a CapacityPolicy"), "{text}");
}
