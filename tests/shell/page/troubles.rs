//! Problems and numbers on the page where only some endpoints have them.

use usher::sim::{Fault, MetricsFault};

use super::{Stack, request, respond_with};
use crate::wire::{self, Connection};

const PROBLEMS: &str = "document.querySelector('#problems').innerText";

fn tile(name: &str) -> String {
    format!("document.querySelector('[data-tile={name}]').innerText")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_a_working_endpoint_is_named() {
    let roles = ["prefill", "decode", "decode", "decode"];
    let Some(stack) = Stack::start_with_roles(&roles, &[]).await else { return };
    let browser = &stack.browser;
    browser.until(&format!("{PROBLEMS}.includes('Nothing is wrong')")).await;
    let fault = Fault { metrics: Some(MetricsFault::Error), ..Fault::default() };
    stack.servers.set_fault(0, &fault).await;
    browser.until(&format!("{PROBLEMS}.includes('All prefill endpoints ejected')")).await;
    let worst = "document.querySelector('#problems li.bad').innerText";
    browser.until(&format!("{worst}.includes('prefill')")).await;
    stack.servers.set_fault(1, &fault).await;
    browser.until(&format!("{PROBLEMS}.includes('1 decode endpoint ejected')")).await;
    stack.servers.set_fault(2, &fault).await;
    browser
        .until(&format!("/2 decode endpoints ejected\\s*of 3: that is more than half/.test({PROBLEMS})"))
        .await;
    assert_eq!(browser.errors(true), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_without_reported_cached_tokens_do_not_count() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    let connection = Connection::to(stack.usher.address).await;
    let silent = r#"{"prompt_tokens":800,"completion_tokens":3}"#;
    respond_with(request(&connection, "s-0", "m").await, silent).await;
    browser.until(&format!("{}.includes('no server has named any')", tile("hits"))).await;
    for number in 1..4 {
        respond_with(request(&connection, &format!("s-{number}"), "m").await, silent).await;
        stack.exchange(&format!("r-{number}"), "m").await;
    }
    browser.until(&format!("{}.startsWith('50 %')", tile("hits"))).await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_first_token_times_have_a_reason() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    browser.until(&format!("{}.includes('no response ended')", tile("whole"))).await;
    let connection = Connection::to(stack.usher.address).await;
    for number in 0..3 {
        let mut stream = connection.stream().await;
        let id = format!("r-{number}");
        stream.send(wire::headers(&[(":path", "/v1/completions"), ("x-request-id", &id)], false));
        stream.send(wire::body(r#"{"model":"m","prompt":"x"}"#, true));
        stream.request_headers().await;
        stream.request_body().await;
        let headers = [(":status", "200"), ("content-type", "application/json")];
        stream.send(wire::response_headers(&headers, false));
        stream.response_headers().await;
        let usage = r#"{"choices":[{"text":"x"}],"usage":{"prompt_tokens":8,"completion_tokens":3}}"#;
        stream.send(wire::response_body(usage, true));
        stream.response_body().await;
    }
    // At once, as rates are of some seconds.
    let whole = format!("/^[0-9.]+ (µs|ms|s)/.test({})", tile("whole"));
    let [first, token] =
        ["first", "token"].map(|name| format!("{}.includes('no response was streamed')", tile(name)));
    browser.until(&format!("{whole} && {first} && {token}")).await;
    stack.assert_quiet();
}
