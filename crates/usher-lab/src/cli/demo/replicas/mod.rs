//! The scenario `replicas`: one Usher, three that share nothing, and three that share load and prefixes through a store.
//! Then one of the latter is killed, and comes back.

mod kill;
mod page;
mod ready;
mod report;
mod staleness;
mod store;
mod traffic;

use std::time::Instant;

use anyhow::{Context, anyhow};
use tokio_util::sync::CancellationToken;

use super::args::DemoArgs;
use super::client::Client;
use super::commands::StoreServer;
use super::ports::{Ports, UsherPorts, local};
use super::stack::{Plan, Setup, Stack};
use report::{ReplicasReport, Run};
use traffic::Pace;
use usher_terminal::Progress;

/// Usher's configuration.
const CONFIG: &str = include_str!("../../../../../../deploy/demo/replicas.yaml");

/// Replicas beside the first.
const MORE: u16 = 2;

/// Ports behind those of the servers: of these replicas, and of the store.
pub(super) const PORTS: u16 = MORE * UsherPorts::COUNT + 1;

/// KV blocks of a server: room for three times its share of the conversations.
const BLOCKS: u32 = 1250;

/// A way to run replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    One,
    Alone,
    Sharing,
}

impl Way {
    const ALL: [Self; 3] = [Self::One, Self::Alone, Self::Sharing];

    /// Heading of its column.
    fn name(self) -> &'static str {
        match self {
            Self::One => "1 replica",
            Self::Alone => "3 alone",
            Self::Sharing => "3 sharing",
        }
    }
}

/// Store of the replicas, as a flag of theirs, and the server that is started for it.
#[derive(Debug)]
struct Store {
    url: String,
    server: Option<StoreServer>,
}

impl Store {
    /// The store of the arguments, or one on the `PATH`, to be started at this port.
    fn choose(args: &DemoArgs, port: u16) -> anyhow::Result<Self> {
        if let Some(url) = &args.state_store {
            return Ok(Self { url: url.clone(), server: None });
        }
        let program = store::find(&std::env::var_os("PATH").unwrap_or_default())?;
        let url = format!("redis://{}", local(port));
        Ok(Self { url, server: Some(StoreServer { program, port }) })
    }
}

/// Sends the same requests in each way, each time through fresh processes; then watches how soon replicas of the
/// last know of each other's requests, and kills one of them.
///
/// # Errors
/// One line: what failed, or what to install.
pub(super) async fn compare(
    args: &DemoArgs,
    mut ports: Ports,
    progress: &mut Progress,
) -> anyhow::Result<(Stack, ReplicasReport)> {
    let port = ports.servers.pop().context("there is no port for a store")?;
    let store = Store::choose(args, port)?;
    let alone = Ports { servers: ports.servers[..usize::from(args.servers())].to_vec(), ..ports.clone() };
    for _ in 0..MORE {
        ports.add_replica().context("there are no ports for replicas")?;
    }
    let pace = Pace { servers: ports.servers.len(), speed: args.speed() };
    let requests = pace.requests(0, args.requests(), usize::MAX);
    let mut report = ReplicasReport::new(args.speed(), ports.clone());
    let client = Client::default();
    let mut last: Option<Stack> = None;
    for way in Way::ALL {
        if let Some(before) = last.take() {
            before.end();
        }
        let ports = if way == Way::One { alone.clone() } else { ports.clone() };
        let setup = setup(way, &store);
        let plan = Plan { dir: args.dir.clone(), ports: ports.clone(), speed: args.speed(), setup };
        let mut stack = Stack::start(plan, progress).await?;
        let ready = ready::wait(&client, &ports, way == Way::Sharing);
        tokio::select! {
            ready = ready => ready.map_err(|error| anyhow!("{error:#}; the logs are in {}", stack.logs()))?,
            error = stack.broken() => return Err(error),
        }
        progress.step(&format!("{}: {} requests", way.name(), requests.len()));
        let sent =
            traffic::send(stack.envoy(), pace, requests.clone(), Instant::now(), CancellationToken::new());
        let exchanges = tokio::select! {
            sent = sent => sent,
            error = stack.broken() => return Err(error),
        };
        report.runs.push(Run::new(way.name(), ports.ushers().len(), &exchanges, pace));
        if report.failed() == 0 && way == Way::Sharing {
            report.staleness = Some(staleness::measure(&mut stack, args.requests(), progress).await?);
            report.kill =
                Some(kill::kill_and_restart(&mut stack, pace, args.requests() as u64, progress).await?);
        }
        last = Some(stack);
        if report.failed() > 0 {
            // Its logs are what one wants to see now.
            break;
        }
    }
    let stack = last.context("there is no way to show")?;
    Ok((stack, report))
}

fn setup(way: Way, store: &Store) -> Setup {
    let servers = ["--num-blocks", &BLOCKS.to_string()].map(str::to_owned).into();
    let mut setup = Setup { servers, config: Some(CONFIG.to_owned()), ..Setup::default() };
    if way == Way::Sharing {
        // A name of its own: in a store that is not ours others may share, too, and earlier demos did.
        let pool = format!("--pool-name=demo-{:08x}", rand::random::<u32>());
        setup.serve = vec![pool, format!("--state-store={}", store.url)];
        setup.store.clone_from(&store.server);
    }
    setup
}
