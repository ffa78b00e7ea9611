//! Time until the other replicas know of a request, and of its prompt.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::time::sleep;

use super::page::{Load, imported};
use super::ready::{PATIENCE, metrics};
use super::traffic;
use crate::cli::demo::client::Client;
use crate::cli::demo::ports::{UsherPorts, local};
use crate::cli::demo::report::Times;
use crate::cli::demo::stack::Stack;
use usher_terminal::Progress;

/// Between two looks at the pages, beside the time that these take: as exact as that are the times.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Most requests that are watched.
const MOST: usize = 50;

/// Times from when the replica of a request counts it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Staleness {
    /// Requests that were watched, one after the other.
    pub(super) requests: usize,
    /// Times until the others count the request.
    pub(super) load_ms: Times,
    /// Times until the others know its prompt.
    pub(super) prefixes_ms: Times,
}

/// Watches requests to idle replicas: one for ten of the requests that a run has.
///
/// # Errors
/// One line: what failed.
pub(super) async fn measure(
    stack: &mut Stack,
    requests: usize,
    progress: &mut Progress,
) -> anyhow::Result<Staleness> {
    let requests = (requests / 10).clamp(1, MOST);
    progress.step(&format!("3 sharing: {requests} requests are watched"));
    let pages = Pages { client: Client::default(), replicas: stack.ports().ushers() };
    let (mut load, mut prefixes) = (Vec::new(), Vec::new());
    for number in (0..).take(requests) {
        pages.are_idle().await?;
        let before = pages.imported().await?;
        let seen = tokio::select! {
            seen = pages.watch(&before) => seen?,
            // It would last; dropped, it ends.
            response = pages.client.completion(stack.envoy(), traffic::watched(number)) => {
                let status = response?.status;
                return Err(anyhow!("a request that was watched ended early, with status {status}"));
            }
        };
        stack.check()?;
        load.extend(seen.load);
        prefixes.extend(seen.prefixes);
    }
    Ok(Staleness { requests, load_ms: Times::of(&load), prefixes_ms: Times::of(&prefixes) })
}

/// Milliseconds until each of the others knew.
struct Seen {
    load: Vec<f64>,
    prefixes: Vec<f64>,
}

/// Pages of all replicas.
struct Pages {
    client: Client,
    replicas: Vec<UsherPorts>,
}

impl Pages {
    async fn loads(&self) -> anyhow::Result<Vec<Load>> {
        let page = |usher: &UsherPorts| self.client.json(local(usher.admin), "/endpoints");
        let pages = try_join_all(self.replicas.iter().map(page)).await?;
        Ok(pages.iter().map(Load::read).collect())
    }

    /// Blocks that each has from the others.
    async fn imported(&self) -> anyhow::Result<Vec<f64>> {
        let page = |usher: &UsherPorts| metrics(&self.client, local(usher.metrics));
        let pages = try_join_all(self.replicas.iter().map(page)).await?;
        Ok(pages.iter().map(|page| imported(page)).collect())
    }

    async fn are_idle(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.loads().await?.iter().any(|load| *load != Load::default()) {
            let seconds = PATIENCE.as_secs();
            ensure!(Instant::now() < deadline, "requests count {seconds} s after they ended");
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until all know of the only request, where each had so many blocks of others `before`.
    async fn watch(&self, before: &[f64]) -> anyhow::Result<Seen> {
        let begin = Instant::now();
        let [mut own, mut load, mut prefixes] = [(); 3].map(|()| First::new(self.replicas.len()));
        loop {
            let loads = self.loads().await?;
            let at = begin.elapsed();
            own.see(at, loads.iter().map(|load| load.own > 0));
            load.see(at, loads.iter().map(|load| load.others > 0));
            // Pages of metrics take longer, so they are not looked at before.
            if let Some(load) = load.since(&own) {
                let blocks = self.imported().await?;
                prefixes.see(begin.elapsed(), blocks.iter().zip(before).map(|(now, before)| now > before));
                if let Some(prefixes) = prefixes.since(&own) {
                    return Ok(Seen { load, prefixes });
                }
            }
            let seconds = PATIENCE.as_secs();
            ensure!(at < PATIENCE, "a replica did not know of another's request after {seconds} s");
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Time at which something was first seen at each replica.
struct First(Vec<Option<Duration>>);

impl First {
    fn new(replicas: usize) -> Self {
        Self(vec![None; replicas])
    }

    /// Takes a look, in which it is seen at some.
    fn see(&mut self, at: Duration, seen: impl Iterator<Item = bool>) {
        for (first, _) in self.0.iter_mut().zip(seen).filter(|(_, seen)| *seen) {
            first.get_or_insert(at);
        }
    }

    /// Milliseconds from when one replica had its `own` until each of the others; `None` before all have seen it.
    fn since(&self, own: &Self) -> Option<Vec<f64>> {
        let (owner, began) = own.0.iter().enumerate().find_map(|(owner, at)| Some((owner, (*at)?)))?;
        let others = self.0.iter().enumerate().filter(|(replica, _)| *replica != owner);
        others.map(|(_, at)| Some((*at)?.saturating_sub(began).as_secs_f64() * 1e3)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_lasts_from_the_owner_to_each_other_replica() {
        let ms = Duration::from_millis;
        let (mut own, mut others) = (First::new(3), First::new(3));
        others.see(ms(8), [false, false, true].into_iter());
        assert_eq!(others.since(&own), None);
        own.see(ms(10), [false, true, false].into_iter());
        own.see(ms(12), [false, true, false].into_iter());
        others.see(ms(12), [false, false, true].into_iter());
        assert_eq!(others.since(&own), None, "one does not know");
        others.see(ms(35), [true, false, true].into_iter());
        assert_eq!(others.since(&own), Some(vec![25.0, 0.0]));
    }
}
