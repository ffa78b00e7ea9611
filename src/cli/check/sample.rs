//! Decisions of a configuration about prompts of two lengths, with idle endpoints and with one that is busy.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;
use usher_terminal::grouped;

use crate::config::ConfigError;
use crate::endpoints::{CachedLocator, Clock, Endpoint, EndpointSpec, Store, StoreLocator, SubsetHint};
use crate::flow::{Attempts, Dispatcher, Policy, Routed};
use crate::registry::{Pipeline, Resolved};
use crate::request::{Parsers, Request, RequestParser};
use crate::schedule::{Decision, Record, Run, State};

/// Lengths of the prompts.
const PROMPTS: [usize; 2] = [200, 2_000];

/// Bytes of a token, as usher estimates them.
const TOKEN_BYTES: usize = 4;

/// Requests of 2,000 tokens in flight at the busy endpoint, which also reports as many as waiting.
const IN_FLIGHT: usize = 16;

/// Share of the KV cache that the busy endpoint reports as used.
const BUSY_CACHE: f64 = 0.95;

/// Time of the decisions, at which all readings are fresh.
const NOW: Duration = Duration::from_secs(10);

/// A decision that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sample {
    prompt_tokens: usize,
    /// Endpoint that is busy; `None`: all are idle.
    busy: Option<String>,
    /// Picks of the profiles that ran; empty if the request was refused.
    picks: Vec<Pick>,
    /// Reason of a refusal.
    refused: Option<String>,
}

/// Pick of a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pick {
    profile: String,
    /// Its picker draws among all that the filters left.
    at_random: bool,
    /// The pick, or all endpoints with the same total, one of which is picked at random.
    endpoints: Vec<String>,
    /// Candidates that the filters left.
    left: usize,
    candidates: usize,
    /// Scores of the pick, without weights.
    scores: Vec<Score>,
    total: Option<f64>,
    /// Best of the others, with its total.
    runner_up: Option<(String, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Score {
    scorer: String,
    score: f32,
}

/// Takes decisions of a configuration that `build` builds, among these endpoints.
///
/// # Errors
/// `ConfigError` if the configuration or a metric can't be built.
pub(super) fn take(
    endpoints: &[EndpointSpec],
    build: impl Fn(&State) -> Result<Pipeline, ConfigError>,
) -> Result<Vec<Sample>, ConfigError> {
    let mut samples = Vec::new();
    let mut busy = None;
    for is_busy in [false, true] {
        for tokens in PROMPTS {
            // Each has state of its own, so that no prompt is cached for the next.
            let pool = Pool::new(endpoints, &build)?;
            let busy = busy.as_ref().filter(|_| is_busy);
            if is_busy && busy.is_none() {
                continue;
            }
            samples.push(pool.sample(tokens, busy));
        }
        busy = samples.last().and_then(Sample::first);
    }
    Ok(samples)
}

/// A configuration over endpoints.
struct Pool {
    dispatcher: Dispatcher,
    parsers: Parsers,
    store: Arc<Store>,
    now_ms: u64,
    /// Profiles whose pickers draw.
    drawing: BTreeSet<String>,
}

impl Pool {
    fn new(
        endpoints: &[EndpointSpec],
        build: impl Fn(&State) -> Result<Pipeline, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let state = State::new(Clock::stopped());
        state.clock().set(NOW);
        let pipeline = build(&state)?;
        let drawing = drawing(&pipeline.resolved);
        let store = Arc::new(Store::default());
        store.replace(endpoints.to_vec());
        let policy = Policy {
            scheduler: pipeline.scheduler,
            stages: pipeline.stages,
            max_age: Duration::from_secs(2),
            record: Record::Columns,
        };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let locator = CachedLocator::new(locator, state.clock().clone(), Duration::MAX, 2);
        let attempts = Attempts::register(&Registry::new());
        let attempts = attempts.map_err(|error| ConfigError::new(error.to_string()))?;
        let dispatcher = Dispatcher::new(locator, policy, state.clock().clone(), Arc::new(attempts));
        let now_ms = state.clock().now_ms();
        Ok(Self { dispatcher, parsers: Parsers::new(&pipeline.parsers), store, now_ms, drawing })
    }

    fn sample(&self, tokens: usize, busy: Option<&String>) -> Sample {
        let snapshot = self.store.snapshot();
        for endpoint in snapshot.endpoints() {
            let is_busy = busy.is_some_and(|busy| **busy == **endpoint.id());
            self.report(endpoint, if is_busy { IN_FLIGHT as f64 } else { 0.0 });
        }
        let mut rng = StdRng::seed_from_u64(1);
        let at =
            snapshot.endpoints().iter().find(|endpoint| busy.is_some_and(|busy| **busy == **endpoint.id()));
        let there = at.map(|endpoint| {
            let address = endpoint.address();
            SubsetHint::Only(Arc::from([(address.ip(), Some(address.port()))]))
        });
        // They are in flight as long as these are held.
        let held: Vec<Routed> = there
            .iter()
            .flat_map(|there| (0..IN_FLIGHT).map(move |number| (there, number)))
            .filter_map(|(there, number)| {
                let request = self.request(PROMPTS[1], number + 1)?;
                self.decide(&request, there, &mut rng).ok()
            })
            .collect();
        let decided = match self.request(tokens, 0) {
            Some(request) => self.decide(&request, &SubsetHint::Missing, &mut rng),
            None => Err("no parser reads chat completions".to_owned()),
        };
        let (picks, refused) = match &decided {
            Ok(routed) => (picks(routed.decision(), &self.drawing), None),
            Err(reason) => (Vec::new(), Some(reason.clone())),
        };
        drop(held);
        Sample { prompt_tokens: tokens, busy: busy.cloned(), picks, refused }
    }

    /// Sets the readings of an endpoint with so many requests.
    fn report(&self, endpoint: &Endpoint, requests: f64) {
        let (load, now) = (endpoint.load(), self.now_ms);
        load.waiting.set(requests, now);
        load.running.set(requests, now);
        load.kv_usage.set(if requests > 0.0 { BUSY_CACHE } else { 0.0 }, now);
        load.scraped(now);
    }

    fn decide(&self, request: &Request, subset: &SubsetHint, rng: &mut StdRng) -> Result<Routed, String> {
        let _ = self.dispatcher.locator().locate(subset).now_or_never();
        match self.dispatcher.decide_now(request, subset, rng) {
            Some(Ok(routed)) => Ok(routed),
            Some(Err(rejection)) => Err(rejection.message.into_owned()),
            None => Err("a plugin holds requests back, so that nothing is decided at once".to_owned()),
        }
    }

    /// A chat with a prompt of so many tokens that begins like no other number's.
    fn request(&self, tokens: usize, number: usize) -> Option<Request> {
        let word = format!("{number:07} ");
        let text = word.repeat(tokens * TOKEN_BYTES / word.len());
        let body = serde_json::json!({"model": "sample", "messages": [{"role": "user", "content": text}]});
        let headers =
            [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];
        let mut parser = RequestParser::new(headers.into_iter().collect(), &self.parsers);
        parser.push(Bytes::from(body.to_string()));
        parser.finish().ok()
    }
}

/// Profiles whose pickers draw, evenly or in proportion to the totals.
fn drawing(resolved: &Resolved) -> BTreeSet<String> {
    let draws = |name: &str| {
        let plugin = resolved.plugins.iter().find(|plugin| plugin.name == name);
        plugin.is_some_and(|plugin| ["random-picker", "weighted-random-picker"].contains(&plugin.plugin_type))
    };
    let profiles = resolved.profiles.iter().filter(|profile| draws(&profile.picker.plugin));
    profiles.map(|profile| profile.name.clone()).collect()
}

fn picks(decision: &Decision, drawing: &BTreeSet<String>) -> Vec<Pick> {
    decision.runs().iter().map(|run| pick(decision, run, drawing)).collect()
}

fn pick(decision: &Decision, run: &Run, drawing: &BTreeSet<String>) -> Pick {
    let endpoints = decision.candidates().snapshot().endpoints();
    let name =
        |at: u32| endpoints.get(at as usize).map_or_else(String::new, |endpoint| endpoint.id().to_string());
    let first = run.picks.first().copied().unwrap_or(0);
    let mut pick = Pick {
        profile: decision.profile(run).to_owned(),
        at_random: drawing.contains(decision.profile(run)),
        endpoints: vec![name(first)],
        left: decision.candidates().len(),
        candidates: decision.candidates().len(),
        scores: Vec::new(),
        total: None,
        runner_up: None,
    };
    let Some(record) = &run.record else { return pick };
    pick.left = record.survivors.len();
    if pick.at_random {
        pick.endpoints = record.survivors.iter().map(|survivor| name(*survivor)).collect();
        pick.endpoints.sort();
        return pick;
    }
    let Some(at) = record.survivors.iter().position(|survivor| *survivor == first) else { return pick };
    let total = record.totals.get(at).copied().unwrap_or(0.0);
    let is_equal = |other: f64| (other - total).abs() < 1e-9;
    let all = || record.survivors.iter().copied().zip(record.totals.iter().copied());
    pick.endpoints = all().filter(|(_, other)| is_equal(*other)).map(|(at, _)| name(at)).collect();
    pick.endpoints.sort();
    pick.total = Some(total);
    let others = all().filter(|(_, other)| !is_equal(*other));
    let best = others.max_by(|(_, one), (_, other)| one.total_cmp(other));
    pick.runner_up = best.map(|(at, total)| (name(at), total));
    let score = |column: &crate::schedule::Column| {
        let score = column.scores.get(at).copied().unwrap_or(0.0);
        Score { scorer: column.scorer.to_string(), score }
    };
    pick.scores = record.columns.iter().map(score).collect();
    pick
}

impl Sample {
    /// Endpoint that the request goes to, or the first of those that are equal.
    fn first(&self) -> Option<String> {
        // The profile whose pick responds runs first or alone, or the others have only computed the prompt.
        self.picks.iter().max_by_key(|pick| Reverse(pick.profile == "prefill"))?.endpoints.first().cloned()
    }

    /// The decision, in a sentence.
    pub(super) fn sentence(&self) -> String {
        let load = match &self.busy {
            Some(busy) => format!("{busy} busy"),
            None => "all idle".to_owned(),
        };
        let start = format!("{} tokens, {load}", grouped(self.prompt_tokens as u64));
        if let Some(reason) = &self.refused {
            return format!("{start}: refused: {reason}");
        }
        let is_single = self.picks.len() == 1;
        let picks: Vec<String> = self
            .picks
            .iter()
            .map(|pick| {
                let of = if is_single { String::new() } else { format!("{} ", pick.profile) };
                format!("{of}{}", pick.text())
            })
            .collect();
        format!("{start}: {}.", picks.join("; "))
    }
}

impl Pick {
    fn text(&self) -> String {
        const NAMED: usize = 3;
        let count = self.endpoints.len();
        let mut text = match &self.endpoints[..] {
            [only] => format!("to {only}"),
            several => {
                let named = several.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = if count > NAMED { ", …" } else { "" };
                let why = if self.at_random { "by chance" } else { "that are equal" };
                format!("to any of {count} {why} ({named}{more})")
            }
        };
        if self.left < self.candidates {
            text.push_str(&format!(", of {} of {} that the filters left", self.left, self.candidates));
        }
        if let Some((other, total)) = &self.runner_up {
            let own = self.total.unwrap_or(0.0);
            text.push_str(&format!(", total {own:.2} before {total:.2} of {other}"));
        }
        let scores: Vec<String> =
            self.scores.iter().map(|Score { scorer, score }| format!("{scorer} {score:.2}")).collect();
        if !scores.is_empty() {
            text.push_str(&format!(", by {}", scores.join(", ")));
        }
        text
    }
}
