//! Tabs of one browser: those that come back, and many at once. A browser keeps six connections to a server.

use super::Stack;
use super::serving::{LISTENERS, begin, read_events};

const LIVE: &str = "document.querySelector('#connection')?.dataset.state === 'live'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_tab_shows_updating_instead_of_disconnected() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    let becomes = async |state: &str| {
        let defined = format!(
            "Object.defineProperty(document, 'visibilityState', {{value: '{state}', configurable: true}})"
        );
        browser.value(&format!("{defined}; document.dispatchEvent(new Event('visibilitychange'))")).await;
    };
    becomes("hidden").await;
    browser.until("document.querySelector('#connection').innerText.includes('paused')").await;
    // A minute passes.
    let note = "const now = performance.now.bind(performance); performance.now = () => now() + 60000;
        window.said = [];
        const text = document.querySelector('#connection-text');
        new MutationObserver(() => window.said.push(text.textContent)).observe(text, {childList: true, characterData: true, subtree: true})";
    browser.value(&format!("(() => {{ {note} }})()")).await;
    becomes("visible").await;
    browser.until(LIVE).await;
    let said = browser.value("window.said").await;
    let said: Vec<&str> = said.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(said[0].starts_with("updating"), "{said:?}");
    assert!(!said.iter().any(|text| text.contains("disconnected")), "{said:?}");
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_windows_share_one_stream_and_all_stay_live() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    let address = format!("http://{}/", stack.admin);
    let mut windows = Vec::new();
    for _ in 0..9 {
        windows.push(browser.window(&address).await);
    }
    for window in &windows {
        browser.until_in(window, "document.visibilityState === 'visible'").await;
        browser.until_in(window, LIVE).await;
    }
    browser.until(LIVE).await;
    // All other places are free, as the windows have one together.
    let mut others = Vec::new();
    for _ in 1..LISTENERS {
        let mut stream = begin(stack.admin, "GET", "/events", "text/event-stream").await;
        read_events(&mut stream, 1).await;
        others.push(stream);
    }
    // Each finds out about a decision, and explains it.
    stack.exchange("r-1", "m").await;
    for window in &windows {
        browser.until_in(window, "document.querySelectorAll('#list-rows tr').length === 1").await;
        browser.value_in(window, "document.querySelector('#list-rows a').click()").await;
        browser.until_in(window, "document.querySelector('#explained table') !== null").await;
    }
    // The one that came first goes, and the others go on.
    browser.open("about:blank").await;
    stack.exchange("r-2", "m").await;
    for window in &windows {
        browser.until_in(window, "document.querySelectorAll('#list-rows tr').length === 2").await;
    }
    assert_eq!(browser.errors(true), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browser_without_shared_workers_gets_its_own_stream() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    let without = serde_json::json!({"source": "delete window.SharedWorker"});
    browser.call("Page.addScriptToEvaluateOnNewDocument", without).await;
    browser.open(&format!("http://{}/", stack.admin)).await;
    browser.until(&format!("window.SharedWorker === undefined && {LIVE}")).await;
    stack.exchange("r-1", "m").await;
    browser.until("document.querySelectorAll('#list-rows tr').length === 1").await;
    assert!(browser.requests().iter().any(|url| url.ends_with("/events")));
    stack.assert_quiet();
}
