//! `usher check` as a program sees it: standard output, standard error, exit code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the exception for tests does not reach their helpers"
)]

use std::path::PathBuf;

use serde_json::Value;
use usher::cli::check::{CheckArgs, Output, run_with};

/// Exit code, standard output, standard error.
fn check(file: &str, input: &str, output: Output) -> (u8, String, String) {
    let args = CheckArgs { file: PathBuf::from(file), output, allow_experimental_plugins: false };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run_with(&args, &mut input.as_bytes(), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn every_shipped_configuration_is_valid() {
    let mut files = 0;
    for entry in std::fs::read_dir("deploy/config").unwrap() {
        let path = entry.unwrap().path();
        let (code, out, err) = check(path.to_str().unwrap(), "", Output::Text);
        assert_eq!((code, err.as_str()), (0, ""), "{}", path.display());
        assert!(out.starts_with(&format!("{} is valid\n", path.display())), "{out}");
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn the_text_shows_the_pipeline_and_what_was_defaulted() {
    let text = "plugins: [{name: q, type: queue-scorer}, {name: kv, type: kv-cache-utilization-scorer}]
schedulingProfiles: [{name: main, plugins: [{pluginRef: q, weight: 2.5}, {pluginRef: kv}]}]
";
    let (code, out, err) = check("-", text, Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    let expected = "\
<stdin> is valid

profile           main
  scorers         q × 2.5
                  kv × 1
  picker          max-score-picker (default)
profile handler   single-profile-handler (default)
parsers           openai-parser (default)
                  passthrough-parser (default)
discovery         none: give usher serve --endpoints-file, Kubernetes discovery is not in this version
data sources      metrics-data-source (default) → core-metrics-extractor
saturation        utilization-detector (default)
feature gates     flowControl=false, haPopulateNonLeaderDatastore=true

plugins           q = queue-scorer (line 1)
                  kv = kv-cache-utilization-scorer (line 1)
                  single-profile-handler (default)
                  max-score-picker maxNumOfEndpoints=1 (default)
";
    assert!(out.starts_with(expected), "{out}");
    assert!(out.contains("\nnotes             not in this version, of the default parsers:"), "{out}");
    let note = "dataLayer.discovery: none: give usher serve --endpoints-file";
    assert!(out.contains(note), "{out}");
    let (_, out, _) = check("-", text, Output::Json);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["pipeline"]["discovery"], Value::Null);
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|text| text.as_str().unwrap().starts_with(note)), "{out}");
}

#[test]
fn json_says_the_same() {
    let (code, out, _) = check("deploy/config/default.yaml", "", Output::Json);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["valid"]), (0, &Value::Bool(true)));
    let pipeline = &report["pipeline"];
    assert_eq!(pipeline["profiles"][0]["scorers"][1]["plugin"], "kv-cache-utilization-scorer");
    assert_eq!(pipeline["profiles"][0]["scorers"][1]["weight"], 2.0);
    assert_eq!(pipeline["profiles"][0]["picker"]["defaulted"], false);
    assert_eq!(pipeline["discovery"]["plugin"], "file-discovery");
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().all(|note| !note.as_str().unwrap().contains("dataLayer.discovery")), "{notes:?}");
    assert_eq!(pipeline["featureGates"]["flowControl"], false);
    let plugins = pipeline["plugins"].as_array().unwrap();
    let of = |name: &str| plugins.iter().find(|plugin| plugin["name"] == name).unwrap();
    assert_eq!(of("file-discovery")["parameters"]["path"], "endpoints.yaml");
    assert_eq!(of("queue-scorer")["origin"]["declared"]["column"], 5);
    assert_eq!(of("utilization-detector")["origin"], "defaulted");
    assert_eq!(of("utilization-detector")["kinds"][0], "saturation-detector");
}

#[test]
fn an_error_is_one_line_with_its_place() {
    let text = "plugins:\n- type: max-score-picker\n  parameters:\n    maxNumOfEndpoint: 2\n";
    for output in [Output::Text, Output::Json] {
        let (code, out, err) = check("-", text, output);
        assert_eq!((code, out.as_str()), (2, ""));
        let expected = "<stdin>:4:5: plugin 'max-score-picker': unknown field 'maxNumOfEndpoint' (did you mean `maxNumOfEndpoints`?)\n";
        assert_eq!(err, expected);
    }
}

#[test]
fn what_cannot_be_read_is_said_so() {
    let (code, _, err) = check("does/not/exist.yaml", "", Output::Text);
    assert_eq!(code, 2);
    assert!(err.starts_with("does/not/exist.yaml: the configuration can't be read: "), "{err}");
    assert!(err.ends_with("(check the path, a relative one counts from the working directory)\n"), "{err}");
    let (code, _, err) = check("tests", "", Output::Text);
    assert_eq!(code, 2);
    assert!(err.ends_with("(give the path of a file)\n"), "{err}");
    let (code, _, err) = check("-", &"#".repeat((1 << 20) + 5), Output::Text);
    assert_eq!((code, err.as_str()), (2, "<stdin>: the document is too long (the limit is 1048576 bytes)\n"));
    let (code, _, err) = check("-", "", Output::Text);
    assert_eq!((code, err.as_str()), (2, "<stdin>: the document is empty\n"));
}
