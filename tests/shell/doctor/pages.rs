//! Model servers whose metrics are not as they should be, and pickers without TLS.

use serde_json::json;

use crate::doctor::program::{doctor, examined};
use crate::doctor::stack::{Back, ORIGINAL_DST, url};
use crate::store::Redis;
use crate::support::servers::Servers;
use crate::support::{eventually, nobody};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_servers_are_compared_with_their_engine() {
    let servers = Servers::start().await;
    let address = servers.addresses[0];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("endpoints.json");
    let entry = |name: &str, to: std::net::SocketAddr, labels: serde_json::Value| json!({"name": name, "address": to.ip().to_string(), "port": to.port().to_string(), "labels": labels});
    let none = || json!({});
    // Endpoints, flags, what is found.
    let table = [
        (vec![entry("good", address, none())], &[][..], &[][..]),
        (
            vec![entry("good", address, none()), entry("gone", nobody(), none())],
            &[],
            &["pod-metrics-unreachable"],
        ),
        (vec![entry("a", address, json!({"llm-d.ai/engine-type": "sglang"}))], &[], &["pod-metrics-engine"]),
        (vec![entry("a", address, none())], &["--engine", "trtllm-serve"], &["pod-metrics-engine"]),
        (vec![entry("a", address, none())], &["--engine", "mine"], &["pod-metrics-names"]),
    ];
    for (entries, flags, expected) in table {
        std::fs::write(&file, json!({ "endpoints": entries }).to_string()).unwrap();
        let found = examined(&[&["--endpoints-file", file.to_str().unwrap()], flags].concat()).await;
        assert_eq!(
            (found.codes(), found.code),
            (expected.to_vec(), i32::from(!expected.is_empty())),
            "{entries:?}"
        );
        assert_eq!(found.status("path"), "skipped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_store_is_found_missing_with_its_reason() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong").unwrap();
    let (store, password) = (redis.flag(), format!("--state-store-password-file={}", file.display()));
    let nowhere = format!("--state-store=redis://{}", nobody());
    // Flags, status of the check, words of what and how.
    let table = [
        (&[][..], "skipped", "", ""),
        (&[nowhere.as_str()], "wrong", "connect", "Start the store"),
        (&[store.as_str()], "wrong", "password", "--state-store-password-file"),
        (&[store.as_str(), password.as_str()], "wrong", "password", "--state-store-password-file"),
    ];
    for (flags, status, what, fix) in table {
        let back = Back::start(flags).await;
        if !what.is_empty() {
            let labels = format!("{{reason=\"{what}\",state=\"load\"}}");
            let failed = format!("usher_state_store_last_failure_timestamp_seconds{labels}");
            eventually("a failure", async || back.metrics().await.contains(&failed).then_some(())).await;
        }
        let found = examined(&["--metrics", &back.metrics_url()]).await;
        assert_eq!(found.status("state-store"), status, "{flags:?}: {:#}", found.report);
        if status == "wrong" {
            assert_eq!(found.codes(), ["state-store-away"], "{flags:?}");
            let finding = found.finding("state-store-away");
            assert!(finding["what"].as_str().unwrap().ends_with(what), "{finding}");
            assert!(finding["fix"].as_str().unwrap().contains(fix), "{finding}");
        }
    }
    std::fs::write(&file, "secret").unwrap();
    let back = Back::start(&[&store, &password]).await;
    for part in ["state_store", "replicas_prefix", "replicas_learned"] {
        let connected = &format!("usher_{part}_connected 1");
        eventually("a connection", async || back.metrics().await.contains(connected).then_some(())).await;
    }
    let found = examined(&["--metrics", &back.metrics_url()]).await;
    assert_eq!((found.status("state-store"), found.code), ("ok", 0), "{:#}", found.report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn picker_without_tls_and_invalid_port_are_found() {
    let back = Back::start(&["--secure-serving=false"]).await;
    let plain = back.usher.address.to_string();
    let found = examined(&["--picker", &plain]).await;
    assert_eq!((found.code, found.codes()), (0, vec![]), "{:#}", found.report);
    assert!(found.detail("picker").contains("chooses 127.0.0.1:"), "{}", found.detail("picker"));
    assert!(found.detail("tls").contains("plain text"));
    // A gateway that speaks TLS to it.
    let envoy = back.envoy(ORIGINAL_DST, &[]).await;
    let found = back.examined(&envoy, &[]).await;
    found.finding("tls-mismatch");
    // A model server is no picker.
    let found = examined(&["--picker", &back.servers.addresses[0].to_string()]).await;
    assert_eq!((found.code, found.codes()), (1, vec!["picker-not-ext-proc"]), "{:#}", found.report);
    // A page without a picker's metrics.
    let found = examined(&["--metrics", &url(back.servers.addresses[0])]).await;
    assert_eq!((found.code, found.codes()), (1, vec!["picker-metrics-names"]), "{:#}", found.report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_shows_each_cause_with_its_consequences() {
    let picker = nobody().to_string();
    let said = doctor(&["--picker", &picker]).await;
    assert_eq!((said.code, said.stderr.as_str()), (1, ""));
    let lines: Vec<&str> = said.stdout.lines().collect();
    let at = |line: &str| lines.iter().position(|other| *other == line).unwrap_or_else(|| panic!("{said:?}"));
    let check = at(&format!("  x picker            {picker} (--picker)"));
    assert_eq!(lines[check + 1], "      and 1 check that needs it: tls");
    let finding = at("x picker-unreachable (picker)");
    for (line, title) in lines[finding + 1..].iter().zip(["    what  ", "    why   ", "    fix   "]) {
        assert!(line.starts_with(title), "{said:?}");
    }
    assert_eq!(lines.iter().filter(|line| line.contains("tls")).count(), 1, "{said:?}");
    let verdict = "x Something is wrong: fix picker-unreachable first (checks: 1 wrong, ";
    assert!(lines.last().unwrap().starts_with(verdict), "{said:?}");
    // No colours and no lines that end early where it is no terminal.
    assert!(said.stdout.is_ascii() && !said.stdout.contains('\u{1b}'), "{said:?}");
    assert!(lines.iter().any(|line| line.len() > 100), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_address_without_response_is_a_failure() {
    let down = url(nobody());
    for (flag, code) in [
        ("--gateway", "gateway-unreachable"),
        ("--envoy-admin", "envoy-admin-unreachable"),
        ("--metrics", "picker-metrics-unreachable"),
        ("--admin", "admin-unreachable"),
    ] {
        let found = examined(&[flag, &down]).await;
        assert_eq!((found.code, found.codes()), (1, vec![code]), "{:#}", found.report);
    }
}
