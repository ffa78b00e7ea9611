//! `expected-ttft-scorer` and the model that it learns, against plain loops.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use usher::config::Node;
use usher::endpoints::{Candidates, Clock, Endpoint};
use usher::schedule::data::{PrefixMatch, PromptTokens};
use usher::schedule::ttft::{Booked, Model, Work};
use usher::schedule::{ExpectedTtftParams, ExpectedTtftScorer, Facts, Kept, Key, State};

use crate::pool::{Pool, at, profile_of};
use crate::support::{NOW, column, pool, request};

const TOKENS: u32 = 0;
const PREFIX: u32 = 1;
const RATE: f64 = 1000.0;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn model() -> (Clock, Arc<Model>) {
    let clock = Clock::stopped();
    (clock.clone(), Arc::new(Model::new(RATE, clock)))
}

fn endpoint(candidates: &Candidates, position: usize) -> &Arc<Endpoint> {
    &candidates.snapshot().endpoints()[position]
}

/// A prompt of ten blocks of 100 tokens and 50 tokens behind them, of which the
/// endpoints have so many blocks.
fn facts(matched: &[u32]) -> Facts {
    let mut facts = Facts::default();
    facts.set(Key::new(TOKENS), PromptTokens { count: 1050 });
    facts.set(Key::new(PREFIX), PrefixMatch { total: 10, block_size: 100, matched: matched.to_vec() });
    facts
}

fn scores(model: &Arc<Model>, facts: &Facts, candidates: &Candidates) -> Vec<f32> {
    let scorer = ExpectedTtftScorer::new(RATE, Arc::clone(model), Key::new(TOKENS), Key::new(PREFIX));
    column(&scorer, &request(), facts, candidates)
}

fn assert_close(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((f64::from(*got) - expected).abs() < 1e-3, "{got} is not {expected}");
    }
}

#[test]
fn warm_caches_and_backlogs_are_weighed_in_seconds() {
    let (clock, model) = model();
    let candidates = pool(3, |_, _| {});
    // 1.05 s, 0.55 s, and the least there is, 0.1 s.
    assert_close(&scores(&model, &facts(&[0, 5, 10]), &candidates), &[0.1 / 1.05, 0.1 / 0.55, 1.0]);
    // A second of prompts is under way at the warmest: 1.05, 0.55, 1.1.
    let mut booked = model.book(&Work::whole(endpoint(&candidates, 2), 1000, true));
    assert_close(&scores(&model, &facts(&[0, 5, 10]), &candidates), &[0.55 / 1.05, 1.0, 0.55 / 1.1]);
    // It moves to the first: 2.05, 0.55, 0.1.
    booked.move_to(endpoint(&candidates, 0));
    assert_close(&scores(&model, &facts(&[0, 5, 10]), &candidates), &[0.1 / 2.05, 0.1 / 0.55, 1.0]);
    drop(booked);
    assert_close(&scores(&model, &facts(&[0, 5, 10]), &candidates), &[0.1 / 1.05, 0.1 / 0.55, 1.0]);
    // Of an answer in one piece no first token is seen: it counts for as long as it should take.
    let _unseen = model.book(&Work::whole(endpoint(&candidates, 2), 1000, false));
    clock.set(ms(600));
    assert_close(&scores(&model, &facts(&[0, 5, 10]), &candidates), &[0.5 / 1.05, 0.5 / 0.55, 1.0]);
    clock.set(ms(1000));
    assert_close(&scores(&model, &facts(&[0, 5, 10]), &candidates), &[0.1 / 1.05, 0.1 / 0.55, 1.0]);
}

#[test]
fn of_the_prompt_under_way_only_the_rest_counts() {
    let (clock, model) = model();
    let candidates = pool(2, |_, _| {});
    let seconds = || model.read().ttft(endpoint(&candidates, 0), 0, 0.0, 0.0);
    let first = model.book(&Work::whole(endpoint(&candidates, 0), 1000, true));
    clock.set(ms(250));
    let second = model.book(&Work::whole(endpoint(&candidates, 0), 400, true));
    assert!((seconds() - 1.15).abs() < 1e-6, "{}", seconds());
    // It is late. The next one has not begun, for all that is known.
    clock.set(ms(3000));
    assert!((seconds() - 0.4).abs() < 1e-6, "{}", seconds());
    // Its client is gone, and the next one begins.
    drop(first);
    assert!((seconds() - 0.4).abs() < 1e-6, "{}", seconds());
    clock.set(ms(3100));
    assert!((seconds() - 0.3).abs() < 1e-6, "{}", seconds());
    drop(second);
    assert!(seconds().abs() < 1e-6);
}

#[test]
fn equal_endpoints_score_one() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    assert_eq!(scores(&model, &facts(&[10, 10]), &candidates), [1.0, 1.0]);
    assert_eq!(scores(&model, Facts::NONE, &candidates), [1.0, 1.0], "nothing to compute anywhere");
    assert_eq!(scores(&model, Facts::NONE, &pool(0, |_, _| {})), [0.0; 0]);
}

#[test]
fn what_others_send_counts_as_far_as_the_queue_shows_it() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    // So the mean of the pool is 500 tokens.
    drop(model.book(&Work::whole(endpoint(&candidates, 0), 500, true)));
    let load = endpoint(&candidates, 0).load();
    load.waiting.set(4.0, NOW);
    load.running.set(2.0, NOW);
    endpoint(&candidates, 1).load().waiting.set(0.0, NOW);
    // Four wait, none is ours: 1.05 + 4 × 0.5 s, against 1.05.
    assert_close(&scores(&model, &facts(&[]), &candidates), &[1.05 / 3.05, 1.0]);
    // All six are ours, and what they have to compute is booked.
    let _ours: Vec<_> = (0..6).map(|_| load.book()).collect();
    assert_close(&scores(&model, &facts(&[]), &candidates), &[1.0, 1.0]);
}

#[test]
fn an_endpoint_that_nobody_hears_from_has_the_longest_queue() {
    let (_, model) = model();
    let candidates = pool(3, |_, _| {});
    drop(model.book(&Work::whole(endpoint(&candidates, 0), 1050, true)));
    endpoint(&candidates, 0).load().waiting.set(0.0, NOW);
    endpoint(&candidates, 1).load().waiting.set(1.0, NOW);
    assert_close(&scores(&model, &facts(&[]), &candidates), &[1.0, 0.5, 0.5]);
}

#[test]
fn a_full_batch_costs_the_time_until_slots_are_free() {
    let (clock, model) = model();
    let candidates = pool(2, |_, _| {});
    let mut held = model.book(&Work::whole(endpoint(&candidates, 0), 50, true));
    held.first_token();
    clock.set(ms(800));
    held.finish();
    drop(held);
    let load = endpoint(&candidates, 0).load();
    load.waiting.set(2.0, NOW);
    load.running.set(4.0, NOW);
    let _ours: Vec<_> = (0..6).map(|_| load.book()).collect();
    endpoint(&candidates, 1).load().waiting.set(0.0, NOW);
    // A slot is held for 0.8 s, so of four one is free every 0.2 s.
    assert_close(&scores(&model, &facts(&[]), &candidates), &[1.05 / 1.45, 1.0]);
}

/// Computes prompts one after the other at this rate, and says when each is done.
fn compute(model: &Arc<Model>, clock: &Clock, endpoint: &Endpoint, rate: f64, prompts: usize) {
    for _ in 0..prompts {
        let mut booked = model.book(&Work::whole(endpoint, 1000, true));
        clock.set(clock.elapsed() + Duration::from_secs_f64(1000.0 / rate));
        booked.first_token();
        booked.finish();
    }
}

#[test]
fn a_slow_endpoint_is_known_after_some_requests_and_forgiven_when_idle() {
    let (clock, model) = model();
    let candidates = pool(4, |_, _| {});
    for position in 0..3 {
        compute(&model, &clock, endpoint(&candidates, position), 2000.0, 30);
    }
    compute(&model, &clock, endpoint(&candidates, 3), 500.0, 30);
    let rate = |position| {
        let request = model.read().ttft(endpoint(&candidates, position), 1000, 0.0, 0.0);
        1000.0 / request
    };
    assert!((450.0..650.0).contains(&rate(3)), "{}", rate(3));
    assert!((1800.0..2200.0).contains(&rate(0)), "{}", rate(0));
    // For five minutes only the first is used; the slow one is tried again as if it were
    // like the others.
    for _ in 0..300 {
        compute(&model, &clock, endpoint(&candidates, 0), 2000.0, 1);
        clock.set(clock.elapsed() + ms(1000));
    }
    assert!((1700.0..2200.0).contains(&rate(3)), "{}", rate(3));
}

#[test]
fn a_new_endpoint_is_as_fast_as_the_pool_and_no_rate_is_far_from_it() {
    let (clock, model) = model();
    let candidates = pool(5, |_, _| {});
    for position in 0..3 {
        compute(&model, &clock, endpoint(&candidates, position), 5000.0, 150);
    }
    compute(&model, &clock, endpoint(&candidates, 3), 10.0, 20);
    compute(&model, &clock, endpoint(&candidates, 0), 5000.0, 1);
    let seconds = |position| model.read().ttft(endpoint(&candidates, position), 5000, 0.0, 0.0);
    assert!((seconds(4) - 1.0).abs() < 0.1, "{}", seconds(4));
    assert!(seconds(3) < 11.0, "{}", seconds(3));
}

/// Routes one request through each configuration, and says how long 4,000 tokens would take
/// after it.
fn seconds_after(pool: &Pool, speeds: &[u32]) -> Vec<f64> {
    let config = |speed: &u32| {
        profile_of(&[&format!("type: expected-ttft-scorer, parameters: {{peakPrefillThroughput: {speed}}}")])
    };
    let pools = speeds.iter().map(|speed| pool.reloaded(&config(speed)));
    pools
        .map(|pool| {
            drop(pool.route(&request()).unwrap());
            let model = pool.state.of("p0", || Model::new(1.0, Clock::stopped()));
            model.read().ttft(&pool.store.snapshot().endpoints()[0], 4000, 0.0, 0.0)
        })
        .collect()
}

#[test]
fn a_new_configuration_has_its_own_expectations() {
    let state = Arc::new(State::new(Clock::stopped()));
    let pool = Pool::with_state(&profile_of(&["type: queue-scorer"]), at(&["10.0.0.1:8000"]), state);
    let seconds = seconds_after(&pool, &[1000, 4000, 2000, 2000]);
    assert_eq!(
        seconds.iter().map(|seconds| (seconds * 10.0).round()).collect::<Vec<_>>(),
        [40.0, 10.0, 20.0, 20.0]
    );
}

#[test]
fn what_is_learned_outlives_other_expectations_as_far_as_it_goes() {
    let (clock, model) = model();
    let candidates = pool(3, |_, _| {});
    compute(&model, &clock, endpoint(&candidates, 0), 2000.0, 150);
    let rate = |position| 5000.0 / model.read().ttft(endpoint(&candidates, position), 5000, 0.0, 0.0);
    let known = rate(0);
    assert!((1990.0..2010.0).contains(&known), "{known}");
    model.starts_at(50_000.0);
    assert!((rate(0) - known).abs() < 10.0, "{} was learned", rate(0));
    assert!((rate(2) - rate(0)).abs() < 10.0, "who is new is as fast as the pool: {}", rate(2));

    // One sample says less than the expectation that it was put to.
    let (clock, model) = self::model();
    compute(&model, &clock, endpoint(&candidates, 0), 2000.0, 1);
    let rate = |position| 5000.0 / model.read().ttft(endpoint(&candidates, position), 5000, 0.0, 0.0);
    let before = rate(0);
    assert!((1000.0..1300.0).contains(&before), "{before}");
    model.starts_at(100_000.0);
    assert!(rate(0) > 7000.0, "{}", rate(0));
    model.starts_at(1000.0);
    assert!((rate(0) - before).abs() < 1.0, "{} was {before}", rate(0));
    assert!((rate(1) - before).abs() < 1.0, "and those that are new follow: {}", rate(1));
}

#[test]
fn nobody_is_far_from_the_new_expectations_of_the_others() {
    let (clock, model) = model();
    let candidates = pool(3, |_, _| {});
    // Two have seen a prompt each, and one has learned much: the median is that of the two,
    // who were all there was when they began.
    let booked = [1, 2].map(|position| model.book(&Work::whole(endpoint(&candidates, position), 0, true)));
    drop(booked);
    for (position, prompts) in [(1, 1), (2, 1), (0, 150)] {
        compute(&model, &clock, endpoint(&candidates, position), 1000.0, prompts);
    }
    model.starts_at(1_000_000.0);
    let rate = |position| 5000.0 / model.read().ttft(endpoint(&candidates, position), 5000, 0.0, 0.0);
    let median = rate(1);
    assert!(median > 4500.0, "{median}");
    assert!((rate(0) - 1000.0).abs() < 10.0, "{}", rate(0));
    model.starts_at(1.0);
    assert!(rate(1) < 10.0, "{}", rate(1));
    assert!(rate(0) <= rate(1) * 10.0 + 1e-6, "{} {}", rate(0), rate(1));
}

#[test]
fn an_error_teaches_nothing() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let seconds = || model.read().ttft(endpoint(&candidates, 0), 1000, 0.0, 0.0);
    for _ in 0..20 {
        let mut booked = model.book(&Work::whole(endpoint(&candidates, 0), 1000, true));
        clock.set(clock.elapsed() + ms(1));
        booked.begins(false);
        booked.first_token();
        assert!((seconds() - 1.0).abs() < 1e-6, "its prompt is not in the backlog: {}", seconds());
        booked.finish();
    }
    assert!((seconds() - 1.0).abs() < 1e-6, "{}", seconds());
    assert_eq!(model.read().slot_wait(endpoint(&candidates, 0), 5.0, 1.0), 0.0);
}

#[test]
fn a_prompt_leaves_with_the_first_that_is_seen_of_its_answer() {
    type See = fn(&mut Booked);
    let (nothing, headers): (See, See) = (|_| {}, |booked| booked.begins(true));
    let bytes: See = |booked| {
        booked.begins(true);
        booked.first_token();
    };
    // Also what is no answer to a stream, or isn't shown, is over with its headers.
    let other: See = |booked| booked.begins(false);
    // Whether a stream was asked for, what is seen, whether the prompt is still there
    let table = [
        (true, nothing, true),
        (true, headers, true),
        (true, other, false),
        (true, bytes, false),
        (false, nothing, true),
        (false, headers, true),
        (false, other, false),
        (false, bytes, false),
    ];
    for (number, (is_stream, see, stays)) in table.into_iter().enumerate() {
        let (_, model) = model();
        let candidates = pool(1, |_, _| {});
        let seconds = || model.read().ttft(endpoint(&candidates, 0), 0, 0.0, 0.0);
        let mut booked = model.book(&Work::whole(endpoint(&candidates, 0), 1000, is_stream));
        see(&mut booked);
        assert_eq!(seconds(), if stays { 1.0 } else { 0.0 }, "{number}");
        booked.finish();
        drop(booked);
        assert_eq!(seconds(), 0.0, "{number}");
    }
}

#[test]
fn a_prompt_of_which_nothing_is_seen_expires() {
    let (clock, model) = model();
    let candidates = pool(2, |_, _| {});
    let seconds = || model.read().ttft(endpoint(&candidates, 0), 0, 0.0, 0.0);
    let book = |tokens| model.book(&Work::whole(endpoint(&candidates, 0), tokens, true));
    // Should take 0.2 s, so ten seconds are the bound. Too short to teach a rate.
    let mut first = book(200);
    // Should take a tenth of their bounds: 2.2 s and 6.2 s.
    let (second, third) = (book(2000), book(4000));
    clock.set(ms(9999));
    assert!((seconds() - 6.0).abs() < 1e-6, "{}", seconds());
    clock.set(ms(10_000));
    assert!((seconds() - 6.0).abs() < 1e-6, "the second one begins: {}", seconds());
    clock.set(ms(21_999));
    assert!((seconds() - 4.0).abs() < 1e-6, "{}", seconds());
    clock.set(ms(22_000));
    assert!((seconds() - 4.0).abs() < 1e-6, "{}", seconds());
    clock.set(ms(23_000));
    assert!((seconds() - 3.0).abs() < 1e-6, "{}", seconds());
    // Its token comes after all, and changes nothing, nor does its end.
    first.first_token();
    drop((first, second));
    assert!((seconds() - 3.0).abs() < 1e-6, "{}", seconds());
    clock.set(ms(62_000));
    let fresh = book(1000);
    assert!((seconds() - 1.0).abs() < 1e-6, "nothing is left of the third: {}", seconds());
    drop((third, fresh));
    assert_eq!(seconds(), 0.0);
}

#[test]
fn endpoints_that_are_gone_are_forgotten() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    let _booked = model.book(&Work::whole(endpoint(&candidates, 0), 100_000, true));
    model.sweep(pool(0, |_, _| {}).snapshot(), 1);
    assert!(model.read().ttft(endpoint(&candidates, 0), 100, 0.0, 0.0) < 1.0);
}

#[test]
fn parameters_have_their_defaults_and_are_strict() {
    let decode = |text: &str| ExpectedTtftParams::decode(&Node::parse(text).unwrap());
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

#[derive(Clone, Debug)]
enum Step {
    Book { endpoint: usize, tokens: u64 },
    Move { request: usize, to: usize },
    FirstToken { request: usize },
    Drop { request: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..4, 0u64..5000).prop_map(|(endpoint, tokens)| Step::Book { endpoint, tokens }),
        1 => (any::<usize>(), 0usize..4).prop_map(|(request, to)| Step::Move { request, to }),
        2 => any::<usize>().prop_map(|request| Step::FirstToken { request }),
        1 => any::<usize>().prop_map(|request| Step::Drop { request }),
    ]
}

/// A request of the reference: where it is, and whether its prompt is yet to be computed.
struct Plain {
    endpoint: usize,
    tokens: u64,
    waits: bool,
}

proptest! {
    #[test]
    fn backlogs_are_those_of_plain_sums(steps in proptest::collection::vec(step(), 0..60)) {
        let (_, model) = model();
        let candidates = pool(4, |_, _| {});
        let mut requests: Vec<(Booked, Plain)> = Vec::new();
        for step in steps {
            let count = requests.len();
            match step {
                Step::Book { endpoint: at, tokens } => {
                    // Shorter than what teaches a rate, so that rates stay as they are.
                    let tokens = tokens % 64;
                    let booked = model.book(&Work::whole(endpoint(&candidates, at), tokens, true));
                    requests.push((booked, Plain { endpoint: at, tokens, waits: true }));
                }
                _ if count == 0 => {}
                Step::Move { request, to } => {
                    let (booked, plain) = &mut requests[request % count];
                    booked.move_to(endpoint(&candidates, to));
                    if plain.waits {
                        plain.endpoint = to;
                    }
                }
                Step::FirstToken { request } => {
                    let (booked, plain) = &mut requests[request % count];
                    booked.first_token();
                    plain.waits = false;
                }
                Step::Drop { request } => {
                    requests.swap_remove(request % count);
                }
            }
            let backlog = |at: usize| -> u64 {
                let there = requests.iter().filter(|(_, plain)| plain.endpoint == at && plain.waits);
                there.map(|(_, plain)| plain.tokens).sum()
            };
            let seconds: Vec<f64> = (0..4).map(|at| (backlog(at) + 1050) as f64 / RATE).collect();
            let smallest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let expected: Vec<f64> = seconds.iter().map(|seconds| smallest / seconds).collect();
            let got = scores(&model, &facts(&[]), &candidates);
            for (got, expected) in got.iter().zip(expected) {
                prop_assert!((f64::from(*got) - expected).abs() < 1e-3);
            }
        }
    }
}
