//! `expected-latency-scorer`: its order against the formulas worked out again, and where
//! requests go by it.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use usher::config::Node;
use usher::endpoints::{Booking, Candidates, Clock, Endpoint};
use usher::flow::Routed;
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::data::{PrefixMatch, PromptTokens};
use usher::schedule::latency::{Booked, InitialRate, Model, Reader, Reported, Work};
use usher::schedule::{Context, ExpectedLatencyParams, ExpectedLatencyScorer, Facts, Key, State};

use crate::pool::{Pool, at, profile_of};
use crate::reported::{
    FIRST, FIRST_PER_REQUEST, Numbers, OUTPUT, STEP, STEP_PER_CACHED, STEP_PER_REQUEST, longest, numbers,
};
use crate::support::{NOW, column, pool, request};

const TOKENS: u32 = 0;
const PREFIX: u32 = 1;

/// Tokens per second that endpoints are taken to compute.
pub(crate) const RATE: f64 = 1000.0;

/// Costs that differ by less are equal.
const EQUAL: f64 = 5e-4;

pub(crate) fn model() -> (Clock, Arc<Model>) {
    let clock = Clock::stopped();
    (clock.clone(), Arc::new(Model::new(RATE, clock)))
}

pub(crate) fn endpoint(candidates: &Candidates, position: usize) -> &Arc<Endpoint> {
    &candidates.snapshot().endpoints()[position]
}

/// A prompt of so many tokens, of which the endpoints have so many blocks of 100.
fn facts(prompt: u64, matched: &[u32]) -> Facts {
    let mut facts = Facts::default();
    facts.set(Key::new(TOKENS), PromptTokens { count: prompt });
    let total = u32::try_from(prompt / 100).unwrap();
    facts.set(Key::new(PREFIX), PrefixMatch { total, block_size: 100, matched: matched.to_vec() });
    facts
}

fn scores_of(model: &Arc<Model>, request: &Request, facts: &Facts, candidates: &Candidates) -> Vec<f32> {
    let rate = InitialRate::of(RATE);
    let reader = Reader::new(Arc::clone(model), rate, Key::new(TOKENS), Key::new(PREFIX));
    let scorer = ExpectedLatencyScorer::new(reader);
    column(&scorer, request, facts, candidates)
}

fn scores(model: &Arc<Model>, facts: &Facts, candidates: &Candidates) -> Vec<f32> {
    scores_of(model, &request(), facts, candidates)
}

/// An endpoint of the property test, with a KV cache of 10,000 tokens.
#[derive(Clone, Debug)]
struct Drawn {
    numbers: Numbers,
    cached: u32,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (numbers(1..=2999, 8), 0u32..=10).prop_map(|(numbers, cached)| Drawn { numbers, cached })
}

/// The cost of a request of `prompt` tokens at an endpoint, in seconds, from the numbers
/// alone. `least`: seconds that prompts wait where they wait the least. `mean` and `mean_prompt`: of the booked prompts, tokens to compute and all.
struct Plain {
    prompt: f64,
    mean: f64,
    mean_prompt: f64,
    arrivals: f64,
    busy: f64,
    passed: f64,
    longest: u8,
}

impl Plain {
    fn queued(&self, drawn: &Drawn) -> f64 {
        drawn.numbers.queued(self.longest, self.mean, self.passed * RATE)
    }

    fn cost(&self, drawn: &Drawn, least: f64) -> f64 {
        let numbers = &drawn.numbers;
        let requests = numbers.requests(self.longest);
        let queued = self.queued(drawn);
        let cached = match numbers.kv_usage {
            Some(tenths) => f64::from(tenths) * 1000.0 + numbers.unseen() * self.mean_prompt,
            None => requests * self.mean_prompt,
        };
        // The end of a prompt is computed again.
        let uncached = (self.prompt - f64::from(drawn.cached) * 100.0).max(100.0);

        let first = FIRST + FIRST_PER_REQUEST * requests + (queued + uncached) / RATE;
        let own = self.prompt + OUTPUT / 2.0;
        let step = STEP + STEP_PER_REQUEST * (requests + 1.0) + STEP_PER_CACHED * (cached + own);
        let beside = OUTPUT * (STEP_PER_REQUEST + STEP_PER_CACHED * own) * requests;
        let computing = uncached / RATE;
        let behind = self.arrivals * (least + computing) / (1.0 - self.busy.min(0.9));
        2.0 * first + OUTPUT * step + beside + computing * (requests / 2.0 + behind)
    }
}

proptest! {
    #[test]
    fn scores_follow_the_sum_of_the_formulas(
        drawn in proptest::collection::vec(drawn(), 1..6),
        extra in 0u64..50,
        passed in 0u64..40_000,
    ) {
        let (clock, model) = model();
        let candidates = pool(drawn.len(), |_, _| {});
        let (mut held, mut booked) = (Vec::new(), Vec::new());
        let (mut mean, mut mean_prompt, mut count, mut tokens) = (0.0, 0.0, 0.0, 0.0);
        for (position, drawn) in drawn.iter().enumerate() {
            let endpoint = endpoint(&candidates, position);
            let load = endpoint.load();
            load.block_size.set(100.0, NOW);
            load.num_blocks.set(100.0, NOW);
            held.extend(drawn.numbers.report(load));
            for &prompt in &drawn.numbers.backlog {
                let work = Work { prompt: prompt + 500, ..Work::whole(endpoint, prompt, true) };
                booked.push(model.book(&work));
                let blend = |mean: f64, value: f64| if count == 0.0 { value } else { mean * 0.98 + value * 0.02 };
                (mean, mean_prompt) = (blend(mean, prompt as f64), blend(mean_prompt, prompt as f64 + 500.0));
                (count, tokens) = (count + 1.0, tokens + prompt as f64);
            }
        }
        // Below the time after which a prompt whose token isn't seen leaves.
        let passed = passed % 10_000;
        clock.set(Duration::from_millis(passed));
        let passed = passed as f64 / 1000.0;
        let keep = (-passed / 20.0f64).exp();
        let rate = keep / (20.0 * (1.0 - keep).max(0.25)) / drawn.len() as f64;
        let plain = Plain {
            prompt: 1000.0 + extra as f64,
            mean,
            mean_prompt,
            arrivals: count * rate,
            busy: tokens * rate / RATE,
            passed,
            longest: longest(drawn.iter().map(|drawn| &drawn.numbers)),
        };
        let least = drawn.iter().map(|drawn| plain.queued(drawn) / RATE).fold(f64::INFINITY, f64::min);
        let costs: Vec<f64> = drawn.iter().map(|drawn| plain.cost(drawn, least)).collect();
        let equal = costs.iter().copied().fold(f64::INFINITY, f64::min) + EQUAL;
        let matched: Vec<u32> = drawn.iter().map(|drawn| drawn.cached).collect();
        let got = scores(&model, &facts(1000 + extra, &matched), &candidates);
        for (got, cost) in got.iter().zip(&costs) {
            let expected = (equal / cost).min(1.0);
            prop_assert!((f64::from(*got) - expected).abs() < 1e-4, "{got} is not {expected} of {costs:?}");
        }
    }
}

#[test]
fn prompts_have_as_many_tokens_as_engines_count() {
    let (_, model) = model();
    let candidates = pool(1, |_, _| {});
    let reader = Reader::new(Arc::clone(&model), InitialRate::of(RATE), Key::new(TOKENS), Key::new(PREFIX));
    let (request, facts) = (request(), facts(1000, &[5]));
    let cx = Context { facts: &facts, ..Context::new(&request, NOW, Duration::from_secs(2)) };
    let tokens = || (reader.prompt(&cx), reader.uncached(&cx)(0).round() as u64, reader.missing(&cx, 0));
    assert_eq!(tokens(), (1000, 500, 500));
    let usage = Usage { prompt_tokens: Some(2000), completion_tokens: None, cached_tokens: None };
    for _ in 0..500 {
        model.book(&Work::whole(endpoint(&candidates, 0), 1000, true)).used(&usage);
    }
    let (prompt, uncached, missing) = tokens();
    assert!((1990..=2000).contains(&prompt), "{prompt}");
    assert!((995..=1000).contains(&uncached) && uncached == missing, "{uncached} {missing}");
}

#[test]
fn equal_endpoints_score_one() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    assert_eq!(scores(&model, &facts(1000, &[10, 10]), &candidates), [1.0, 1.0]);
    assert_eq!(scores(&model, Facts::NONE, &candidates), [1.0, 1.0], "nothing to compute anywhere");
    assert_eq!(scores(&model, Facts::NONE, &pool(0, |_, _| {})), [0.0; 0]);
}

#[test]
fn short_responses_prefer_caches_and_long_ones_idle_pods() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    for (position, running) in [(0, 20.0), (1, 0.0)] {
        endpoint(&candidates, position).load().waiting.set(0.0, NOW);
        endpoint(&candidates, position).load().running.set(running, NOW);
    }
    let scores = |most: Option<u64>| {
        let mut request = request();
        request.max_output_tokens = most;
        scores_of(&model, &request, &facts(1000, &[9, 0]), &candidates)
    };
    assert_eq!(scores(Some(1))[0], 1.0);
    assert_eq!(scores(None)[1], 1.0);
    assert_eq!(scores(Some(10_000)), scores(None), "no more than the mean is expected");
}

#[test]
fn a_cached_prefix_outweighs_more_where_requests_run() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    // Requests more at the endpoint that has the prefix, with which it is still taken.
    let tolerated = |running: u32| {
        let holds = |more: &u32| {
            for (position, running) in [(0, running + more), (1, running)] {
                let load = endpoint(&candidates, position).load();
                load.waiting.set(0.0, NOW);
                load.running.set(f64::from(running), NOW);
            }
            scores(&model, &facts(1000, &[9, 0]), &candidates)[0] == 1.0
        };
        (1..200).take_while(holds).count()
    };
    assert!(tolerated(10) > 2 * tolerated(0), "{} {}", tolerated(10), tolerated(0));
    assert!(tolerated(0) > 0);
}

/// Requests that were sent by the scores, one after the other, none of them answered.
struct Sent {
    counts: Vec<usize>,
    _held: Vec<(Booking, Booked)>,
}

/// Sends `count` requests with these facts each, of which the first token comes at once if
/// `computed`.
fn send(
    model: &Arc<Model>,
    candidates: &Candidates,
    count: usize,
    computed: bool,
    mut facts: impl FnMut(&[usize]) -> (u64, Vec<u32>),
) -> Sent {
    let (mut counts, mut held) = (vec![0; candidates.len()], Vec::new());
    for _ in 0..count {
        let (prompt, matched) = facts(&counts);
        let scores = scores(model, &self::facts(prompt, &matched), candidates);
        let best = scores.iter().copied().fold(0.0, f32::max);
        let to = scores.iter().position(|score| *score == best).unwrap();
        counts[to] += 1;
        let endpoint = endpoint(candidates, to);
        let uncached = prompt.saturating_sub(matched.get(to).map_or(0, |blocks| u64::from(*blocks) * 100));
        let work = Work { prompt, ..Work::whole(endpoint, uncached.max(100), true) };
        let mut booked = model.book(&work);
        if computed {
            booked.first_token();
        }
        held.push((endpoint.load().book(), booked));
    }
    Sent { counts, _held: held }
}

fn busiest_by_mean(counts: &[usize]) -> f64 {
    let most = counts.iter().max().copied().unwrap_or(0) as f64;
    most * counts.len() as f64 / counts.iter().sum::<usize>() as f64
}

#[test]
fn long_responses_spread_despite_a_cached_prefix() {
    let (clock, model) = model();
    let candidates = pool(8, |_, _| {});
    for _ in 0..400 {
        let mut booked = model.book(&Work::whole(endpoint(&candidates, 0), 100, true));
        booked.first_token();
        booked.finish(Some(800));
    }
    // The arrivals are forgotten, the length of responses is not.
    clock.set(Duration::from_secs(3600));
    let sent = send(&model, &candidates, 64, true, |counts| {
        let has = |(position, count): (usize, &usize)| if position == 0 || *count > 0 { 20 } else { 0 };
        (2000, counts.iter().enumerate().map(has).collect())
    });
    assert!(busiest_by_mean(&sent.counts) <= 1.5, "{:?}", sent.counts);
}

#[test]
fn endpoints_without_fresh_metrics_do_not_draw_everything() {
    for age in [None, Some(60_000)] {
        let (_, model) = model();
        let candidates = pool(8, |_, _| {});
        for position in 0..8 {
            let load = endpoint(&candidates, position).load();
            let at = if position == 5 { age.map(|_| 1) } else { Some(NOW) };
            for (gauge, value) in [(&load.waiting, 3.0), (&load.running, 10.0), (&load.kv_usage, 0.5)] {
                at.into_iter().for_each(|at| gauge.set(value, at));
            }
        }
        let sent = send(&model, &candidates, 64, false, |_| (300, Vec::new()));
        assert!((4..=16).contains(&sent.counts[5]), "{:?}", sent.counts);
    }
}

#[test]
fn slower_endpoint_gets_fewer_requests() {
    let (clock, model) = model();
    let candidates = pool(4, |_, _| {});
    for number in 0..160 {
        let (position, tokens) = (number % 4, 200 + 100 * (number as u64 % 7));
        let takes = (0.03 + tokens as f64 / RATE) * if position == 2 { 3.0 } else { 1.0 };
        let reported = Some(Reported::default());
        let mut booked =
            model.book(&Work { reported, ..Work::whole(endpoint(&candidates, position), tokens, true) });
        clock.set(clock.elapsed() + Duration::from_secs_f64(takes));
        booked.first_token();
        booked.finish(None);
    }
    let seconds = |position| model.read().ttft(endpoint(&candidates, position), 1000, &Reported::default());
    let times = seconds(2) / seconds(0);
    assert!((2.0..3.5).contains(&times), "{times}");
    let sent = send(&model, &candidates, 80, false, |_| (1000, Vec::new()));
    assert!(sent.counts[2] < 15, "{:?}", sent.counts);
}

/// Requests per endpoint of 64 simultaneous ones, by a scorer of this type.
fn burst(scorer: &str, text: impl Fn(usize) -> String, settles: bool) -> Vec<usize> {
    let addresses = ["1", "2", "3", "4", "5", "6", "7", "8"].map(|last| format!("10.0.0.{last}:8000"));
    let endpoints = at(&addresses.each_ref().map(String::as_str));
    let config = profile_of(&[&format!("type: {scorer}")]);
    let pool = Pool::with_state(&config, endpoints, Arc::new(State::new(Clock::stopped())));
    let mut counts = vec![0; 8];
    let send = |number: usize| -> Routed {
        let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
        let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
        parser.push(json!({"model": "m", "prompt": text(number), "stream": true}).to_string().into());
        let routed = pool.route(&parser.finish().unwrap()).unwrap();
        if settles {
            pool.state.settle();
        }
        routed
    };
    let routed: Vec<Routed> = (0..64).map(send).collect();
    routed.iter().for_each(|routed| counts[routed.decision().primary().picks[0] as usize] += 1);
    counts
}

#[test]
fn bursts_of_equal_and_of_distinct_prompts_spread() {
    // The second is the name that the type had before.
    for scorer in ["expected-latency-scorer", "expected-ttft-scorer"] {
        for settles in [false, true] {
            let equal = burst(scorer, |_| "same".repeat(1024), settles);
            assert!(busiest_by_mean(&equal) <= 1.5, "{scorer} {settles}: {equal:?}");
            let distinct = burst(scorer, |number| format!("{number:04}").repeat(1024), settles);
            assert!(busiest_by_mean(&distinct) <= 1.5, "{scorer} {settles}: {distinct:?}");
        }
    }
}

#[test]
fn parameters_have_their_defaults_and_are_strict() {
    let decode = |text: &str| ExpectedLatencyParams::decode(&Node::parse(text).unwrap());
    let params = decode("{}").unwrap();
    assert_eq!(params.peak_prefill_throughput, 15_928.0);
    assert_eq!(params.prefix_match_info_producer_name, "approx-prefix-cache-producer");
    for (text, part) in [
        ("{peakPrefillThroughput: 0}", "peakPrefillThroughput can't be 0"),
        ("{peakPrefillThroughput: -1}", "peakPrefillThroughput can't be -1"),
        ("{peakPrefillThroughput: .inf}", "peakPrefillThroughput can't be inf"),
        ("{peak: 1}", "peak"),
    ] {
        assert!(decode(text).unwrap_err().to_string().contains(part), "{text}");
    }
}
