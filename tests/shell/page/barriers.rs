//! The page for everybody: names for screen readers, contrast, small screens.

use serde_json::Value;

use super::Stack;
use super::browser::axe;

/// Rules that the page as it is breaks in a way that keeps somebody out.
async fn violations(stack: &Stack) -> Vec<String> {
    let found = stack.browser.value("axe.run(document).then((results) => results.violations)").await;
    let is_grave = |rule: &&Value| rule["impact"] == "serious" || rule["impact"] == "critical";
    let grave = found.as_array().unwrap().iter().filter(is_grave);
    grave.map(|rule| format!("{}: {}", rule["id"], rule["nodes"])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_keeps_anybody_out_in_light_and_dark() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let Some(axe) = axe() else { return };
    let browser = &stack.browser;
    stack.exchange("r-1", "m").await;
    browser.until("document.querySelectorAll('#list-rows tr').length === 1").await;
    browser.value(&axe).await;
    // axe sees what it has to see.
    browser
        .value("document.body.append(Object.assign(document.createElement('img'), {id: 'nameless'}))")
        .await;
    assert!(violations(&stack).await.iter().any(|rule| rule.contains("image-alt")));
    browser.value("document.querySelector('#nameless').remove()").await;
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        backgrounds.push(browser.value("getComputedStyle(document.body).backgroundColor").await);
        assert_eq!(violations(&stack).await, Vec::<String>::new(), "{scheme}");
        browser.value("document.querySelector('#list-rows a').click()").await;
        browser.until("document.querySelector('#explained table') !== null").await;
        assert_eq!(violations(&stack).await, Vec::<String>::new(), "{scheme}, with an explanation");
        browser.press("Escape").await;
        browser.until("!document.querySelector('#explanation').open").await;
    }
    browser.resize(375, 700).await;
    assert_eq!(violations(&stack).await, Vec::<String>::new(), "on a phone");
    assert_ne!(backgrounds[0], backgrounds[1]);
    // Troubles have colors of their own.
    stack.usher.set_endpoints(&[crate::support::nobody()]).await;
    browser.until("document.querySelectorAll('#problems .bad').length > 0").await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        assert_eq!(violations(&stack).await, Vec::<String>::new(), "{scheme}, in trouble");
    }
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_phone_needs_no_scrolling_to_the_side() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    stack.exchange(&"a-long-id-".repeat(12), &"a-long-model-".repeat(8)).await;
    browser.until("document.querySelectorAll('#list-rows tr').length === 1").await;
    browser.resize(375, 700).await;
    let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    browser.until(&format!("document.documentElement.clientWidth === 375 && {overflow} === 0")).await;
    browser.until("document.querySelector('#rows').innerText.includes('ok')").await;
    browser.value("document.querySelector('#list-rows a').click()").await;
    browser.until("document.querySelector('#explained table') !== null").await;
    assert_eq!(browser.value(overflow).await, 0);
    let dialog = "document.querySelector('#explanation').getBoundingClientRect()";
    assert_eq!(browser.value(&format!("{dialog}.left >= 0 && {dialog}.right <= 375")).await, true);
    stack.assert_quiet();
}
