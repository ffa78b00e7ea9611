//! The scenario `scale-from-zero`: requests come while there is no server, wait in Usher,
//! and are all served when servers come up.

mod page;
mod report;

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::time::sleep;

use super::args::DemoArgs;
use super::client::Client;
use super::ports::{Ports, local};
use super::replay::{self, Counters, show};
use super::stack::{Plan, Setup, Stack};
use crate::load::trace::Row;
use page::Page;
use report::{COLD, Measured, Sample, ZeroReport};
use usher_terminal::Progress;

/// Usher's configuration.
const CONFIG: &str = include_str!("../../../../../../deploy/demo/scale-from-zero.yaml");

/// Between two looks at what waits.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Path of Usher's numbers.
const METRICS: &str = "/metrics";

/// Replays the trace to a pool that is empty at first.
///
/// # Errors
/// Returns an error that says in one line what failed.
pub(super) async fn hold(
    args: &DemoArgs,
    rows: &Arc<[Row]>,
    ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, ZeroReport)> {
    let setup = Setup { config: Some(CONFIG.to_owned()), starts_empty: true, ..Setup::default() };
    let plan = Plan { dir: args.dir.clone(), ports, speed: args.speed(), setup };
    let mut stack = Stack::start(plan, progress).await?;
    progress.step(&format!("replaying {} requests to a pool without servers", rows.len()));
    let (envoy, metrics) = (stack.envoy(), local(stack.ports().metrics));
    let (client, counters, samples) =
        (Client::default(), Arc::new(Counters::default()), RefCell::new(Vec::new()));
    let begin = Instant::now();
    let replayed = async {
        let outcomes = replay::replay(&client, envoy, rows, args.speed(), &counters).await;
        (outcomes, begin.elapsed())
    };
    let mut work = pin!(async {
        tokio::select! {
            done = replayed => Ok(done),
            failed = watch(&client, metrics, begin, &samples) => failed.map(|never| match never {}),
        }
    });
    let early = tokio::select! {
        done = &mut work => Some(done?),
        error = stack.broken() => return Err(error),
        () = sleep(COLD) => None,
        never = show(progress, &counters, rows.len(), begin, "replaying") => match never {},
    };
    if early.is_some() {
        bail!(
            "every request ended within {} s, though there was no server; the logs are in {}",
            COLD.as_secs(),
            stack.logs()
        );
    }
    stack.start_servers()?;
    let (outcomes, took) = tokio::select! {
        done = &mut work => done?,
        error = stack.broken() => return Err(error),
        never = show(progress, &counters, rows.len(), begin, "replaying") => match never {},
    };
    let page = Page::read(&client.text(metrics, METRICS).await?);
    let measured = Measured { outcomes, took, samples: samples.take(), waited: page.waited };
    let (names, ports) = (stack.names(), stack.ports().clone());
    Ok((stack, ZeroReport::new(&measured, args.speed(), ports, names)))
}

/// Notes what waits, until it is dropped.
async fn watch(
    client: &Client,
    metrics: SocketAddr,
    begin: Instant,
    samples: &RefCell<Vec<Sample>>,
) -> anyhow::Result<Infallible> {
    loop {
        let page = Page::read(&client.text(metrics, METRICS).await?);
        let after = begin.elapsed();
        samples.borrow_mut().push(Sample { after, servers: page.servers, waiting: page.waiting });
        sleep(POLL_INTERVAL).await;
    }
}
