//! The model of expected latency: what is booked, when it leaves, and what is learned.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use usher::endpoints::{Candidates, Clock, Endpoint};
use usher::request::Api;
use usher::request::usage::Usage;
use usher::schedule::latency::{Booked, Model, Reported, Work};
use usher::schedule::{Persistent, State};

use crate::expected_latency::{RATE, endpoint, model};
use crate::pool::{Pool, at, profile_of};
use crate::support::{pool, request};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Numbers under which as many requests are there whatever is booked.
const MANY: Reported = Reported { waiting: 0.0, running: 1000.0, kv_usage: None };

/// Tokens that an endpoint has yet to compute: what it takes longer than a model that knows
/// nothing says.
fn tokens(model: &Model, endpoint: &Endpoint) -> f64 {
    let idle = Model::new(RATE, Clock::stopped());
    let seconds = |model: &Model| model.read().ttft(endpoint, 0, &MANY);
    (seconds(model) - seconds(&idle)) * RATE
}

/// Seconds to the first token of so many tokens where nothing else is.
fn alone(model: &Model, endpoint: &Endpoint, tokens: u64) -> f64 {
    model.read().ttft(endpoint, tokens, &Reported::default())
}

fn assert_near(got: f64, expected: f64, what: &str) {
    assert!((got - expected).abs() < 1e-3, "{what}: {got} is not {expected}");
}

#[test]
fn only_the_remaining_prompt_counts_as_backlog() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let left = || tokens(&model, endpoint(&candidates, 0));
    let first = model.book(&Work::whole(endpoint(&candidates, 0), 1000, true));
    clock.set(ms(250));
    let second = model.book(&Work::whole(endpoint(&candidates, 0), 400, true));
    assert_near(left(), 1275.0, "a quarter of the first should be computed, of which half counts");
    clock.set(ms(3000));
    assert_near(left(), 900.0, "the first is late, and the second has not begun");
    drop(first);
    assert_near(left(), 400.0, "the second begins");
    clock.set(ms(3100));
    assert_near(left(), 350.0, "a part of it is computed");
    drop(second);
    assert_near(left(), 0.0, "nothing is left");
}

#[test]
fn a_prompt_moves_with_its_request() {
    let (_, model) = model();
    let candidates = pool(3, |_, _| {});
    let left = || [0, 1, 2].map(|position| tokens(&model, endpoint(&candidates, position)).round());
    let mut booked = model.book(&Work::whole(endpoint(&candidates, 2), 1000, true));
    booked.move_to(endpoint(&candidates, 0));
    assert_eq!(left(), [1000.0, 0.0, 0.0]);
    let work = Work { prefill: endpoint(&candidates, 1), ..Work::whole(endpoint(&candidates, 2), 500, true) };
    let mut apart = model.book(&work);
    apart.move_to(endpoint(&candidates, 0));
    assert_eq!(left(), [1000.0, 500.0, 0.0], "another endpoint responds, and the same one computes");
    drop((booked, apart));
    assert_eq!(left(), [0.0; 3]);
}

#[test]
fn prompt_of_an_unstreamed_response_leaves_over_time() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let left = || tokens(&model, endpoint(&candidates, 0));
    let _first = model.book(&Work::whole(endpoint(&candidates, 0), 1000, false));
    let second = model.book(&Work::whole(endpoint(&candidates, 0), 500, false));
    assert_near(left(), 1500.0, "both");
    clock.set(ms(600));
    assert_near(left(), 900.0, "less what should be computed");
    drop(second);
    assert_near(left(), 400.0, "its client is gone");
    clock.set(ms(1000));
    assert_near(left(), 0.0, "it should be computed");
}

#[test]
fn prompt_leaves_the_backlog_with_the_first_response_byte() {
    type See = fn(&mut Booked);
    let (nothing, headers): (See, See) = (|_| {}, |booked| booked.begins(true));
    let token: See = |booked| {
        booked.begins(true);
        booked.first_token();
    };
    // No response to a stream, or one that isn't shown, is over with its headers.
    let other: See = |booked| booked.begins(false);
    // Whether a stream was asked for, what is seen, whether the prompt is still there
    let table = [
        (true, nothing, true),
        (true, headers, true),
        (true, other, false),
        (true, token, false),
        (false, nothing, true),
        (false, headers, true),
        (false, other, false),
        (false, token, false),
    ];
    for (number, (is_stream, see, stays)) in table.into_iter().enumerate() {
        let (_, model) = model();
        let candidates = pool(1, |_, _| {});
        let mut booked = model.book(&Work::whole(endpoint(&candidates, 0), 1000, is_stream));
        see(&mut booked);
        let left = tokens(&model, endpoint(&candidates, 0));
        assert_near(left, if stays { 1000.0 } else { 0.0 }, &number.to_string());
        booked.finish(None);
        drop(booked);
        assert_near(tokens(&model, endpoint(&candidates, 0)), 0.0, &number.to_string());
    }
}

#[test]
fn prompt_without_a_response_expires() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let left = || tokens(&model, endpoint(&candidates, 0));
    let book = |tokens| model.book(&Work::whole(endpoint(&candidates, 0), tokens, true));
    // Should take 0.2 s, so ten seconds are the bound.
    let mut first = book(200);
    // Should take a tenth of their bounds: 2.2 s and 6.2 s.
    let (second, third) = (book(2000), book(4000));
    clock.set(ms(9999));
    assert_near(left(), 6100.0, "the first is late");
    clock.set(ms(10_000));
    assert_near(left(), 6000.0, "the second begins");
    clock.set(ms(21_999));
    assert_near(left(), 5000.0, "the second is late");
    clock.set(ms(22_000));
    assert_near(left(), 4000.0, "the third begins");
    clock.set(ms(23_000));
    assert_near(left(), 3500.0, "a part of it is computed");
    // A token that comes after all changes nothing, nor does its end.
    first.first_token();
    drop((first, second));
    assert_near(left(), 3500.0, "they are gone already");
    clock.set(ms(62_000));
    let fresh = book(1000);
    assert_near(left(), 1000.0, "nothing is left of the third");
    drop((third, fresh));
    assert_near(left(), 0.0, "nothing is left");
}

#[test]
fn removed_endpoints_are_forgotten() {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    let _booked = model.book(&Work::whole(endpoint(&candidates, 0), 100_000, true));
    model.sweep(pool(0, |_, _| {}).snapshot(), 1);
    assert_near(tokens(&model, endpoint(&candidates, 0)), 0.0, "no endpoint is listed");
}

/// A stream of `tokens` prompt tokens, whose first token comes after so many seconds.
fn answered(model: &Arc<Model>, clock: &Clock, endpoint: &Endpoint, tokens: u64, seconds: f64) {
    let reported = Some(Reported::default());
    let mut booked = model.book(&Work { reported, ..Work::whole(endpoint, tokens, true) });
    clock.set(clock.elapsed() + Duration::from_secs_f64(seconds));
    booked.first_token();
    booked.finish(None);
}

/// Answers prompts of different lengths at this rate.
fn teach(model: &Arc<Model>, clock: &Clock, endpoint: &Endpoint, rate: f64, prompts: u64) {
    for number in 0..prompts {
        let tokens = 200 + 137 * (number % 11);
        answered(model, clock, endpoint, tokens, 0.03 + tokens as f64 / rate);
    }
}

#[test]
fn an_outlier_of_five_seconds_moves_the_expected_time_little() {
    let (clock, model) = model();
    let candidates = pool(2, |_, _| {});
    teach(&model, &clock, endpoint(&candidates, 0), 2000.0, 50);
    let seconds = || [100, 1000, 4000].map(|tokens| alone(&model, endpoint(&candidates, 0), tokens));
    let before = seconds();
    answered(&model, &clock, endpoint(&candidates, 0), 500, 5.0);
    for (after, before) in seconds().iter().zip(before) {
        assert!((after / before - 1.0).abs() < 0.2, "{before} s, then {after} s");
    }
}

#[test]
fn a_new_endpoint_begins_with_the_speed_of_its_accelerator() {
    let (clock, model) = model();
    let candidates: Candidates = pool(4, |index, spec| {
        let accelerator = ["a", "b", "a", "b"][index];
        spec.labels.insert("llm-d.ai/accelerator".into(), accelerator.into());
    });
    teach(&model, &clock, endpoint(&candidates, 0), 4000.0, 100);
    teach(&model, &clock, endpoint(&candidates, 1), 500.0, 100);
    for position in [2, 3] {
        drop(model.book(&Work::whole(endpoint(&candidates, position), 0, true)));
    }
    let seconds = [0, 1, 2, 3].map(|position| alone(&model, endpoint(&candidates, position), 1000));
    assert!((seconds[2] / seconds[0] - 1.0).abs() < 0.1, "{seconds:?}");
    assert!((seconds[3] / seconds[1] - 1.0).abs() < 0.1, "{seconds:?}");
    assert!((0.25..0.35).contains(&seconds[0]) && (1.7..2.3).contains(&seconds[1]), "{seconds:?}");
}

/// Two endpoints with accelerators of which the first computes twice as fast, known in this order.
fn busy_pool(order: [usize; 2]) -> f64 {
    let (clock, model) = model();
    let candidates: Candidates = pool(2, |index, spec| {
        spec.labels.insert("llm-d.ai/accelerator".into(), ["fast", "slow"][index].into());
    });
    let endpoints = [0, 1].map(|position| endpoint(&candidates, position));
    for position in order {
        drop(model.book(&Work::whole(endpoints[position], 0, true)));
    }
    for position in order {
        teach(&model, &clock, endpoints[position], [4000.0, 2000.0][position], 100);
    }
    clock.set(clock.elapsed() + Duration::from_secs(1000));
    for _ in 0..200 {
        clock.set(clock.elapsed() + ms(500));
        // 0.25 s there, and half a second here.
        endpoints.iter().for_each(|endpoint| drop(model.book(&Work::whole(endpoint, 1000, true))));
    }
    model.read().pool(2).busy
}

#[test]
fn utilization_does_not_depend_on_accelerator_order() {
    let busy = [[0, 1], [1, 0]].map(busy_pool);
    for busy in busy {
        assert!((0.7..0.8).contains(&busy), "{busy} is not a quarter and a half of each half second");
    }
    assert!((busy[0] - busy[1]).abs() < 0.02, "{busy:?}");
}

#[test]
fn waiting_foreign_requests_count_as_prompts() {
    let (_, model) = model();
    let candidates = pool(1, |_, _| {});
    let endpoint = endpoint(&candidates, 0);
    let mut held: Vec<_> =
        (0..25).map(|_| (endpoint.load().book(), model.book(&Work::whole(endpoint, 100, true)))).collect();
    held[..20].iter_mut().for_each(|(_, booked)| booked.first_token());
    endpoint.load().seen(endpoint.load().sent());
    let queued = |waiting, running| {
        let reported = Reported { waiting, running, kv_usage: None };
        let requests = waiting + running;
        let idle = Model::new(RATE, Clock::stopped());
        let nothing =
            idle.read().ttft(endpoint, 0, &Reported { waiting: 0.0, running: requests, kv_usage: None });
        (model.read().ttft(endpoint, 0, &reported) - nothing) * RATE
    };
    // Of ours 20 decode and 5 have no first token: those may be half of the ten that wait.
    assert_near(queued(10.0, 40.0), 500.0 + 500.0, "five of others");
    assert_near(queued(5.0, 20.0), 500.0, "nobody else");
    assert_near(queued(10.0, 16.0), 500.0 + 100.0, "one more than ours");
    assert_near(queued(5.0, 40.0), 500.0, "those of others run");
}

/// Tokens that are expected to be computed of a prompt of 1,000, of which 400 seem to be cached, after many
/// responses to such prompts with this usage.
fn expected_after(api: Api, is_pair: bool, usage: Usage) -> f64 {
    let (_, model) = model();
    let candidates = pool(2, |_, _| {});
    let [first, second] = [0, 1].map(|position| endpoint(&candidates, position));
    let work = Work { prompt: 1000, estimated: 1000, api, ..Work::whole(first, 600, true) };
    let pair = Work { decode: if is_pair { second } else { first }, ..work };
    for _ in 0..500 {
        model.book(&pair).used(&usage);
    }
    let _booked = model.book(&work);
    tokens(&model, first)
}

#[test]
fn prompt_lengths_follow_reported_usage() {
    let usage = |prompt, cached| Usage {
        prompt_tokens: Some(prompt),
        completion_tokens: Some(1),
        cached_tokens: cached,
    };
    // API, whether another endpoint decodes, usage, tokens that are computed of what seems to be 600 of 1,000
    let table = [
        (Api::ChatCompletions, false, usage(1000, Some(400)), 600.0),
        (Api::ChatCompletions, false, usage(1000, Some(700)), 300.0),
        (Api::ChatCompletions, false, usage(1000, None), 600.0),
        // Anthropic's count of what was not cached, and the whole.
        (Api::Messages, false, usage(300, Some(700)), 300.0),
        (Api::Messages, false, usage(1000, Some(700)), 300.0),
        // What was moved from where it was computed is no hit.
        (Api::ChatCompletions, true, usage(1000, Some(1000)), 600.0),
    ];
    for (api, is_pair, usage, expected) in table {
        let got = expected_after(api, is_pair, usage);
        assert!((got - expected).abs() < 10.0, "{api:?} {usage:?}: {got} is not {expected}");
    }
}

#[test]
fn missed_hit_counts_without_a_cached_tokens_field() {
    let (_, model) = model();
    let candidates = pool(1, |_, _| {});
    let work = Work { prompt: 1000, estimated: 1000, ..Work::whole(endpoint(&candidates, 0), 600, true) };
    let usage =
        |cached_tokens| Usage { prompt_tokens: Some(1000), completion_tokens: Some(1), cached_tokens };
    for number in 0..1000 {
        model.book(&work).used(&usage((number % 2 == 0).then_some(400)));
    }
    let _booked = model.book(&work);
    let got = tokens(&model, endpoint(&candidates, 0));
    assert!((got - 800.0).abs() < 10.0, "{got}: half of them were computed as a whole");
}

#[test]
fn failed_requests_are_not_learned_from() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let before = alone(&model, endpoint(&candidates, 0), 1000);
    for _ in 0..20 {
        let reported = Some(Reported::default());
        let work = Work { reported, ..Work::whole(endpoint(&candidates, 0), 1000, true) };
        let mut booked = model.book(&work);
        clock.set(clock.elapsed() + ms(1));
        booked.begins(false);
        booked.first_token();
        assert_near(tokens(&model, endpoint(&candidates, 0)), 0.0, "it left with its headers");
        booked.finish(None);
    }
    assert_eq!(alone(&model, endpoint(&candidates, 0), 1000), before);
}

#[test]
fn full_slots_cost_the_wait_for_a_free_one() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let (endpoint, load) = (endpoint(&candidates, 0), endpoint(&candidates, 0).load());
    let full = Reported { waiting: 2.0, running: 4.0, kv_usage: None };
    assert_eq!(model.read().slot_wait(endpoint, 100, &full), 0.0, "nothing is known yet");
    for reading in 1..=10 {
        load.running.set(4.0, reading);
        let mut held = model.book(&Work { reported: Some(full), ..Work::whole(endpoint, 50, true) });
        held.first_token();
        clock.set(clock.elapsed() + ms(800));
        held.finish(None);
    }
    // A slot is held for 0.8 s, so of four one is free every 0.2 s, the third after two others.
    assert_near(model.read().slot_wait(endpoint, 100, &full), 0.6, "two wait");
    let room = Reported { waiting: 0.0, running: 3.0, kv_usage: None };
    assert_eq!(model.read().slot_wait(endpoint, 100, &room), 0.0, "one is free");
    let no_memory = Reported { waiting: 0.0, running: 3.0, kv_usage: Some(0.95) };
    assert_near(model.read().slot_wait(endpoint, 100, &no_memory), 0.8 / 3.0, "but no room in the KV cache");
}

#[test]
fn oversized_prompt_waits_for_free_kv_cache() {
    let (clock, model) = model();
    let candidates = pool(1, |_, _| {});
    let (endpoint, load) = (endpoint(&candidates, 0), endpoint(&candidates, 0).load());
    load.block_size.set(10.0, 1);
    load.num_blocks.set(1000.0, 1);
    let mut held = model.book(&Work::whole(endpoint, 500, true));
    held.first_token();
    clock.set(clock.elapsed() + ms(2000));
    held.finish(None);
    let wait = |prompt, waiting, usage| {
        let reported = Reported { waiting, running: 8.0, kv_usage: Some(usage) };
        model.read().slot_wait(endpoint, prompt, &reported)
    };
    // 9,500 tokens of 10,000 can be used; requests of 8,000 leave every two seconds.
    assert_eq!(wait(1500, 0.0, 0.8), 0.0, "it fits");
    assert_near(wait(2500, 0.0, 0.8), 2.0 * 1000.0 / 8000.0, "1,000 are missing");
    assert_near(wait(2500, 2.0, 0.8), 2.0 * 2000.0 / 8000.0, "two of 500 come before");
    assert_near(wait(100, 0.0, 1.0), 2.0 * 600.0 / 10_000.0, "it is full");
}

/// Routes one request through each configuration, and says how many tokens per second the
/// endpoint is taken to compute after it.
fn rates_after(pool: &Pool, speeds: &[u32]) -> Vec<f64> {
    let config = |speed: &u32| {
        profile_of(&[&format!(
            "type: expected-latency-scorer, parameters: {{peakPrefillThroughput: {speed}}}"
        )])
    };
    let pools = speeds.iter().map(|speed| pool.reloaded(&config(speed)));
    pools
        .map(|pool| {
            drop(pool.route(&request()).unwrap());
            let model = Model::of(&pool.state);
            let seconds = |tokens| alone(&model, &pool.store.snapshot().endpoints()[0], tokens);
            4000.0 / (seconds(4000) - seconds(0))
        })
        .collect()
}

#[test]
fn a_new_configuration_has_its_own_expectations() {
    let state = Arc::new(State::new(Clock::stopped()));
    let pool = Pool::with_state(&profile_of(&["type: queue-scorer"]), at(&["10.0.0.1:8000"]), state);
    let rates = rates_after(&pool, &[1000, 4000, 2000, 2000]);
    assert_eq!(rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(), [1000.0, 4000.0, 2000.0, 2000.0]);
}

#[test]
fn learned_speeds_outlive_another_expectation() {
    let (clock, model) = model();
    let candidates = pool(2, |_, _| {});
    teach(&model, &clock, endpoint(&candidates, 0), 2000.0, 100);
    let seconds = || [0, 1].map(|position| alone(&model, endpoint(&candidates, position), 4000));
    let before = seconds();
    assert!((before[0] / 2.03 - 1.0).abs() < 0.1, "{before:?}");
    model.starts_at(50_000.0);
    assert_eq!(seconds(), before);
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
    fn backlogs_are_plain_sums_and_end_at_zero(steps in proptest::collection::vec(step(), 0..60)) {
        let (_, model) = model();
        let candidates = pool(4, |_, _| {});
        let mut requests: Vec<(Booked, Plain)> = Vec::new();
        for step in steps {
            let count = requests.len();
            match step {
                Step::Book { endpoint: at, tokens } => {
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
            for at in 0..4 {
                let there = requests.iter().filter(|(_, plain)| plain.endpoint == at && plain.waits);
                let expected: u64 = there.map(|(_, plain)| plain.tokens).sum();
                let got = tokens(&model, endpoint(&candidates, at));
                prop_assert!((got - expected as f64).abs() < 1e-3, "{at}: {got} is not {expected}");
            }
        }
        requests.clear();
        for at in 0..4 {
            prop_assert!(tokens(&model, endpoint(&candidates, at)).abs() < 1e-3);
        }
    }
}
