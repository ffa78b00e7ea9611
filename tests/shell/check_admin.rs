//! `usher check --admin`: a configuration's constants beside the speeds that a running picker has learned.

use serde_json::{Value, json};
use usher::cli::check::{CheckArgs, Output};
use usher::settings::MemoryBudget;

use crate::check::{check_with, only};

/// A picker's admin port that answers one request with this page.
fn admin(page: &str) -> (std::thread::JoinHandle<String>, String) {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
        page.len()
    );
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        stream.write_all(response.as_bytes()).unwrap();
        line
    });
    (thread, url)
}

const LEARNS: &str = "
plugins:
- {type: expected-latency-scorer, parameters: {peakPrefillThroughput: 5000}}
schedulingProfiles:
- {name: main, plugins: [{pluginRef: expected-latency-scorer}]}
";

/// A configuration with links beside the admin port of a running picker.
const PAIRS: &str = "
plugins:
- {type: disagg-profile-handler, parameters: {pairing: joint, kvBytesPerToken: 100000, deciders: {prefill: always-disagg-pd-decider}}}
- {type: always-disagg-pd-decider}
- {type: expected-latency-scorer}
- {type: max-score-picker}
- {type: prefill-filter}
- {type: decode-filter}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: expected-latency-scorer}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: expected-latency-scorer}, {pluginRef: max-score-picker}]}
";

/// The first configuration with the admin port of a running picker.
fn check_at(admin: &str) -> (u8, Value, String) {
    check_of(admin, LEARNS)
}

fn check_of(admin: &str, config: &str) -> (u8, Value, String) {
    let args = CheckArgs {
        files: vec!["-".into()],
        output: Output::Json,
        allow_experimental_plugins: false,
        compare: None,
        endpoints_file: None,
        admin: Some(admin.to_owned()),
        memory_budget: MemoryBudget::Off,
    };
    let (code, out, err) = check_with(&args, config);
    (code, only(&out), err)
}

#[test]
fn constants_far_from_learned_speeds_are_warned_of() {
    let group = |accelerator: &str, throughput: f64| {
        json!({
            "accelerator": accelerator, "role": "", "samples": 300, "prefill_throughput": throughput,
            "throughput_ratio": 1.0, "first_token_s": 0.0, "first_token_per_request_s": 0.0,
            "output_token_s": 0.0, "output_token_per_request_s": 0.0, "output_token_per_cached_token_s": 0.0,
        })
    };
    let page =
        json!({"peak_prefill_throughput": 1.0, "groups": [group("H100", 15_000.0), group("L4", 4000.0)]});
    let (thread, url) = admin(&page.to_string());
    let (code, report, err) = check_at(&url);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(thread.join().unwrap().starts_with("GET /latency "));
    let warnings = report["warnings"].as_array().unwrap();
    let [only] = &warnings[..] else { panic!("{warnings:?}") };
    let text = only.as_str().unwrap();
    assert!(text.starts_with("peakPrefillThroughput is 5000, and endpoints of H100 compute 15000"), "{text}");
}

#[test]
fn links_far_from_learned_speeds_are_warned_of() {
    let link = |endpoint: &str, factor: f64| json!({"endpoint": endpoint, "samples": 80, "factor": factor});
    let page = json!({"groups": [], "links": [link("default/a", 8.0), link("default/b", 1.2)]}).to_string();
    let warnings = |config| {
        let (thread, url) = admin(&page);
        let (code, report, err) = check_of(&url, config);
        thread.join().unwrap();
        assert_eq!((code, err.as_str()), (0, ""), "{report}");
        let warnings = report["warnings"].as_array().unwrap().clone();
        warnings.into_iter().filter(|text| text.as_str().unwrap().contains("kvBytesPerToken")).collect()
    };
    let found: Vec<Value> = warnings(PAIRS);
    let [only] = &found[..] else { panic!("{found:?}") };
    let text = only.as_str().unwrap();
    assert!(
        text.starts_with("KV cache transfers to 1 of 2 endpoints") && text.contains("default/a 8.00"),
        "{text}"
    );
    assert_eq!(warnings(LEARNS), Vec::<Value>::new(), "no transfers are configured");
}

#[test]
fn picker_without_learned_speeds_is_noted() {
    let (thread, url) = admin(&json!({"peak_prefill_throughput": 5000.0, "groups": []}).to_string());
    let (code, report, err) = check_at(&url);
    thread.join().unwrap();
    assert_eq!((code, err.as_str(), &report["warnings"]), (0, "", &json!([])));
    let notes = report["notes"].as_array().unwrap();
    let note = notes.iter().filter_map(Value::as_str).find(|note| note.contains("first tokens so far"));
    assert!(note.is_some_and(|note| note.starts_with("nothing was learned yet")), "{notes:?}");
}

#[test]
fn picker_without_a_model_differs_from_an_unreachable_one() {
    let (thread, url) = admin("null");
    let (code, report, _) = check_at(&url);
    thread.join().unwrap();
    assert_eq!((code, &report["warnings"]), (0, &json!([])));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (code, report, err) = check_at(&closed);
    assert_eq!((code, err.as_str()), (1, ""), "{report}");
    let message = report["errors"][0]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("--admin: http://{closed}/latency: ")), "{report}");
    assert_eq!(report["valid"], true, "of the file: {report}");
}
