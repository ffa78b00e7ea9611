//! Summary of the requests' outcomes, in a few numbers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::servers::Server;
use super::workload::LatencyClass;
use super::world::{Events, RequestOutcome, RequestOutcomes};
use usher_plugins::latency::Report;

/// The numbers of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Name that the user gave the policy.
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
    /// Time per output token after the first, of responses of two tokens or more.
    pub tpot: Option<Latency>,
    /// Time to the last token.
    pub e2e: Option<Latency>,
    /// Requests whose first token came within its limit, and whose other tokens came within
    /// theirs on average.
    pub goodput: Goodput,
    /// Goodput of each latency class, by its own limits, the tightest first; of more than 16 classes those with the
    /// most requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassGoodput>,
    /// Share of the answered requests' prompt tokens that did not have to be computed: the
    /// server's prefix cache had them.
    pub token_hits: f64,
    /// Prompt tokens that the busiest server computed, by the mean of all servers. Where
    /// some are labelled for prefill, of those.
    pub busiest_by_mean: f64,
    /// Share of the answered requests whose prompt another server computed than answered.
    pub prefilled_elsewhere: f64,
    /// Requests that a server was to compute the prompt of and refused; the server that
    /// responded computed it.
    pub prefills_refused: u64,
    /// Share of requests that were sent elsewhere than by the first policy.
    pub decisions_differ: f64,
    /// Requests and prompt tokens of each server.
    pub servers: Vec<ServerSummary>,
    /// Numbers of events.
    pub events: Events,
    /// Times that it learned, and how well it predicted them; `None`: it has no model of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Report>,
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

/// Requests that were answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Their number.
    pub requests: u64,
    /// Share of all requests, refused ones included.
    pub share: f64,
    /// Per second of the time in which requests came.
    pub per_second: f64,
}

/// Latency classes that a summary has; clients of a recording may have named any targets.
const MOST_CLASSES: usize = 16;

/// Requests of a latency class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassGoodput {
    /// Until then a first token is in time, in seconds.
    pub ttft_limit_s: f64,
    /// Mean milliseconds between two tokens up to which a response is fast enough.
    pub tpot_limit_ms: f64,
    /// Requests of the class.
    pub requests: u64,
    /// Share of them that was answered in time, refused ones included.
    pub share: f64,
}

/// Requests and prompt tokens of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerSummary {
    /// Name of the server.
    pub name: String,
    /// Requests that it answered, and those of which it computed the prompt for others.
    pub requests: u64,
    /// Prompt tokens that it computed.
    pub computed_tokens: u64,
    /// Prompt tokens that its prefix cache had.
    pub cached_tokens: u64,
}

/// Limits of a good request, the same for all policies. A request with a latency class has its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) ttft_limit: Duration,
    /// [`Duration::MAX`]: any time per token is good.
    pub(super) tpot_limit: Duration,
}

impl Summary {
    pub(super) fn new(
        policy: String,
        servers: &[Server],
        outcomes: &RequestOutcomes,
        first: &RequestOutcomes,
        by: Measure,
    ) -> Self {
        let answered: Vec<&RequestOutcome> = outcomes.answered().collect();
        let count = outcomes.requests.len() as f64;
        let (ttft, goodput) = outcomes.in_time(by);
        let of = |holds: fn(&RequestOutcome) -> bool| {
            outcomes.requests.iter().filter(|outcome| holds(outcome)).count()
        };
        let target = |outcome: &RequestOutcome| (outcome.server, outcome.prefiller);
        let elsewhere = outcomes.requests.iter().zip(&first.requests);
        let elsewhere = elsewhere.filter(|(ours, theirs)| target(ours) != target(theirs)).count();
        let split = answered.iter().filter(|outcome| outcome.computed_by != outcome.server).count();
        let got = shares(servers, &answered);
        let cached = got.iter().map(|server| server.cached_tokens).sum::<u64>() as f64;
        let computed = got.iter().map(|server| server.computed_tokens).sum::<u64>() as f64;
        Self {
            policy,
            requests: outcomes.requests.len() as u64,
            answered: answered.len() as u64,
            refused: of(|outcome| outcome.refused) as u64,
            refusals: outcomes.refusals.clone(),
            ttft,
            tpot: Latency::of_all(answered.iter().filter_map(|outcome| outcome.tpot())),
            e2e: Latency::of_all(answered.iter().filter_map(|outcome| outcome.last)),
            goodput,
            classes: outcomes.classes(by),
            token_hits: ratio(cached, computed + cached),
            busiest_by_mean: busiest_by_mean(servers, &got),
            prefilled_elsewhere: ratio(split as f64, answered.len() as f64),
            prefills_refused: of(|outcome| {
                outcome.prefiller.is_some() && outcome.computed_by != outcome.prefiller
            }) as u64,
            decisions_differ: ratio(elsewhere as f64, count),
            servers: got,
            events: outcomes.events,
            latency: outcomes.latency.clone(),
        }
    }
}

impl RequestOutcomes {
    /// Outcomes of the requests that were answered to the end.
    fn answered(&self) -> impl Iterator<Item = &RequestOutcome> {
        self.requests.iter().filter(|outcome| outcome.last.is_some())
    }

    /// Time from the first arrival to the last.
    pub(super) fn span(&self) -> Duration {
        let arrived = || self.requests.iter().map(|outcome| outcome.arrived);
        arrived().max().unwrap_or_default().saturating_sub(arrived().min().unwrap_or_default())
    }

    /// Times to the first token, and how many requests were in time.
    pub(super) fn in_time(&self, by: Measure) -> (Option<Latency>, Goodput) {
        let count = self.answered().filter(|outcome| outcome.is_in_time(by)).count();
        let goodput = Goodput {
            requests: count as u64,
            share: ratio(count as f64, self.requests.len() as f64),
            per_second: ratio(count as f64, self.span().as_secs_f64()),
        };
        (Latency::of_all(self.answered().filter_map(|outcome| outcome.first)), goodput)
    }

    fn classes(&self, by: Measure) -> Vec<ClassGoodput> {
        let mut counts: BTreeMap<LatencyClass, [u64; 2]> = BTreeMap::new();
        for (outcome, class) in self.requests.iter().filter_map(|outcome| Some((outcome, outcome.class?))) {
            let [all, good] = counts.entry(class).or_default();
            *all += 1;
            *good += u64::from(outcome.last.is_some() && outcome.is_in_time(by));
        }
        let goodput = |(class, [all, good]): (LatencyClass, [u64; 2])| ClassGoodput {
            ttft_limit_s: class.ttft.as_secs_f64(),
            tpot_limit_ms: class.tpot.as_secs_f64() * 1e3,
            requests: all,
            share: ratio(good as f64, all as f64),
        };
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(class, [all, _])| (Reverse(*all), *class));
        counts.truncate(MOST_CLASSES);
        counts.sort_by_key(|(class, _)| *class);
        counts.into_iter().map(goodput).collect()
    }
}

impl RequestOutcome {
    fn is_in_time(&self, by: Measure) -> bool {
        let Measure { ttft_limit, tpot_limit } = by;
        let (ttft, tpot) = self.class.map_or((ttft_limit, tpot_limit), |class| (class.ttft, class.tpot));
        self.first.is_some_and(|first| first <= ttft) && self.tpot().is_none_or(|own| own <= tpot)
    }

    /// Mean time per output token after the first; `None` without a second one.
    pub(super) fn tpot(&self) -> Option<Duration> {
        let (first, last) = (self.first?, self.last?);
        let others = self.output_tokens.checked_sub(1).filter(|others| *others > 0)?;
        Some(last.saturating_sub(first) / others)
    }
}

impl Latency {
    fn of_all(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut sorted: Vec<Duration> = times.collect();
        sorted.sort_unstable();
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map(Duration::as_secs_f64)
        };
        let sum: f64 = sorted.iter().map(Duration::as_secs_f64).sum();
        Some(Self { mean_s: sum / sorted.len() as f64, p50_s: at(0.5)?, p90_s: at(0.9)?, p99_s: at(0.99)? })
    }
}

/// Requests and prompt tokens of each server, of the requests that were answered.
fn shares(servers: &[Server], answered: &[&RequestOutcome]) -> Vec<ServerSummary> {
    let nothing = |server: &Server| ServerSummary {
        name: server.name.clone(),
        requests: 0,
        computed_tokens: 0,
        cached_tokens: 0,
    };
    let mut shares: Vec<ServerSummary> = servers.iter().map(nothing).collect();
    for outcome in answered {
        if let Some(share) = outcome.server.and_then(|server| shares.get_mut(server)) {
            share.requests += 1;
        }
        if let Some(share) = outcome.computed_by.and_then(|server| shares.get_mut(server)) {
            share.requests += u64::from(outcome.computed_by != outcome.server);
            share.computed_tokens += u64::from(outcome.prompt_tokens.saturating_sub(outcome.cached_tokens));
            share.cached_tokens += u64::from(outcome.cached_tokens);
        }
    }
    shares
}

fn busiest_by_mean(servers: &[Server], shares: &[ServerSummary]) -> f64 {
    let any = servers.iter().any(Server::is_prefiller);
    let of = servers.iter().zip(shares).filter(|(server, _)| !any || server.is_prefiller());
    let computed: Vec<u64> = of.map(|(_, share)| share.computed_tokens).collect();
    let busiest = computed.iter().max().copied().unwrap_or_default();
    ratio(busiest as f64 * computed.len() as f64, computed.iter().sum::<u64>() as f64)
}

/// 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::EngineConfig;

    fn outcome(server: Option<usize>, ttft_ms: u64, cached: u32) -> RequestOutcome {
        let answered = server.is_some().then_some(());
        RequestOutcome {
            arrived: Duration::ZERO,
            server,
            prefiller: None,
            computed_by: server,
            first: answered.map(|()| Duration::from_millis(ttft_ms)),
            last: answered.map(|()| Duration::from_millis(ttft_ms + 90)),
            refused: server.is_none(),
            prompt_tokens: 100,
            cached_tokens: cached,
            output_tokens: 10,
            class: None,
        }
    }

    fn summary(requests: Vec<RequestOutcome>, first: Vec<RequestOutcome>) -> Summary {
        let outcomes = |requests| RequestOutcomes { requests, ..RequestOutcomes::default() };
        let by = Measure { ttft_limit: Duration::from_millis(50), tpot_limit: Duration::from_millis(10) };
        let servers = Server::equal(2, &EngineConfig::default());
        Summary::new("x".to_owned(), &servers, &outcomes(requests), &outcomes(first), by)
    }

    #[test]
    fn summary_statistics_are_computed_from_results() {
        let mut requests: Vec<RequestOutcome> =
            (1..=99).map(|ms| outcome(Some(usize::from(ms % 3 == 0)), ms, 20)).collect();
        requests.push(outcome(None, 0, 0));
        requests[99].arrived = Duration::from_secs(10);
        let mut first = requests.clone();
        first[0].server = Some(1);
        first[99] = outcome(Some(0), 1, 0);
        let summary = summary(requests, first);
        assert_eq!((summary.requests, summary.answered, summary.refused), (100, 99, 1));
        let ttft = summary.ttft.unwrap();
        assert!((ttft.mean_s - 0.050).abs() < 1e-9, "{ttft:?}");
        assert_eq!((ttft.p50_s, ttft.p90_s, ttft.p99_s), (0.050, 0.090, 0.099));
        // Exactly at the limit is in time; what was refused is not.
        assert_eq!(summary.goodput, Goodput { requests: 50, share: 0.5, per_second: 5.0 });
        // 90 ms for nine more tokens; both at the limit, which is in time.
        assert_eq!(summary.tpot.map(|tpot| (tpot.p50_s, tpot.p99_s)), Some((0.010, 0.010)));
        assert_eq!(summary.e2e.map(|e2e| e2e.p90_s), Some(0.180));
        assert_eq!((summary.token_hits, summary.decisions_differ), (0.2, 0.02));
        let [a, b] = &summary.servers[..] else { panic!("two servers") };
        assert_eq!((a.requests, b.requests, a.computed_tokens, a.cached_tokens), (66, 33, 5280, 1320));
        assert!((summary.busiest_by_mean - 66.0 / 49.5).abs() < 1e-9);
    }

    #[test]
    fn slow_response_with_a_fast_first_token_is_not_good() {
        let slow = RequestOutcome { last: Some(Duration::from_millis(101)), ..outcome(Some(0), 10, 0) };
        let summary = summary(vec![slow, outcome(Some(0), 10, 0)], vec![slow; 2]);
        assert_eq!(summary.goodput.requests, 1);
    }

    #[test]
    fn a_class_is_judged_by_its_own_limits() {
        let ms = Duration::from_millis;
        let class = |ttft, tpot| Some(LatencyClass { ttft: ms(ttft), tpot: ms(tpot), is_named: true });
        // 10 ms per token.
        let (tight, loose) = (class(20, 10), class(200, 5));
        let of = |class, ttft| RequestOutcome { class, ..outcome(Some(0), ttft, 0) };
        let refused = RequestOutcome { class: tight, ..outcome(None, 0, 0) };
        let requests = vec![of(tight, 20), of(tight, 21), refused, of(loose, 10), of(None, 50)];
        let summary = summary(requests.clone(), requests);
        assert_eq!(summary.goodput.requests, 2);
        let classes: Vec<_> = summary.classes.iter().map(|class| (class.requests, class.share)).collect();
        assert_eq!(classes, [(3, 1.0 / 3.0), (1, 0.0)], "the tightest first");
        assert_eq!((summary.classes[0].ttft_limit_s, summary.classes[0].tpot_limit_ms), (0.02, 10.0));
    }

    #[test]
    fn summary_keeps_the_largest_latency_classes() {
        let class = |ms: u64| LatencyClass {
            ttft: Duration::from_millis(ms),
            tpot: Duration::from_millis(5),
            is_named: true,
        };
        let of = |ms| RequestOutcome { class: Some(class(ms)), ..outcome(Some(0), 10, 0) };
        let requests: Vec<RequestOutcome> = (1..=40).chain([30, 35]).map(of).collect();
        let classes: Vec<_> = summary(requests.clone(), requests).classes;
        let limits: Vec<u64> =
            classes.iter().map(|class| (class.ttft_limit_s * 1e3).round() as u64).collect();
        assert_eq!(limits, (1..=14).chain([30, 35]).collect::<Vec<_>>());
    }

    #[test]
    fn summary_without_responses_has_no_latencies() {
        let summary = summary(vec![outcome(None, 0, 0)], vec![outcome(None, 0, 0)]);
        assert_eq!((summary.ttft, summary.tpot, summary.busiest_by_mean), (None, None, 0.0));
        assert_eq!((summary.goodput.share, summary.decisions_differ), (0.0, 0.0));
    }

    #[test]
    fn prefill_server_is_counted_for_computed_tokens() {
        let label = |server: &mut Server, role: &str| {
            server.labels.insert("llm-d.ai/role".to_owned(), role.to_owned());
        };
        let mut servers = Server::equal(3, &EngineConfig::default());
        label(&mut servers[0], "prefill");
        label(&mut servers[1], "prefill");
        label(&mut servers[2], "decode");
        let split = |prefiller, computed_by| RequestOutcome {
            prefiller: Some(prefiller),
            computed_by: Some(computed_by),
            ..outcome(Some(2), 1, 40)
        };
        // The last one was refused by the first server, and done by the one that responds.
        let outcomes = RequestOutcomes {
            requests: vec![split(0, 0), split(0, 0), split(1, 1), split(0, 2)],
            ..RequestOutcomes::default()
        };
        let mut first = outcomes.clone();
        first.requests[1].prefiller = Some(1);
        let by = Measure { ttft_limit: Duration::from_secs(1), tpot_limit: Duration::MAX };
        let summary = Summary::new("x".to_owned(), &servers, &outcomes, &first, by);
        assert_eq!((summary.prefilled_elsewhere, summary.prefills_refused), (0.75, 1));
        assert_eq!(summary.decisions_differ, 0.25);
        let got: Vec<_> = summary.servers.iter().map(|got| (got.requests, got.computed_tokens)).collect();
        assert_eq!(got, [(2, 120), (1, 60), (4, 60)]);
        assert!((summary.busiest_by_mean - 120.0 / 90.0).abs() < 1e-9, "of the two that prefill");
    }
}
