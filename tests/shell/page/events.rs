//! KV events on the page.

use http::Request;
use serde_json::{Value, json};

use super::barriers::violations;
use super::browser::axe;
use super::{Stack, request_of, respond};
use crate::publishing::start_publishing;
use crate::support::client::{self, Protocol};
use crate::support::servers::{SERVERS, Servers};
use crate::support::{eventually, listener};
use crate::wire::Connection;

const EVENTS: &str = "document.querySelector('#events').innerText";
const PROBLEMS: &str = "document.querySelector('#problems').innerText";

/// Model of simulated servers.
const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// A prompt of two blocks, the first of its token ids.
fn prompt(first: u32, tokens: u32) -> Value {
    let ids: Vec<u32> = (first..first + 32).collect();
    json!({"model": MODEL, "prompt": ids, "max_tokens": tokens, "stream": false})
}

/// Asks a server directly.
async fn ask(servers: &Servers, index: usize, body: &Value) {
    let request = Request::post("/v1/completions").body(client::full(body.to_string())).unwrap();
    assert_eq!(client::send(servers.addresses[index], Protocol::Http1, request).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_caches_and_silent_engines_are_shown() {
    let events = listener().local_addr().unwrap();
    let config = format!(
        "--config-text=plugins: [{{type: precise-prefix-cache-producer, parameters: {{kvEventsConfig: {{zmqEndpoint: 'tcp://{events}'}}}}}}, {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}]"
    );
    let to = events.to_string();
    let servers = async || start_publishing(&to).await;
    let Some(stack) = Stack::start_over(servers, &[], &[&config]).await else { return };
    let (browser, servers) = (&stack.browser, &stack.servers);
    browser.until(&format!("{EVENTS}.includes('4 endpoints: 0 in sync, 0 partial, 4 not heard')")).await;
    eventually("a subscriber", async || {
        (servers.state(0).await["kv_events"]["subscribers"] == 1).then_some(())
    })
    .await;
    ask(servers, 0, &prompt(0, 1)).await;
    browser.until(&format!("{EVENTS}.includes('1 in sync, 0 partial, 3 not heard')")).await;

    // Predictions and usage of the last seconds.
    let connection = Connection::to(stack.usher.address).await;
    let counted = format!("/ [1-9][0-9,]* predicted to be cached, [1-9][0-9,]* were/.test({EVENTS})");
    let mut number = 0;
    while browser.value(&counted).await != true {
        number += 1;
        assert!(number < 1000, "nothing is predicted after {number} requests");
        respond(request_of(&connection, &format!("r-{number}"), &prompt(0, 1)).await).await;
    }
    browser.value("location.hash = '#request=r-1'").await;
    let explained = "document.querySelector('#explained').innerText";
    browser
        .until(&format!(
            "{explained}.includes('in sync, with 32 tokens of the prompt; 28 fewer were cached')"
        ))
        .await;
    assert_eq!(browser.value(&format!("{explained}.includes('32, in sync')")).await, true);
    browser.press("Escape").await;
    browser.until("!document.querySelector('#explanation').open").await;

    // Missed messages.
    let fault = json!({"kv-events": "drop"}).to_string();
    let request = Request::post("/admin/fault").body(client::full(fault)).unwrap();
    assert_eq!(client::send(servers.addresses[0], Protocol::Http1, request).await.status, 200);
    for first in 1..5 {
        ask(servers, 0, &prompt(first * 100, 1)).await;
    }
    let row = |text: &str| format!("/server-{}\\s+{text}/.test({EVENTS})", servers.addresses[0].port());
    browser.until(&row("partial\\s+[1-9][0-9]*\\s+0\\s+[0-9]+ s ago")).await;
    browser.value("document.querySelector('#rows [role=row]').click()").await;
    browser.until("document.querySelector('#endpoint-chosen-text').innerText.includes('KV events ')").await;

    // A server that doesn't publish has work to do.
    browser.until(&format!("{PROBLEMS}.includes('Nothing is wrong')")).await;
    let long = prompt(0, 100_000);
    let silent = format!("/1 endpoint not heard\\s*of 4/.test({PROBLEMS})");
    tokio::select! {
        () = ask(servers, SERVERS - 1, &long) => panic!("it should take longer"),
        () = browser.until(&silent) => {}
    }
    if let Some(axe) = axe() {
        browser.value(&axe).await;
        assert_eq!(violations(&stack).await, Vec::<String>::new());
    }
    stack.assert_quiet();
}
