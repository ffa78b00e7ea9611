//! The page for everybody: names for screen readers, contrast, small screens.

use serde_json::Value;

use super::Stack;
use super::browser::axe;

/// Rules that the page as it is breaks in a way that keeps somebody out.
pub(super) async fn violations(stack: &Stack) -> Vec<String> {
    let found = stack.browser.value("axe.run(document).then((results) => results.violations)").await;
    let is_grave = |rule: &&Value| rule["impact"] == "serious" || rule["impact"] == "critical";
    let grave = found.as_array().unwrap().iter().filter(is_grave);
    grave.map(|rule| format!("{}: {}", rule["id"], rule["nodes"])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_passes_axe_in_light_and_dark_mode() {
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

/// Cells of the first endpoint, and their titles, that can't be seen as a whole.
const HIDDEN: &str = "[...document.querySelectorAll('#rows .grid-row:first-child > *, .grid-head .grid-row > *')]
    .filter((cell) => cell.offsetWidth === 0 || cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)";

/// Fields whose placeholder is longer than they are.
const CUT: &str = "[...document.querySelectorAll('input[placeholder]')].filter((field) => {
    const style = getComputedStyle(field);
    const canvas = document.createElement('canvas').getContext('2d');
    canvas.font = style.font;
    const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return canvas.measureText(field.placeholder).width > room;
}).map((field) => field.placeholder)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_width_shows_all_endpoint_fields() {
    let roles = ["both", "decode", "decode", "decode"];
    let Some(stack) = Stack::start_with_roles(&roles, &[]).await else { return };
    let browser = &stack.browser;
    stack.exchange("r-1", "m").await;
    browser.until("document.querySelectorAll('#list-rows tr').length === 1").await;
    for width in [1280, 900, 721, 720, 375, 320] {
        browser.resize(width, 700).await;
        browser
            .until(&format!(
                "innerWidth === {width} && document.querySelector('#rows').innerText.includes('ok')"
            ))
            .await;
        browser.until(&format!("({HIDDEN}).length === 0")).await;
        assert_eq!(browser.value(CUT).await, serde_json::json!([]), "{width}");
    }
    // A decision has the titles of its cells, which have no head on a phone.
    let titled = "[...document.querySelectorAll('#list-rows tr:first-child td')].map((cell) => getComputedStyle(cell, '::before').content)";
    let titles =
        serde_json::json!(["none", "\"Decided\"", "\"Model\"", "\"Sent to\"", "\"TTFT\"", "\"Result\""]);
    browser.until(&format!("document.querySelectorAll('#list-rows tr').length > 0 && JSON.stringify({titled}) === JSON.stringify({titles})")).await;
    // The mouse gets a title; a finger and a screen reader get the line below.
    browser.value("document.querySelector('#rows .grid-row').click()").await;
    let server = stack.servers.addresses[0].to_string();
    let chosen = "document.querySelector('#endpoint-chosen').innerText";
    browser
        .until(&format!(
            "{chosen}.includes('{server}') && {chosen}.includes('both') && {chosen}.includes('ok')"
        ))
        .await;
    browser.value("document.querySelector('#endpoint-decisions').click()").await;
    browser.until(&format!("document.querySelector('#search').value === '{server}'")).await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrollable_areas_are_keyboard_accessible() {
    let Some(stack) = Stack::start(&[super::state::ALL]).await else { return };
    let browser = &stack.browser;
    stack.exchange("r-1", "m").await;
    browser.until("document.querySelector('#speed table, #speed .muted') !== null && document.querySelector('#queue p') !== null").await;
    browser.until("document.querySelectorAll('#queue .scroll').length > 0").await;
    let unreachable = "[...document.querySelectorAll('.scroll')].filter((box) => box.tabIndex !== 0 || !box.getAttribute('aria-label') && !box.getAttribute('aria-labelledby')).length";
    assert_eq!(browser.value(unreachable).await, 0);
    // Its numbers change, and it keeps the focus.
    browser.value("document.querySelector('#queue .scroll').focus()").await;
    let before = browser.value("document.querySelector('#queue').dataset.shown").await;
    let shown = serde_json::to_string(&before).unwrap();
    let connection = crate::wire::Connection::to(stack.usher.address).await;
    let mut under_way = Vec::new();
    for number in 0..3 {
        under_way.push(super::request(&connection, &format!("w-{number}"), "m").await);
    }
    browser.until(&format!("document.querySelector('#queue').dataset.shown !== {shown}")).await;
    assert_eq!(
        browser.value("document.activeElement === document.querySelector('#queue .scroll')").await,
        true
    );
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phone_layout_has_no_horizontal_scrolling() {
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
