//! The scenario `outlier`: one of the servers fails at once instead of working, and so
//! looks idle; what it draws with outlier detection and without.

mod report;
mod traffic;

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::args::DemoArgs;
use super::client::Client;
use super::ports::{Ports, local};
use super::stack::{Plan, Setup, Stack};
use report::{OutlierReport, Run};
use traffic::{Phase, Traffic};
use usher_terminal::Progress;

/// Requests per second.
const RATE: u32 = 200;
/// Time before the server breaks, and after it has recovered.
const CALM: Duration = Duration::from_secs(2);
/// Time to wait for a server that works again.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at what Usher thinks of it.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Path that makes a server misbehave.
const FAULT: &str = "/admin/fault";

/// Breaks a server under load once without the detection and once with it, each time with
/// fresh servers. The last stack goes on.
///
/// # Errors
/// Returns an error that says in one line what failed.
pub(super) async fn compare(
    args: &DemoArgs,
    ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, OutlierReport)> {
    let mut report = OutlierReport::new(args.speed(), RATE, ports.clone());
    let mut last: Option<Stack> = None;
    for detection in [false, true] {
        if let Some(before) = last.take() {
            before.end();
        }
        let serve = vec![format!("--outlier-detection={detection}")];
        let setup = Setup { serve, ..Setup::default() };
        let plan = Plan { dir: args.dir.clone(), ports: ports.clone(), speed: args.speed(), setup };
        let mut stack = Stack::start(plan, progress).await?;
        let (envoy, admin) = (stack.envoy(), local(ports.admin));
        let broken = *stack.servers().first().context("there is no server to break")?;
        let traffic = Traffic::start(envoy, RATE);
        let story =
            break_and_repair(&traffic, detection, args.requests(), (broken, admin), args.speed(), progress);
        let recovered = tokio::select! {
            recovered = story => recovered?,
            error = stack.broken() => return Err(error),
        };
        let outcomes = traffic.end().await;
        let names = stack.names();
        let name = names.first().map_or("", String::as_str);
        report.runs.push(Run::new(detection, name, &outcomes, recovered));
        last = Some(stack);
    }
    let stack = last.context("there is no run to show")?;
    Ok((stack, report))
}

/// Breaks the server, repairs it, and waits until it is as good as any other. Returns how
/// long that took; `None` where it was never in doubt.
async fn break_and_repair(
    traffic: &Traffic,
    detection: bool,
    requests: usize,
    (broken, admin): (std::net::SocketAddr, std::net::SocketAddr),
    speed: f64,
    progress: &mut Progress,
) -> anyhow::Result<Option<Duration>> {
    let client = Client::default();
    let with = if detection { "with detection" } else { "without detection" };
    progress.step(&format!("{with}: all servers work"));
    sleep(CALM).await;

    progress.step(&format!("{with}: one of them responds with 503 in a millisecond"));
    // Simulated time.
    let slow = format!("{}us", (1000.0 * speed) as u64);
    let fault = json!({"status": 503, "slow": slow}).to_string();
    client.post(broken, FAULT, Bytes::from(fault)).await.context("cannot break a server")?;
    traffic.enter(Phase::Broken);
    traffic.sent_in(Phase::Broken, requests).await;

    progress.step(&format!("{with}: it works again"));
    client.post(broken, FAULT, Bytes::from_static(b"{}")).await.context("cannot repair a server")?;
    let repaired = Instant::now();
    let ejected = is_ejected(&client, admin).await?;
    traffic.enter(Phase::Repaired);
    let mut recovered = None;
    if ejected {
        while is_ejected(&client, admin).await? {
            anyhow::ensure!(repaired.elapsed() < PATIENCE, "no recovery within {} s", PATIENCE.as_secs());
            sleep(POLL_INTERVAL).await;
        }
        recovered = Some(repaired.elapsed());
    }
    traffic.enter(Phase::Recovered);
    sleep(CALM).await;
    Ok(recovered)
}

/// Returns `true` if Usher keeps requests from an endpoint.
async fn is_ejected(client: &Client, admin: std::net::SocketAddr) -> anyhow::Result<bool> {
    const PAGE: &str = "/endpoints";
    let page = client.json(admin, PAGE).await?;
    let rows = page.get("endpoints").and_then(Value::as_array);
    let rows = rows.with_context(|| format!("there are no endpoints in http://{admin}{PAGE}"))?;
    Ok(rows.iter().any(|row| row.pointer("/health/ejected").is_some_and(|ejected| ejected == true)))
}
