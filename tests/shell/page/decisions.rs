//! Decisions on the page: the list, the search, the explanation, and names that want to be more than names.

use std::process::Stdio;

use tokio::process::Command;

use super::{Stack, request, respond};
use crate::wire::Connection;

const LISTED: &str = "document.querySelectorAll('#list-rows tr').length";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decision_opens_to_the_explain_output() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    browser
        .until("document.querySelector('#decisions-empty').innerText.includes('No decision has been made')")
        .await;
    stack.exchange("r-1", "llama").await;
    browser.until(&format!("{LISTED} === 1")).await;
    browser.until("document.querySelector('#list-rows td:last-child').innerText === '200'").await;
    browser.value("document.querySelector('#list-rows a').click()").await;
    browser.until("document.querySelector('#explained table') !== null").await;
    assert_eq!(browser.value("location.hash").await, "#request=r-1");
    let shown = browser.value("document.querySelector('#explained').innerText").await;
    let shown = shown.as_str().unwrap();
    let admin = stack.admin.to_string();
    let explain = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["explain", "--admin", &admin, "r-1"])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let printed = String::from_utf8(explain.stdout).unwrap();
    let facts = ["request", "asks for", "decided", "sent to", "response"];
    for fact in facts {
        let line = printed.lines().find_map(|line| line.strip_prefix(fact)).unwrap().trim();
        assert!(shown.contains(line), "{fact} {line} isn't in\n{shown}");
    }
    let (_, table) = printed.split_once("\nendpoint").unwrap();
    let cells = table.split_whitespace().filter(|word| word.contains(':') || word.ends_with("-scorer"));
    assert!(cells.clone().count() >= 7, "{table}");
    cells.for_each(|cell| assert!(shown.contains(cell), "{cell} isn't in\n{shown}"));
    assert!(!shown.contains("secret"));
    browser.press("Escape").await;
    browser.until("!document.querySelector('#explanation').open && location.hash === ''").await;

    // One that is under way is followed to its end.
    let connection = Connection::to(stack.usher.address).await;
    let stream = request(&connection, "r-2", "llama").await;
    browser.value("location.hash = '#request=r-2'").await;
    browser.until("/response\\s+none yet/.test(document.querySelector('#explained').innerText)").await;
    respond(stream).await;
    browser.until("/response\\s+status 200/.test(document.querySelector('#explained').innerText)").await;

    // A link to a decision, and one to a request that isn't kept.
    browser.open(&format!("http://{}/#request=r-1", stack.admin)).await;
    browser.until("document.querySelector('#explained').innerText.includes('asks for')").await;
    browser.value("location.hash = '#request=r%203'").await;
    browser
        .until("document.querySelector('#explained').innerText.includes('No decision about request r 3')")
        .await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_explanation_does_not_replace_a_newer_one() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    for id in ["first", "second"] {
        stack.exchange(id, "m").await;
    }
    browser.until(&format!("{LISTED} === 2")).await;
    // Responses about the first wait until they are let go.
    let hold = "(() => {
        const fetched = window.fetch;
        const gate = new Promise((open) => { window.letGo = open; });
        window.late = 0;
        window.fetch = async (url, options) => {
            const response = await fetched(url, options);
            if (!url.includes('id=first')) return response;
            await gate;
            return { ok: response.ok, json: async () => { const page = await response.json(); window.late += 1; return page; } };
        };
    })()";
    browser.value(hold).await;
    let explained = "document.querySelector('#explained').innerText";
    browser.value("location.hash = '#request=first'").await;
    browser.until(&format!("document.querySelector('#explanation').open && {explained} === 'loading'")).await;
    browser.value("location.hash = '#request=second'").await;
    browser.until(&format!("{explained}.includes('second')")).await;
    browser.value("window.letGo()").await;
    browser.until("window.late === 1").await;
    let drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
    browser.until(drawn).await;
    let shown = browser.value(explained).await;
    assert!(shown.as_str().unwrap().contains("second"), "{shown}");
    assert!(!shown.as_str().unwrap().contains("first\n"), "{shown}");
    // Closed before it comes, it isn't opened by it.
    browser.press("Escape").await;
    browser.until("!document.querySelector('#explanation').open").await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_is_usable_by_keyboard() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    for number in 0..12 {
        stack.exchange(&format!("r-{number}"), if number == 3 { "mistral" } else { "llama" }).await;
    }
    browser.until(&format!("{LISTED} === 12")).await;
    browser.press("/").await;
    browser.until("document.activeElement.id === 'search'").await;
    browser.type_in("Mistral").await;
    browser
        .until(&format!("{LISTED} === 1 && document.querySelector('#list-rows').innerText.includes('r-3')"))
        .await;
    browser.value("document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input'))").await;
    browser.until(&format!("{LISTED} === 12")).await;
    let focused = "document.activeElement.innerText";
    for (key, expected) in [("ArrowDown", "r-11"), ("ArrowDown", "r-10"), ("ArrowUp", "r-11"), ("End", "r-0")]
    {
        browser.press(key).await;
        assert_eq!(browser.value(focused).await, expected, "{key}");
    }
    browser.press("Enter").await;
    browser.until("document.querySelector('#explained').innerText.includes('r-0')").await;
    browser.press("Escape").await;
    browser.until("!document.querySelector('#explanation').open").await;
    assert_eq!(browser.value(focused).await, "r-0", "the focus is back");

    // The list of endpoints.
    browser.value("document.querySelector('#grid').focus()").await;
    let active = "document.getElementById(document.querySelector('#grid').getAttribute('aria-activedescendant'))?.ariaRowIndex";
    browser.press("End").await;
    browser.until(&format!("{active} === '5'")).await;
    browser.press("ArrowUp").await;
    browser.until(&format!("{active} === '4'")).await;
    browser.press("Enter").await;
    browser.until("document.querySelector('#search').value.startsWith('127.0.0.1:')").await;
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_chosen_names_are_escaped() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let browser = &stack.browser;
    let hostile = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script>";
    stack.exchange(hostile, &format!("\u{1b}[31m\u{202e}{hostile}\"'>")).await;
    stack.exchange("%22%3E&b=<b>#request=x", "javascript:alert(1)").await;
    browser.until(&format!("{LISTED} === 2")).await;
    for place in 1..=2 {
        browser.value(&format!("document.querySelector('#list-rows tr:nth-child({place}) a').click()")).await;
        browser.until("document.querySelector('#explained table') !== null").await;
        let shown = browser.value("document.querySelector('#explained').innerText").await;
        let expected = if place == 2 { hostile } else { "%22%3E&b=<b>#request=x" };
        assert!(shown.as_str().unwrap().contains(expected), "{shown}");
        browser.press("Escape").await;
        browser.until("location.hash === ''").await;
    }
    browser.press("/").await;
    browser.type_in("<script>window.hacked=2").await;
    browser.until(&format!("{LISTED} === 1")).await;
    assert_eq!(browser.value("window.hacked === undefined").await, true);
    let made = "document.querySelectorAll('img, #list b, dialog b, body script').length";
    assert_eq!(browser.value(made).await, 0);
    let controls =
        "/[\\u0000-\\u0009\\u000b-\\u001f]/.test(document.querySelector('#list-rows').textContent)";
    assert_eq!(browser.value(controls).await, false);
    stack.assert_quiet();

    // Were there a way in, the policy would stop it.
    let inline = "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked=3'}))";
    browser.value(inline).await;
    browser
        .value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=4>')")
        .await;
    let elsewhere = "fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')";
    assert_eq!(browser.value(elsewhere).await, "refused");
    assert_eq!(browser.value("window.hacked === undefined").await, true);
    let errors = browser.errors(false).join("\n");
    assert!(errors.contains("script-src") && errors.contains("connect-src"), "{errors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_are_rounded_as_explain_rounds_them() {
    let Some(stack) = Stack::start(&[]).await else { return };
    let numbers = [0.0, 0.5, 1.5, 2.5, 0.25, 0.35, 3.25, 3.75, -3.25, 0.125, 0.375, 0.0625, 1.0 / 3.0, 99.95];
    for digits in 0..=3_usize {
        let expected: Vec<String> = numbers.iter().map(|number| format!("{number:.digits$}")).collect();
        let fixed = format!(
            "import('./ui/dom.js').then(({{ fixed }}) => {numbers:?}.map((each) => fixed(each, {digits})))"
        );
        assert_eq!(stack.browser.value(&fixed).await, serde_json::json!(expected), "{digits}");
    }
}
