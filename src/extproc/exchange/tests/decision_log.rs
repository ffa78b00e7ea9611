//! Lines about requests whose clients chose names that look like parts of a line.

use std::fs::File;
use std::io::{Read, Seek};

use serde_json::Value;
use tracing::Level;

use super::*;

const ID: &str = "a\" model=other\u{202e}";
const MODEL: &str = "m\\\" destination=6.6.6.6:1\\n";

/// Log lines of a request with these names, as the console or as JSON, among so many endpoints.
fn logged(endpoints: u8, is_json: bool) -> String {
    let mut file: Arc<File> = Arc::new(tempfile::tempfile().unwrap());
    let log = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false);
    let send = || {
        let mut harness = Harness::new(endpoints);
        harness.send(headers(&[POST[0], ("x-request-id", ID)], false)).unwrap();
        harness.send(body(&format!("{{\"model\":\"{MODEL}\",\"prompt\":\"x\"}}"), true)).unwrap();
    };
    if is_json {
        let log = log.json().flatten_event(true).with_writer(Arc::clone(&file)).finish();
        tracing::subscriber::with_default(log, send);
    } else {
        tracing::subscriber::with_default(log.with_writer(Arc::clone(&file)).finish(), send);
    }
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let lines =
        text.lines().filter(|line| line.contains("request routed") || line.contains("request refused"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn client_names_are_quoted_on_the_console() {
    for endpoints in [1, 0] {
        let line = logged(endpoints, false);
        let names = r#"request_id="a\" model=other " model="m\" destination=6.6.6.6:1 ""#;
        assert!(line.contains(names), "{line}");
        assert!(endpoints == 0 || line.contains(" destination=10.0.0.1:8000 "), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[test]
fn client_names_are_plain_text_in_json() {
    for endpoints in [1, 0] {
        let line: Value = serde_json::from_str(&logged(endpoints, true)).unwrap();
        assert_eq!(line["request_id"], "a\" model=other ", "{line}");
        assert_eq!(line["model"], "m\" destination=6.6.6.6:1 ", "{line}");
    }
}
