//! The scenario `precise`: which prefixes engines hold, as Usher estimates it and as they publish it, while blocks are evicted
//! and engines restart.

mod page;
mod report;
mod traffic;

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::args::DemoArgs;
use super::client::Client;
use super::ports::{Ports, local};
use super::replay::Outcome;
use super::stack::{Plan, Setup, Stack};
use page::Hits;
use report::{Part, PreciseReport, Run};
use usher_terminal::Progress;

/// A way to know what engines hold.
#[derive(Debug, Clone, Copy)]
struct Policy {
    name: &'static str,
    config: &'static str,
    /// Engines publish what they hold.
    has_events: bool,
}

const POLICIES: [Policy; 2] = [
    Policy {
        name: "approximate",
        config: include_str!("../../../../../../deploy/demo/approximate-prefix.yaml"),
        has_events: false,
    },
    Policy {
        name: "precise",
        config: include_str!("../../../../../../deploy/demo/precise-prefix.yaml"),
        has_events: true,
    },
];

/// Address of events in the configuration.
const EVENTS: &str = "tcp://127.0.0.1:5557";

/// Requests whose predictions are compared together with what happened: errors of different ones would cancel out.
const WINDOW: usize = 10;

/// KV blocks of a server: less than its share of the prompts needs.
const BLOCKS: u32 = 420;

/// Time for servers to connect, and for Usher to count a response.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Sends the same requests with each policy, each time to fresh servers of which half restart in the middle. The last
/// stack goes on.
///
/// # Errors
/// Returns an error that says in one line what failed.
pub(super) async fn compare(
    args: &DemoArgs,
    mut ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, PreciseReport)> {
    let events = ports.servers.pop().context("there is no port for events")?;
    let mut report = PreciseReport::new(args.speed(), ports.clone());
    let mut last: Option<Stack> = None;
    for policy in POLICIES {
        if let Some(before) = last.take() {
            before.end();
        }
        let to = format!("tcp://{}", local(events));
        let servers = ["--kv-events-to", &to, "--num-blocks", &BLOCKS.to_string()].map(str::to_owned).into();
        let config = Some(policy.config.replace(EVENTS, &to));
        let setup = Setup { servers, config, ..Setup::default() };
        let plan = Plan { dir: args.dir.clone(), ports: ports.clone(), speed: args.speed(), setup };
        let mut stack = Stack::start(plan, progress).await?;
        let at = Addresses { envoy: stack.envoy(), metrics: local(ports.metrics), servers: stack.servers() };
        let run = tokio::select! {
            run = run_policy(&at, policy, args.requests(), progress) => run?,
            error = stack.broken() => return Err(error),
        };
        report.runs.push(run);
        last = Some(stack);
        if report.failed() > 0 {
            // Its logs are what one wants to see now.
            break;
        }
    }
    let stack = last.context("there is no policy to show")?;
    Ok((stack, report))
}

/// Addresses that a run talks to.
#[derive(Debug)]
struct Addresses {
    envoy: SocketAddr,
    metrics: SocketAddr,
    servers: Vec<SocketAddr>,
}

/// Sends half of the requests, restarts half of the servers, and sends the rest.
async fn run_policy(
    at: &Addresses,
    policy: Policy,
    requests: usize,
    progress: &mut Progress,
) -> anyhow::Result<Run> {
    let (client, name, servers) = (Client::default(), policy.name, at.servers.len());
    if policy.has_events {
        connected(&client, &at.servers).await?;
    }
    let half = requests / 2;
    progress.step(&format!("{name}: blocks come and go"));
    let mut run = Run::new(name);
    run.evictions = send(at, &client, 0..half, &mut run.outcomes).await?;

    progress.step(&format!("{name}: half of the servers restart"));
    let restarted = &at.servers[..servers.div_ceil(2)];
    for server in restarted {
        let fault = json!({"kv-events": "restart"}).to_string();
        client.post(*server, "/admin/fault", Bytes::from(fault)).await.context("cannot restart a server")?;
    }
    if policy.has_events {
        connected(&client, &at.servers).await?;
        forgotten(&client, at.metrics, restarted).await?;
    }
    run.restart = send(at, &client, half..requests, &mut run.outcomes).await?;
    run.sum();
    Ok(run)
}

/// Sends requests with these numbers, a few at a time, and adds up what was predicted of each few.
async fn send(
    at: &Addresses,
    client: &Client,
    numbers: Range<usize>,
    outcomes: &mut Vec<Outcome>,
) -> anyhow::Result<Part> {
    let (mut part, mut before) = (Part::default(), hits(client, at.metrics).await?);
    for first in numbers.clone().step_by(WINDOW) {
        let window = first..numbers.end.min(first + WINDOW);
        outcomes.extend(traffic::send(client, at.envoy, at.servers.len(), window).await);
        let after = hits(client, at.metrics).await?;
        part.add(after.since(before));
        before = after;
    }
    Ok(part)
}

/// Waits until Usher hears all servers.
async fn connected(client: &Client, servers: &[SocketAddr]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for server in servers {
        while client.json(*server, "/admin/state").await?.pointer("/kv_events/subscribers") != Some(&json!(1))
        {
            let seconds = PATIENCE.as_secs();
            anyhow::ensure!(Instant::now() < deadline, "Usher did not hear {server} within {seconds} s");
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Waits until Usher knows that what it heard of these servers is over. Their new connections may be there before that, and
/// the first prompts would be sent after blocks of the processes before.
async fn forgotten(client: &Client, metrics: SocketAddr, servers: &[SocketAddr]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for server in servers {
        let state = client.json(*server, "/admin/state").await?;
        let name = state["name"].as_str().unwrap_or_default();
        while page::hears(&client.text(metrics, "/metrics").await?, name) {
            anyhow::ensure!(Instant::now() < deadline, "Usher did not see that {name} restarted");
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Hits that Usher counted, once it counts no more.
async fn hits(client: &Client, metrics: SocketAddr) -> anyhow::Result<Hits> {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    loop {
        let hits = Hits::read(&client.text(metrics, "/metrics").await?);
        if last == Some(hits) {
            return Ok(hits);
        }
        last = Some(hits);
        anyhow::ensure!(Instant::now() < deadline, "Usher goes on counting hits though no request is sent");
        sleep(POLL_INTERVAL).await;
    }
}
