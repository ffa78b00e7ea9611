//! A thousand endpoints on the page.

use std::net::SocketAddr;
use std::process::Stdio;

use tokio::process::Command;

use super::browser::Browser;
use super::start;
use crate::support::servers::Servers;

const ENDPOINTS: usize = 1000;

/// Counts the frames of five seconds while the list is scrolled from one end to the other, and says how long the
/// longest took.
const FRAMES: &str = "new Promise((done) => {
  const grid = document.querySelector('#grid');
  const times = [];
  const begin = performance.now();
  function frame(now) {
    times.push(now);
    grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * Math.abs(Math.sin((now - begin) / 1600));
    if (now - begin < 5000) requestAnimationFrame(frame);
    else {
      const gaps = times.slice(1).map((time, place) => time - times[place]).sort((a, b) => a - b);
      done({frames: gaps.length / (times.at(-1) - times[0]) * 1000, p99: gaps[Math.floor(gaps.length * 0.99)], longest: gaps.at(-1)});
    }
  }
  requestAnimationFrame(frame);
})";

#[expect(clippy::print_stdout, reason = "a measurement, which no assertion depends on")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_endpoints_are_all_reachable_in_few_elements() {
    let Some(browser) = Browser::start(1280, 900).await else { return };
    let servers = Servers::start_many(1).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("endpoints.json");
    // Names of one server, so that all their numbers change.
    let server = servers.addresses[0];
    let entry = |number| serde_json::json!({"name": format!("pod-{number}"), "address": server.ip().to_string(), "port": server.port().to_string()});
    let entries: Vec<_> = (0..ENDPOINTS).map(entry).collect();
    std::fs::write(&file, serde_json::json!({ "endpoints": entries }).to_string()).unwrap();
    let _load = load(server);
    let listed = format!("--endpoints-file={}", file.display());
    let slow = ["--refresh-metrics-interval=1s", "--metrics-staleness-threshold=10s", &listed];
    let (_usher, admin) = start(&[], &slow).await;
    browser.open(&format!("http://{admin}/")).await;
    browser.until("document.querySelector('#endpoints-count')?.innerText === '1,000'").await;
    browser.until("document.querySelector('#rows').innerText.includes(' + ')").await;
    let elements = "document.querySelectorAll('*').length";
    let before = browser.value(elements).await.as_u64().unwrap();
    let measured = browser.value(FRAMES).await;
    println!(
        "1,000 endpoints, scrolled while all change each second: {:.0} frames per second; 99 of 100 within {:.0} ms, the longest {:.0} ms",
        measured["frames"].as_f64().unwrap(),
        measured["p99"].as_f64().unwrap(),
        measured["longest"].as_f64().unwrap()
    );
    let after = browser.value(elements).await.as_u64().unwrap();
    assert!(before < 1000 && after < 1000, "{before} {after}");
    // Sorted by name, all of them are there, one screen after the other.
    browser.value("const sort = document.querySelector('#endpoints-sort'); sort.value = 'name'; sort.dispatchEvent(new Event('change'))").await;
    let seen = browser
        .value(
            "(async () => {
        const grid = document.querySelector('#grid');
        const seen = new Set();
        for (let top = 0; top < grid.scrollHeight; top += 300) {
          grid.scrollTop = top;
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          for (const name of grid.querySelectorAll('#rows .name')) seen.add(name.textContent);
        }
        return seen.size;
    })()",
        )
        .await;
    assert_eq!(seen, ENDPOINTS);
    browser.value("document.querySelector('#endpoints-filter').focus()").await;
    browser.type_in("pod-99").await;
    browser.until("document.querySelector('#endpoints-count').innerText === '11 of 1,000'").await;
    assert_eq!(browser.errors(true), Vec::<String>::new());
}

/// Requests to the server itself, until it is dropped.
fn load(server: SocketAddr) -> tokio::process::Child {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["load", "--stream", "--duration=1h", "--rate=20", "--output-tokens=200"])
        .arg(format!("--target=http://{server}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
