//! The log of decisions.

use serde_json::Value;

use crate::doctor::program::{Said, doctor};
use crate::support::servers::Servers;
use crate::support::usher::Usher;

/// Lets a picker decide once, and returns what it logs with this message.
async fn logged(usher: &Usher, message: &str) -> (Value, Said) {
    let start = usher.log().end();
    let said = doctor(&["--picker", &usher.address.to_string()]).await;
    let line = usher
        .log()
        .find(start, message, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == message).then_some(line)
        })
        .await;
    (line, said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_is_one_line_of_level_debug() {
    let servers = Servers::start().await;
    let usher = Usher::start(&servers.addresses, &["--v=3", "--secure-serving=false"]).await;
    let (line, said) = logged(&usher, "request routed").await;
    let text = |name: &str| line[name].as_str().unwrap_or_else(|| panic!("no {name}: {line}"));
    assert_eq!((text("level"), text("model"), text("profiles")), ("DEBUG", "usher-doctor", "default"));
    // As the gateway's access log has it, and as the gateway got it.
    assert_eq!(text("request_id").len(), 36, "{line}");
    assert!(said.stdout.contains(&format!("chooses {}", text("destination"))), "{line}: {said:?}");
    assert_eq!(line["candidates"], servers.addresses.len(), "{line}");
    let best: Vec<(&str, &str)> = text("best").split(',').filter_map(|each| each.split_once('=')).collect();
    assert_eq!(best.len(), servers.addresses.len().min(3), "{line}");
    assert!(best.iter().all(|(address, total)| {
        servers.addresses.iter().any(|server| server.to_string() == *address) && total.parse::<f64>().is_ok()
    }));
    // The prompt of that request is "ping".
    assert!(!line.to_string().contains("ping"), "{line}");
    let lines = usher.log().count(text("request_id"));
    assert_eq!(lines, 1, "one event per decision");

    let usher = Usher::start(&[], &["--v=3", "--secure-serving=false"]).await;
    let (line, _) = logged(&usher, "request refused").await;
    assert_eq!((&line["status"], &line["model"]), (&503.into(), &"usher-doctor".into()), "{line}");
    assert_eq!(line["reason"], "rejected-no-endpoints", "{line}");
    assert!(line["request_id"].as_str().is_some_and(|id| id.len() == 36), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_not_logged_at_level_info() {
    let servers = Servers::start().await;
    let mut usher = Usher::start(&servers.addresses, &["--secure-serving=false", "--drain-timeout=0s"]).await;
    let said = doctor(&["--picker", &usher.address.to_string()]).await;
    assert!(said.stdout.contains("chooses "), "{said:?}");
    usher.terminate().await;
    assert!(!usher.log().mentions("request routed"));
}
