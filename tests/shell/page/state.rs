//! The state of the pool on the page: live, with what is wrong on top, and what is off in words.

use std::path::Path;

use tokio::io::AsyncReadExt;
use usher::sim::{Fault, MetricsFault};

use super::Stack;
use super::serving::{LISTENERS, begin, read_events};
use crate::store::Redis;
use crate::support::servers::SERVERS;
use crate::support::usher::Usher;

const PROBLEMS: &str = "document.querySelector('#problems').innerText";

/// Flow control, learned speeds.
pub(super) const ALL: &str = "--config-text={featureGates: [flowControl], plugins: [{type: approx-prefix-cache-producer}, {type: expected-latency-scorer}, {type: concurrency-detector, parameters: {maxConcurrency: 6}}], schedulingProfiles: [{name: default, plugins: [{pluginRef: expected-latency-scorer}]}], flowControl: {saturationDetector: {pluginRef: concurrency-detector}, maxRequests: 400}}";

const POLICY: &str = "
apiVersion: usher.dev/v1alpha1
kind: CapacityPolicy
metadata: {name: by-queue}
spec:
  interval: 1s
  roles: {decode: {min: 1, max: 8}}
  total: {metrics: [{name: running, target: 4}]}
";

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_follows_the_pool_and_names_disabled_features() {
    let Some(stack) = Stack::start(&["--decision-records=0"]).await else { return };
    let browser = &stack.browser;
    browser.until(&format!("{PROBLEMS}.includes('Nothing is wrong')")).await;
    for (panel, says) in [
        ("queue", "Flow control is off"),
        ("capacity", "There is no capacity policy"),
        ("speed", "No plugin learns speeds"),
        ("decisions", "Decisions are not recorded"),
        ("picker", "built-in, number 1, current"),
    ] {
        browser.until(&format!("document.querySelector('#{panel}').innerText.includes('{says}')")).await;
    }
    browser.until("document.querySelector('#events-section').hidden").await;
    browser.until("document.querySelector('#replicas-section').hidden").await;
    // Requests in the window, their times and their hits.
    for number in 0..5 {
        stack.exchange(&format!("r-{number}"), "m").await;
    }
    let tile = |name: &str| format!("document.querySelector('[data-tile={name}]').innerText");
    browser.until(&format!("parseFloat({}) > 0", tile("requests"))).await;
    browser.until(&format!("{}.startsWith('50 %')", tile("hits"))).await;
    browser.until(&format!("/^[0-9.]+ (ms|s)/.test({})", tile("first"))).await;
    // Requests under way become fewer while others come.
    let rate = "import('/ui/rates.js').then(({Rates}) => { const rates = new Rates(); \
        rates.add({now_ms: 1000, traffic: {routed: 1, running: 5}}); \
        rates.add({now_ms: 2000, traffic: {routed: 3, running: 2}}); return rates.perSecond('routed'); })";
    assert_eq!(browser.value(rate).await, 2);
    // Endpoints come and go.
    browser.until("document.querySelector('#endpoints-count').innerText === '4'").await;
    stack.usher.set_endpoints(&[]).await;
    browser.until(&format!("{PROBLEMS}.includes('No endpoints')")).await;
    browser
        .until("document.querySelector('#endpoints-empty').innerText === 'The pool has no endpoints.'")
        .await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_plans_speeds_and_problems_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let policy = format!("--capacity-policy={}", policy.display());
    let Some(stack) = Stack::start(&[ALL, &policy]).await else { return };
    stack.exchange("r-1", "m").await;
    let browser = &stack.browser;
    for (panel, says) in [
        ("queue", "The pool is 0 % full"),
        ("capacity", "by-queue"),
        ("capacity", "decode"),
        ("speed", "all endpoints"),
    ] {
        browser.until(&format!("document.querySelector('#{panel}').innerText.includes('{says}')")).await;
    }
    // Nothing is learned from a request that was decided before its endpoint was read.
    let mut number = 1;
    while browser.value("document.querySelector('#rows').innerText.includes('tok/s')").await != true {
        number += 1;
        assert!(number < 1000, "no speed is shown after {number} requests");
        stack.exchange(&format!("r-{number}"), "m").await;
    }
    // A port that nobody has any more may become somebody else's, so they go on to listen.
    for server in 0..SERVERS {
        let fault = Fault { metrics: Some(MetricsFault::Error), ..Fault::default() };
        stack.servers.set_fault(server, &fault).await;
    }
    browser.until(&format!("{PROBLEMS}.includes('All endpoints ejected')")).await;
    browser.until(&format!("{PROBLEMS}.includes(\"can't be scraped\")")).await;
    browser.until("document.querySelector('#rows').innerText.includes('ejected')").await;
    assert_eq!(browser.errors(true), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_what_they_publish_are_shown() {
    let Some(mut redis) = Redis::start(&[]).await else { return };
    let (store, named) = (redis.flag(), "--pool-name=shared");
    let Some(stack) = Stack::start(&[named, &store, ALL]).await else { return };
    let other = Usher::start(&stack.servers.addresses, &[named, &store, ALL]).await;
    let says = |text: &str| format!("document.querySelector('#replicas').innerText.includes('{text}')");
    stack.exchange("r-1", "m").await;
    let browser = &stack.browser;
    for text in ["The state store is connected. Sent ", "The stream of prefixes has ", "now"] {
        browser.until(&says(text)).await;
    }
    drop(other);
    browser.until(&says(" s ago")).await;
    redis.kill();
    browser.until(&says("The state store is away; prefixes are not shared")).await;
    browser.until(&says("; learned state is not handed on")).await;
    assert_eq!(browser.errors(true), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_reload_is_shown_on_top_until_repaired() {
    const GOOD: &str = "plugins: [{type: queue-scorer}]\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("epp.yaml");
    std::fs::write(&file, GOOD).unwrap();
    let Some(stack) = Stack::start(&[&format!("--config-file={}", file.display())]).await else { return };
    let browser = &stack.browser;
    browser.until(&format!("{PROBLEMS}.includes('Nothing is wrong')")).await;
    replace(&file, "plugins: [{type: <b>no-such-scorer</b>}]\n");
    browser.until(&format!("{PROBLEMS}.includes('Reload failed')")).await;
    let shown = browser.value(PROBLEMS).await;
    assert!(shown.as_str().unwrap().contains("<b>no-such-scorer</b>"), "{shown}");
    replace(&file, GOOD);
    browser.until(&format!("{PROBLEMS}.includes('Nothing is wrong')")).await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_survives_a_server_outage() {
    let Some(mut stack) = Stack::start(&[]).await else { return };
    stack.exchange("before", "m").await;
    stack.browser.until("document.querySelector('#list-rows').innerText.includes('before')").await;
    stack.usher.kill().await;
    let connection = "document.querySelector('#connection').innerText";
    stack.browser.until(&format!("/disconnected, last update \\d+ s ago/.test({connection})")).await;
    stack.usher = stack.usher.restart().await;
    stack.is_live().await;
    stack.exchange("after", "m").await;
    let list = "document.querySelector('#list-rows').innerText";
    stack.browser.until(&format!("{list}.includes('after') && !{list}.includes('before')")).await;
    assert_eq!(stack.browser.errors(false), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_event_stream_is_reported_and_retried() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    // A tab that isn't visible listens no more.
    let becomes = async |state: &str| {
        let defined = format!(
            "Object.defineProperty(document, 'visibilityState', {{value: '{state}', configurable: true}})"
        );
        browser.value(&format!("{defined}; document.dispatchEvent(new Event('visibilitychange'))")).await;
    };
    becomes("hidden").await;
    browser.until("document.querySelector('#connection').innerText.includes('paused')").await;
    let mut others = Vec::new();
    while others.len() < LISTENERS {
        let mut stream = begin(stack.admin, "GET", "/events", "text/event-stream").await;
        // Until the server has seen that the page is gone there is a place less.
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        if &head == b"HTTP/1.1 200" {
            read_events(&mut stream, 1).await;
            others.push(stream);
        }
    }
    browser.open(&format!("http://{}/", stack.admin)).await;
    browser
        .until("document.querySelector('#connection')?.innerText.includes('the server refuses the stream')")
        .await;
    drop(others);
    stack.is_live().await;
    assert_eq!(browser.errors(false), Vec::<String>::new());
}
