//! A replica that is killed under load and started again.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::page::{Load, Served, of_third};
use super::ready::{PATIENCE, POLL_INTERVAL, gets_requests, metrics};
use super::report::Kill;
use super::traffic::{self, Pace};
use crate::cli::demo::client::Client;
use crate::cli::demo::ports::{UsherPorts, local};
use crate::cli::demo::stack::Stack;
use usher_terminal::Progress;

/// Shortest time from the kill to the restart.
const AWAY: Duration = Duration::from_secs(3);
/// Time without its requests after which a replica counts no more.
const SETTLED: Duration = Duration::from_millis(500);
/// Responses of the one that is back before its hits are compared, and their least part of the others'.
const ENOUGH: f64 = 10.0;
const SHARE: f64 = 0.98;
/// Time after that.
const CALM: Duration = Duration::from_secs(2);

/// The third replica is the one that is killed.
const VICTIM: usize = 2;

/// Kills a replica at the end of a burst and starts it again, while requests go on. `first`: the first request's number.
///
/// # Errors
/// One line: what failed.
pub(super) async fn kill_and_restart(
    stack: &mut Stack,
    pace: Pace,
    first: u64,
    progress: &mut Progress,
) -> anyhow::Result<Kill> {
    progress.step("3 sharing: one is killed and comes back");
    let requests = pace.requests(first, pace.turns_in(5 * PATIENCE), 1);
    let (begun, stop) = (Instant::now(), CancellationToken::new());
    let sent = tokio::spawn(traffic::send(stack.envoy(), pace, requests, begun, stop.clone()));
    let _stopped = stop.clone().drop_guard();
    let ushers = <[UsherPorts; 3]>::try_from(stack.ports().ushers()).ok().context("three replicas")?;
    let (client, envoy_admin) = (Client::default(), stack.ports().envoy_admin);

    sleep(pace.first_burst()).await;
    let held = load(&client, ushers[VICTIM]).await?.own;
    let killed = Instant::now();
    stack.kill_usher(VICTIM);
    let counted = counted(stack, &client, &ushers, (held, killed)).await?;
    sleep((killed + AWAY).saturating_duration_since(Instant::now())).await;

    let before = others(&client, &ushers).await?;
    let restarted = Instant::now();
    stack.restart_usher(VICTIM)?;
    stack.usher_ready(VICTIM).await?;
    while !gets_requests(&client, envoy_admin, ushers[VICTIM].extproc).await? {
        stack.check()?;
        let seconds = PATIENCE.as_secs();
        ensure!(restarted.elapsed() < PATIENCE, "Envoy did not find the replica back within {seconds} s");
        sleep(POLL_INTERVAL).await;
    }
    let (back, mut caught_up) = (Instant::now(), None);
    let (own, rest) = loop {
        let own = served(&client, ushers[VICTIM]).await?;
        let rest = others(&client, &ushers).await?.since(before);
        let at = back.elapsed();
        if own.responses >= ENOUGH && own.hit_percent() >= SHARE * rest.hit_percent() {
            caught_up.get_or_insert(at);
        }
        if caught_up.is_some_and(|caught_up| at >= caught_up + CALM) || at >= PATIENCE {
            break (own, rest);
        }
        stack.check()?;
        sleep(POLL_INTERVAL).await;
    };
    stop.cancel();
    let exchanges = sent.await.context("the requests were lost")?;
    let (killed, restarted) = (killed - begun, back - restarted);
    let mut kill = Kill::new(held, killed, &exchanges);
    kill.counted_seconds = counted.as_secs_f64();
    kill.back_seconds = restarted.as_secs_f64();
    kill.caught_up_seconds = caught_up.map(|time| time.as_secs_f64());
    kill.hit_percent = own.hit_percent();
    kill.hit_percent_of_others = rest.hit_percent();
    Ok(kill)
}

/// Time after the kill for which the other two counted requests of the one that held so many.
async fn counted(
    stack: &mut Stack,
    client: &Client,
    ushers: &[UsherPorts; 3],
    (held, killed): (i64, Instant),
) -> anyhow::Result<Duration> {
    // Others come and go between the two looks, and until the two know of each other.
    let enough = held.max(2) as f64 / 2.0;
    let mut counted = Duration::ZERO;
    loop {
        let (one, other) = tokio::try_join!(load(client, ushers[0]), load(client, ushers[1]))?;
        if of_third(one, other) >= enough {
            counted = killed.elapsed();
            ensure!(counted < PATIENCE, "a killed replica counted for {} s", PATIENCE.as_secs());
        } else if killed.elapsed() > counted + SETTLED {
            return Ok(counted);
        }
        stack.check()?;
        sleep(POLL_INTERVAL).await;
    }
}

async fn load(client: &Client, usher: UsherPorts) -> anyhow::Result<Load> {
    Ok(Load::read(&client.json(local(usher.admin), "/endpoints").await?))
}

async fn served(client: &Client, usher: UsherPorts) -> anyhow::Result<Served> {
    Ok(Served::read(&metrics(client, local(usher.metrics)).await?))
}

/// Responses through the two that run all the time.
async fn others(client: &Client, ushers: &[UsherPorts; 3]) -> anyhow::Result<Served> {
    let (one, other) = tokio::try_join!(served(client, ushers[0]), served(client, ushers[1]))?;
    Ok(one.and(other))
}
