//! The model of expected latency: what it learns from elsewhere than streams, what it forgets,
//! and how well it says that it predicts.

use std::sync::Arc;
use std::time::Duration;

use usher::endpoints::{Clock, Endpoint, EndpointSpec, EngineTimes, Store, Total};
use usher::request::usage::Usage;
use usher::schedule::latency::{Model, Reported, TokenCounts, Work};
use usher::schedule::{Persistent, ResponseObserver};

use crate::expected_latency::{RATE, model};
use crate::pool::{Pool, labelled, profile_of};

/// A store with one endpoint, whose server can become another one.
fn store(accelerator: &str) -> Store {
    let store = Store::default();
    store.replace(vec![spec(accelerator)]);
    store
}

fn spec(accelerator: &str) -> EndpointSpec {
    let mut spec = EndpointSpec::new("pod", ([10, 0, 0, 1], 8000));
    spec.labels.insert("llm-d.ai/accelerator".to_owned(), accelerator.to_owned());
    spec
}

fn only(store: &Store) -> Arc<Endpoint> {
    Arc::clone(&store.snapshot().endpoints()[0])
}

fn pass(clock: &Clock, seconds: f64) {
    clock.set(clock.elapsed() + Duration::from_secs_f64(seconds));
}

/// Seconds to the first token of so many tokens where nothing else is.
fn alone(model: &Model, endpoint: &Endpoint, tokens: u64) -> f64 {
    model.read().ttft(endpoint, tokens, &Reported::default())
}

/// Sends a request whose response comes in one piece, or hidden, after the time that its prompt takes at
/// this rate, and adds to the engine's histograms.
fn whole(
    model: &Arc<Model>,
    clock: &Clock,
    endpoint: &Endpoint,
    tokens: u64,
    rate: f64,
    is_stream: bool,
    times: &mut EngineTimes,
) {
    let reported = Some(Reported::default());
    let mut booked = model.book(&Work { reported, ..Work::whole(endpoint, tokens, is_stream) });
    let seconds = 0.03 + tokens as f64 / rate;
    pass(clock, seconds + 0.2);
    booked.begins(false);
    booked.finish(Some(11));
    let add = |total: &mut Option<Total>, sum: f64, count: f64| {
        let total = total.get_or_insert_default();
        (total.sum, total.count) = (total.sum + sum, total.count + count);
    };
    add(&mut times.first_token, seconds, 1.0);
    add(&mut times.inter_token, 0.2, 10.0);
}

/// Answers so many prompts of different lengths, with a page of metrics after every fifth.
fn teach(
    model: &Arc<Model>,
    clock: &Clock,
    endpoint: &Endpoint,
    rate: f64,
    prompts: u64,
    is_stream: bool,
) -> EngineTimes {
    let mut times = EngineTimes { started: Some(1000.0), ..EngineTimes::default() };
    for number in 0..prompts {
        whole(model, clock, endpoint, 200 + 137 * (number * 7 % 23), rate, is_stream, &mut times);
        if number % 5 == 4 {
            endpoint.load().engine_times.set(times);
        }
    }
    times
}

#[test]
fn responses_that_come_whole_or_hidden_are_learned_from_engine_histograms() {
    for (wrong, is_stream) in [(3.0, false), (1.0 / 3.0, false), (3.0, true), (1.0 / 3.0, true)] {
        let (clock, model) = model();
        let store = store("a");
        teach(&model, &clock, &only(&store), RATE * wrong, 400, is_stream);
        for tokens in [500, 1500, 3000] {
            let ratio = alone(&model, &only(&store), tokens) / (0.03 + tokens as f64 / (RATE * wrong));
            assert!((ratio - 1.0).abs() < 0.15, "{wrong}, {tokens}: {ratio}");
        }
        let tpot = model.read().tpot(&only(&store), &TokenCounts::default(), &Reported::default());
        assert!((tpot / 0.02 - 1.0).abs() < 0.1, "a token takes 20 ms: {tpot}");
    }
}

#[test]
fn nothing_is_learned_where_an_engine_has_no_histograms() {
    let (clock, model) = model();
    let store = store("a");
    let before = alone(&model, &only(&store), 1000);
    let mut times = EngineTimes::default();
    (0..50).for_each(|_| whole(&model, &clock, &only(&store), 1000, RATE / 3.0, false, &mut times));
    assert_eq!(alone(&model, &only(&store), 1000), before);
}

/// A model that knows the first endpoint as slower than the second. The third, which should be
/// as fast, is new.
fn with_a_slow_one() -> (Clock, Arc<Model>, Store) {
    let (clock, model) = model();
    let store = Store::default();
    let named = |name: &str| EndpointSpec { name: name.to_owned(), ..spec("a") };
    store.replace(vec![spec("a"), named("other"), named("new")]);
    for number in 0..300 {
        for (position, rate) in [(0, RATE / 3.0), (1, RATE)] {
            let endpoint = Arc::clone(&store.snapshot().endpoints()[position]);
            let tokens = 200 + 137 * (number % 11);
            let reported = Some(Reported::default());
            let mut booked = model.book(&Work { reported, ..Work::whole(&endpoint, tokens, true) });
            pass(&clock, 0.03 + tokens as f64 / rate);
            booked.first_token();
            booked.finish(None);
        }
    }
    let slow = alone(&model, &only(&store), 2000);
    assert!(slow > 1.2 * new(&model, &store, 2000), "{slow}");
    (clock, model, store)
}

/// Seconds to the first token of so many tokens at the new endpoint.
fn new(model: &Model, store: &Store, tokens: u64) -> f64 {
    alone(model, &store.snapshot().endpoints()[2], tokens)
}

/// Makes this the first endpoint.
fn replace_first(store: &Store, spec: EndpointSpec) {
    let others = store.snapshot();
    let others = others.endpoints()[1..].iter().map(|endpoint| endpoint.spec().clone());
    store.replace(std::iter::once(spec).chain(others).collect());
}

#[test]
fn restarted_engine_is_learned_again() {
    let (clock, model, store) = with_a_slow_one();
    let endpoint = only(&store);
    let page = |started| EngineTimes { started: Some(started), ..EngineTimes::default() };
    let slow = alone(&model, &endpoint, 2000);
    let _under_way = model.book(&Work::whole(&endpoint, 5000, true));
    for started in [1000.0, 1000.0] {
        endpoint.load().engine_times.set(page(started));
        drop(model.book(&Work::whole(&endpoint, 0, true)));
        assert!(alone(&model, &endpoint, 2000) > slow, "the same process, with a prompt to compute");
    }
    endpoint.load().engine_times.set(page(2000.0));
    pass(&clock, 1.0);
    model.sweep(&store.snapshot(), 1);
    assert_eq!(alone(&model, &endpoint, 2000), new(&model, &store, 2000), "it is as new, and idle");
}

#[test]
fn new_address_or_pod_is_learned_again() {
    for change in ["address", "pod"] {
        let (_, model, store) = with_a_slow_one();
        let mut spec = spec("a");
        match change {
            "address" => spec.address = ([10, 0, 0, 9], 8000).into(),
            _ => spec.uid = Some("another".to_owned()),
        }
        let slot = only(&store).slot().number();
        replace_first(&store, spec);
        assert_ne!(only(&store).slot().number(), slot, "while somebody holds that of the one before");
        assert_eq!(alone(&model, &only(&store), 2000), new(&model, &store, 2000), "{change}");
        let _booked = model.book(&Work::whole(&only(&store), 1000, true));
        assert!(alone(&model, &only(&store), 0) > new(&model, &store, 0) + 0.5, "{change}");
    }
}

#[test]
fn label_changes_keep_the_learned_speed() {
    let (_, model, store) = with_a_slow_one();
    let slow = alone(&model, &only(&store), 2000);
    let mut labelled = spec("a");
    labelled.labels.insert("x".to_owned(), "y".to_owned());
    replace_first(&store, labelled);
    assert_eq!(alone(&model, &only(&store), 2000), slow);
}

#[test]
fn cached_responses_do_not_distort_learned_speeds() {
    let (clock, model) = model();
    let store = store("a");
    let endpoint = only(&store);
    // Half of what seems to be uncached was generated there, and is cached.
    for _ in 0..300 {
        let reported = Some(Reported::default());
        let mut booked = model.book(&Work { prompt: 4000, reported, ..Work::whole(&endpoint, 1000, true) });
        pass(&clock, 0.03 + 500.0 / RATE);
        ResponseObserver::first_token(&mut booked);
        let usage =
            Usage { prompt_tokens: Some(8000), completion_tokens: Some(5), cached_tokens: Some(7000) };
        ResponseObserver::response_complete(&mut booked, &usage, &mut Vec::new());
    }
    let rate = model.report().groups[0].prefill_throughput;
    assert!((rate / RATE - 1.0).abs() < 0.15, "tokens are not taken to be twice as fast: {rate}");
}

#[test]
fn predictions_are_compared_with_measured_times() {
    let (clock, model) = model();
    let store = store("a");
    let endpoint = only(&store);
    for number in 0..200 {
        let tokens = 200 + 137 * (number % 11);
        let reported = Some(Reported { running: 3.0, ..Reported::default() });
        let mut booked = model.book(&Work { reported, ..Work::whole(&endpoint, tokens, true) });
        pass(&clock, 0.03 + tokens as f64 / (RATE * 3.0));
        booked.first_token();
        pass(&clock, 0.4);
        booked.finish(Some(21));
    }
    let report = model.report();
    let [band] = report.prediction.ttft[..] else { panic!("{report:?}") };
    // Three of the eight requests that count as many while no more were seen.
    assert_eq!((band.decile, band.predictions), (3, 200));
    assert!(band.median_error < 0.1 && band.p90_coverage > 0.8, "{band:?}");
    let [band] = report.prediction.tpot[..] else { panic!("{report:?}") };
    assert!(band.median_error < 0.05, "{band:?}");
    let ratio = report.groups[0].throughput_ratio.unwrap();
    assert!((ratio / 3.0 - 1.0).abs() < 0.2 && report.groups[0].is_far(), "{ratio}");
    assert_eq!((report.groups[0].accelerator.as_str(), report.peak_prefill_throughput), ("a", RATE));
}

#[test]
fn a_configured_rate_counts_before_the_first_request() {
    let config = profile_of(&["type: expected-latency-scorer, parameters: {peakPrefillThroughput: 4000}"]);
    let pool = Pool::new(&config, labelled(&[&[][..]]));
    let peak = || Model::find(&pool.state).unwrap().report().peak_prefill_throughput;
    assert_eq!(peak(), 4000.0);
    let _reloaded = pool.reloaded(&config.replace("4000", "5000"));
    assert_eq!(peak(), 5000.0);
}
