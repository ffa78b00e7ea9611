//! What became of the requests, in a few numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::world::{Events, Fate, Fates};

/// The numbers of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What the user calls it.
    pub policy: String,
    /// Requests that came.
    pub requests: u64,
    /// Requests that were answered to the end.
    pub answered: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Refusals by what was said.
    pub refusals: BTreeMap<String, u64>,
    /// Time to first token of those that were answered; `None` when none was.
    pub ttft: Option<Latency>,
    /// Time between two tokens of an answer, mean over answers of two tokens or more.
    pub tpot_ms: Option<f64>,
    /// Those whose first token came within the limit.
    pub goodput: Goodput,
    /// Share of the answered requests' prompt tokens that the servers' prefix caches had.
    pub token_hits: f64,
    /// Prompt tokens that the busiest server computed, by the mean of all servers.
    pub busiest_by_mean: f64,
    /// Share of requests that were sent elsewhere than by the first policy.
    pub decisions_differ: f64,
    /// What each server got.
    pub servers: Vec<ServerSummary>,
    /// How many events there were.
    pub events: Events,
}

/// Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_s: f64,
    /// Half of all are at most this.
    pub p50_s: f64,
    /// Nine in ten.
    pub p90_s: f64,
    /// Ninety-nine in a hundred.
    pub p99_s: f64,
}

/// Requests whose first token came in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Their number.
    pub requests: u64,
    /// Share of all requests, refused ones included.
    pub share: f64,
    /// Per second of the time in which requests came.
    pub per_second: f64,
}

/// What a server got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerSummary {
    /// Its name.
    pub name: String,
    /// Requests that it answered.
    pub requests: u64,
    /// Prompt tokens that it computed.
    pub computed_tokens: u64,
    /// Prompt tokens that its prefix cache had.
    pub cached_tokens: u64,
}

/// What all policies are measured by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) ttft_limit: Duration,
    /// Time in which requests came.
    pub(super) span: Duration,
}

impl Summary {
    pub(super) fn new(policy: String, names: &[String], fates: &Fates, first: &Fates, by: Measure) -> Self {
        let answered: Vec<&Fate> = fates.requests.iter().filter(|fate| fate.last.is_some()).collect();
        let count = fates.requests.len();
        let refused = fates.requests.iter().filter(|fate| fate.refused).count();
        let mut ttfts: Vec<Duration> = answered.iter().filter_map(|fate| fate.first).collect();
        ttfts.sort_unstable();
        let good = ttfts.partition_point(|ttft| *ttft <= by.ttft_limit);
        let servers = servers(names, &answered);
        let sum = |tokens: fn(&ServerSummary) -> u64| servers.iter().map(tokens).sum::<u64>() as f64;
        let (computed, cached) = (sum(|server| server.computed_tokens), sum(|server| server.cached_tokens));
        let busiest = servers.iter().map(|server| server.computed_tokens).max().unwrap_or_default();
        let elsewhere =
            fates.requests.iter().zip(&first.requests).filter(|(ours, theirs)| ours.server != theirs.server);
        Self {
            policy,
            requests: count as u64,
            answered: answered.len() as u64,
            refused: refused as u64,
            refusals: fates.refusals.clone(),
            ttft: Latency::of(&ttfts),
            tpot_ms: tpot_ms(&answered),
            goodput: Goodput {
                requests: good as u64,
                share: ratio(good as f64, count as f64),
                per_second: ratio(good as f64, by.span.as_secs_f64()),
            },
            token_hits: ratio(cached, computed + cached),
            busiest_by_mean: ratio(busiest as f64 * servers.len() as f64, computed),
            decisions_differ: ratio(elsewhere.count() as f64, count as f64),
            servers,
            events: fates.events,
        }
    }
}

impl Latency {
    /// Of times in ascending order.
    fn of(sorted: &[Duration]) -> Option<Self> {
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map(Duration::as_secs_f64)
        };
        let sum: f64 = sorted.iter().map(Duration::as_secs_f64).sum();
        Some(Self { mean_s: sum / sorted.len() as f64, p50_s: at(0.5)?, p90_s: at(0.9)?, p99_s: at(0.99)? })
    }
}

fn servers(names: &[String], answered: &[&Fate]) -> Vec<ServerSummary> {
    let empty = |name: &String| ServerSummary {
        name: name.clone(),
        requests: 0,
        computed_tokens: 0,
        cached_tokens: 0,
    };
    let mut servers: Vec<ServerSummary> = names.iter().map(empty).collect();
    for fate in answered {
        if let Some(server) = fate.server.and_then(|server| servers.get_mut(server)) {
            server.requests += 1;
            server.computed_tokens += u64::from(fate.prompt_tokens.saturating_sub(fate.cached_tokens));
            server.cached_tokens += u64::from(fate.cached_tokens);
        }
    }
    servers
}

fn tpot_ms(answered: &[&Fate]) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for fate in answered.iter().filter(|fate| fate.output_tokens > 1) {
        if let (Some(first), Some(last)) = (fate.first, fate.last) {
            sum += last.saturating_sub(first).as_secs_f64() / f64::from(fate.output_tokens - 1);
            count += 1;
        }
    }
    (count > 0).then(|| sum / f64::from(count) * 1e3)
}

/// 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fate(server: Option<usize>, ttft_ms: u64, cached: u32) -> Fate {
        let answered = server.is_some().then_some(());
        Fate {
            server,
            first: answered.map(|()| Duration::from_millis(ttft_ms)),
            last: answered.map(|()| Duration::from_millis(ttft_ms + 90)),
            refused: server.is_none(),
            prompt_tokens: 100,
            cached_tokens: cached,
            output_tokens: 10,
        }
    }

    fn summary(requests: Vec<Fate>, first: Vec<Fate>) -> Summary {
        let fates = |requests| Fates { requests, ..Fates::default() };
        let by = Measure { ttft_limit: Duration::from_millis(50), span: Duration::from_secs(10) };
        Summary::new("x".to_owned(), &["a".to_owned(), "b".to_owned()], &fates(requests), &fates(first), by)
    }

    #[test]
    fn numbers_are_what_they_are_called() {
        let mut requests: Vec<Fate> =
            (1..=99).map(|ms| fate(Some(usize::from(ms % 3 == 0)), ms, 20)).collect();
        requests.push(fate(None, 0, 0));
        let mut first = requests.clone();
        first[0].server = Some(1);
        first[99] = fate(Some(0), 1, 0);
        let summary = summary(requests, first);
        assert_eq!((summary.requests, summary.answered, summary.refused), (100, 99, 1));
        let ttft = summary.ttft.unwrap();
        assert!((ttft.mean_s - 0.050).abs() < 1e-9, "{ttft:?}");
        assert_eq!((ttft.p50_s, ttft.p90_s, ttft.p99_s), (0.050, 0.090, 0.099));
        // Exactly at the limit is in time; what was refused is not.
        assert_eq!(summary.goodput, Goodput { requests: 50, share: 0.5, per_second: 5.0 });
        assert_eq!(summary.tpot_ms.map(f64::round), Some(10.0));
        assert_eq!((summary.token_hits, summary.decisions_differ), (0.2, 0.02));
        let [a, b] = &summary.servers[..] else { panic!("two servers") };
        assert_eq!((a.requests, b.requests, a.computed_tokens, a.cached_tokens), (66, 33, 5280, 1320));
        assert!((summary.busiest_by_mean - 66.0 / 49.5).abs() < 1e-9);
    }

    #[test]
    fn nothing_answered_is_no_number() {
        let summary = summary(vec![fate(None, 0, 0)], vec![fate(None, 0, 0)]);
        assert_eq!((summary.ttft, summary.tpot_ms, summary.busiest_by_mean), (None, None, 0.0));
        assert_eq!((summary.goodput.share, summary.decisions_differ), (0.0, 0.0));
    }
}
