//! Endpoints that fail, as a gateway reports them.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use usher::sim::{SimConfig, start};

use crate::support::*;

const FOUR: [(&str, &str, u16); 4] =
    [("a", "127.0.0.1", 1), ("b", "127.0.0.2", 1), ("c", "127.0.0.3", 1), ("d", "127.0.0.4", 1)];

/// Destination of requests for which `a` is picked.
const A: &str = "127.0.0.1:1";

/// All endpoints get requests. No server listens at them, so requests alone are to count.
const REQUESTS_ONLY: &[&str] = &["--outlier-detection", "--outlier-consecutive-failed-scrapes=0", RANDOM];
const RANDOM: &str = "--config-text=\
plugins: [{type: random-picker}]\n\
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]";
/// No test takes so long.
const NO_PROBES: &[&str] = &["--outlier-probe-interval=10h", "--outlier-max-probe-interval=10h"];
/// Every request may be a probe.
const MANY_PROBES: &[&str] = &["--outlier-probe-interval=0s", "--outlier-max-probe-interval=0s"];

/// Bound on waiting for what must happen, so that a failure is not a hang.
const DEADLINE: Duration = Duration::from_secs(60);

/// Health of an endpoint, as the admin page has it.
fn health(picker: &Picker, name: &str) -> Value {
    row(picker, name)["health"].take()
}

fn row(picker: &Picker, name: &str) -> Value {
    let page = Picker::get(picker.admin, "/endpoints");
    let mut page: Value = serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let rows = page["endpoints"].as_array_mut().unwrap();
    let row = rows.iter_mut().find(|row| row["id"] == format!("default/{name}")).unwrap();
    row.take()
}

fn is_ejected(picker: &Picker, name: &str) -> bool {
    health(picker, name)["ejected"] == true
}

/// Sends a request that is answered with these headers, which may depend on who was
/// picked. Returns that.
async fn ask<'a>(
    connection: &Connection,
    served: Option<&str>,
    response: impl FnOnce(&str) -> Vec<(&'a str, &'a str)>,
) -> String {
    let mut stream = connection.stream().await;
    stream.send(headers(&[(":method", "POST"), (":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    let destination = stream.request_headers().await.destination().to_owned();
    stream.request_body().await;
    let head = response_headers(&response(&destination), true);
    stream.send(match served {
        Some(served) => {
            with_metadata(head, "envoy.lb", "x-gateway-destination-endpoint-served", string(served))
        }
        None => head,
    });
    stream.response_headers().await;
    stream.half_close();
    destination
}

/// The status if `a` was picked first, and otherwise 200.
async fn ask_with(connection: &Connection, of_a: &'static str) -> String {
    ask(connection, None, |to| vec![(":status", if to.starts_with(A) { of_a } else { "200" })]).await
}

/// Asks until `done`.
async fn until(what: &str, mut step: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !step().await {
        assert!(begin.elapsed() < DEADLINE, "waited for {what}");
    }
}

#[tokio::test]
async fn status_503_ejects_an_endpoint_from_all_requests() {
    let picker = Picker::start(&FOUR, &[REQUESTS_ONLY, NO_PROBES].concat()).await;
    let connection = picker.connect().await;
    let mut failed = 0;
    until("an ejection", async || {
        failed += usize::from(ask_with(&connection, "503").await == A);
        is_ejected(&picker, "a")
    })
    .await;
    assert_eq!(failed, 3);
    for _ in 0..200 {
        assert_ne!(ask_with(&connection, "503").await, A);
    }
    let of_a = health(&picker, "a");
    assert_eq!((&of_a["reason"], &of_a["successes_in_a_row"]), (&json!("status 503"), &json!(0)), "{of_a}");
    assert_eq!((&of_a["probing"], &of_a["failures_in_a_row"]), (&json!(false), &json!(0)), "{of_a}");
    assert_eq!(health(&picker, "b"), json!({"ejected": false, "failures_in_a_row": 0}));
    assert_eq!(picker.metric("usher_endpoint_ejections_total{reason=\"status\"}"), Some(1.0));
    for name in ["ejected", "demoted"] {
        assert_eq!(picker.metric(&format!("usher_endpoints_{name}{{name=\"epp\"}}")), Some(1.0), "{name}");
    }
    assert_eq!(picker.metric("usher_endpoint_probes_total"), Some(0.0));
}

#[tokio::test]
async fn working_endpoint_recovers_after_some_probes() {
    let picker = Picker::start(&FOUR, &[REQUESTS_ONLY, MANY_PROBES].concat()).await;
    let connection = picker.connect().await;
    until("an ejection", async || {
        ask_with(&connection, "500").await;
        is_ejected(&picker, "a")
    })
    .await;
    until("a recovery", async || {
        ask_with(&connection, "200").await;
        !is_ejected(&picker, "a")
    })
    .await;
    until("its share", async || ask_with(&connection, "200").await == A).await;
    assert_eq!(picker.metric("usher_endpoint_recoveries_total"), Some(1.0));
    assert_eq!(picker.metric("usher_endpoints_ejected{name=\"epp\"}"), Some(0.0));
    assert!(picker.metric("usher_endpoint_probes_total").unwrap() >= 4.0);
}

#[tokio::test]
async fn statuses_unrelated_to_health_eject_no_endpoint() {
    let picker = Picker::start(&FOUR, &[REQUESTS_ONLY, NO_PROBES].concat()).await;
    let connection = picker.connect().await;
    let heads: [&[(&str, &str)]; 5] = [
        &[(":status", "404")],
        &[(":status", "429")],
        &[(":status", "501")],
        &[(":status", "503"), ("x-envoy-overloaded", "true")],
        &[(":status", "200"), ("grpc-status", "3")],
    ];
    for head in heads {
        for _ in 0..40 {
            ask(&connection, None, |_| head.to_vec()).await;
        }
    }
    // A client that goes away before the response says nothing either.
    for _ in 0..40 {
        let mut stream = connection.stream().await;
        stream.send(headers(&[(":path", "/v1/completions")], false));
        stream.send(body(PROMPT, true));
        stream.request_headers().await;
        stream.disconnect();
    }
    for (name, ..) in FOUR {
        assert_eq!(health(&picker, name), json!({"ejected": false, "failures_in_a_row": 0}), "{name}");
    }
}

#[tokio::test]
async fn grpc_call_without_a_message_is_a_failure() {
    let picker = Picker::start(&FOUR, &[REQUESTS_ONLY, NO_PROBES].concat()).await;
    let connection = picker.connect().await;
    until("an ejection", async || {
        ask(&connection, None, |to| {
            vec![(":status", "200"), ("grpc-status", if to == A { "14" } else { "0" })]
        })
        .await;
        is_ejected(&picker, "a")
    })
    .await;
}

#[tokio::test]
async fn response_by_a_fallback_counts_against_the_first_pick() {
    let config = "--config-text=\
plugins: [{type: queue-scorer}, {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}]\n\
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]";
    let flags = [REQUESTS_ONLY, NO_PROBES, &[config]].concat();
    let picker = Picker::start(&FOUR[..2], &flags).await;
    let connection = picker.connect().await;
    let mut first = 0;
    until("an ejection", async || {
        let to = ask(&connection, Some("127.0.0.2:1"), |_| vec![(":status", "200")]).await;
        first += usize::from(to.starts_with(A));
        is_ejected(&picker, "a")
    })
    .await;
    assert_eq!((first, &health(&picker, "a")["reason"]), (3, &json!("another endpoint served")));
    assert!(!is_ejected(&picker, "b"));
    for _ in 0..50 {
        let to = ask(&connection, Some("127.0.0.2:1"), |_| vec![(":status", "200")]).await;
        assert_eq!(to, "127.0.0.2:1");
    }
    assert_eq!(picker.metric("usher_endpoint_ejections_total{reason=\"elsewhere\"}"), Some(1.0));
}

#[tokio::test]
async fn every_endpoint_is_tried_when_most_are_ejected() {
    let picker = Picker::start(&FOUR, &[REQUESTS_ONLY, NO_PROBES].concat()).await;
    let connection = picker.connect().await;
    // The gateway can't reach anybody.
    until("three ejections", async || {
        ask(&connection, None, |_| vec![(":status", "503")]).await;
        FOUR.iter().filter(|(name, ..)| is_ejected(&picker, name)).count() >= 3
    })
    .await;
    for (name, address, port) in FOUR {
        let address = format!("{address}:{port}");
        until(name, async || ask(&connection, None, |_| vec![(":status", "503")]).await == address).await;
    }
    // The fourth may have been asked before it was ejected.
    assert!(picker.metric("usher_ejections_overruled_total").unwrap() >= 3.0);
}

#[tokio::test]
async fn without_the_flag_nothing_is_ejected() {
    let picker = Picker::start(&FOUR, &["--outlier-detection=false"]).await;
    let connection = picker.connect().await;
    for _ in 0..100 {
        ask(&connection, None, |_| vec![(":status", "503")]).await;
    }
    for (name, ..) in FOUR {
        assert_eq!(health(&picker, name), json!({"ejected": false, "failures_in_a_row": 0}), "{name}");
    }
    assert_eq!(picker.metric("usher_endpoint_probes_total"), None);
}

/// A server that can't be scraped is ejected without any request, and is back when its
/// pages are.
#[tokio::test]
async fn failed_scrapes_eject_and_pages_bring_back() {
    let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let mut listeners = listeners.into_iter();
    let one = listeners.next().unwrap();
    let server = start(SimConfig::default(), vec![one]).await.unwrap();
    let others = start(SimConfig::default(), listeners.collect()).await.unwrap();
    let endpoints: Vec<_> =
        ["a", "b", "c"].into_iter().zip(&ports).map(|(name, port)| (name, "127.0.0.1", *port)).collect();
    let picker = Picker::start(&endpoints, &["--outlier-detection"]).await;
    assert!(!is_ejected(&picker, "a"));
    // Of one that never showed a page a scrape that fails says nothing.
    until("a page of its metrics", async || {
        tokio::task::yield_now().await;
        row(&picker, "a")["waiting"]["value"].is_number()
    })
    .await;
    server.shutdown().await;
    until("an ejection", async || {
        tokio::task::yield_now().await;
        is_ejected(&picker, "a")
    })
    .await;
    assert_eq!(health(&picker, "a")["reason"], "can't be scraped");
    assert!(!is_ejected(&picker, "b") && !is_ejected(&picker, "c"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0])).unwrap();
    let server = start(SimConfig::default(), vec![listener]).await.unwrap();
    until("a recovery", async || {
        tokio::task::yield_now().await;
        !is_ejected(&picker, "a")
    })
    .await;
    assert_eq!(picker.metric("usher_endpoint_ejections_total{reason=\"scrapes\"}"), Some(1.0));
    server.shutdown().await;
    others.shutdown().await;
}
