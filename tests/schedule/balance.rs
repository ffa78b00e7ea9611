//! Bookings of requests, and their release: whatever happens to requests, in whatever order,
//! against a plain account of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use usher::endpoints::health::Verdict;
use usher::endpoints::{Clock, Endpoint, InFlightId, SubsetHint};
use usher::flow::Routed;
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::latency::{Model, Reported};
use usher::schedule::{Served, State};

use crate::pool::{Pool, labelled};

/// Pairs have to share a rack; short prompts stay whole, long ones where that costs less.
/// Everything that books is there.
const CONFIG: &str = "
plugins:
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 64}
- type: disagg-profile-handler
  parameters:
    profiles: {prefill: compute, decode: respond}
    deciders: {prefill: prefix-based-pd-decider}
    pairing: joint
    constraintMode: Required
    constraintLayer: rack
- type: prefill-filter
- type: decode-filter
- type: expected-latency-scorer
- type: active-request-scorer
schedulingProfiles:
- name: compute
  plugins: [{pluginRef: prefill-filter}, {pluginRef: expected-latency-scorer}]
- name: respond
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
";

/// Tokens per second that endpoints are taken to compute.
const RATE: f64 = 15_928.0;
const ENDPOINTS: usize = 6;

fn pool(clock: &Clock) -> Pool {
    let at = |role, rack| [("llm-d.ai/role", role), ("topology.kubernetes.io/rack", rack)];
    let labels = [
        at("prefill", "a"),
        at("prefill", "a"),
        at("prefill", "b"),
        at("decode", "a"),
        at("decode", "b"),
        at("both", "b"),
    ];
    let labels: Vec<&[(&str, &str)]> = labels.iter().map(|labels| labels.as_slice()).collect();
    Pool::with_state(CONFIG, labelled(&labels), Arc::new(State::new(clock.clone())))
}

/// A prompt of its own.
fn request(number: usize, tokens: usize, stream: bool) -> Request {
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    let prompt = format!("{number:04}").repeat(tokens);
    parser.push(json!({"model": "m", "prompt": prompt, "stream": stream}).to_string().into());
    parser.finish().unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Pick {
        is_long: bool,
        stream: bool,
    },
    /// Among endpoints of which no two may work together.
    PickApart,
    Begins {
        request: usize,
        served: Option<usize>,
        is_stream: bool,
    },
    FirstBytes {
        request: usize,
    },
    Ends {
        request: usize,
    },
    /// The stream is over, complete or aborted.
    Drop {
        request: usize,
    },
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let served = proptest::option::of(0..=ENDPOINTS);
    prop_oneof![
        5 => any::<(bool, bool)>().prop_map(|(is_long, stream)| Step::Pick { is_long, stream }),
        1 => Just(Step::PickApart),
        4 => (any::<usize>(), served, any::<bool>())
            .prop_map(|(request, served, is_stream)| Step::Begins { request, served, is_stream }),
        3 => any::<usize>().prop_map(|request| Step::FirstBytes { request }),
        1 => any::<usize>().prop_map(|request| Step::Ends { request }),
        3 => any::<usize>().prop_map(|request| Step::Drop { request }),
        1 => (0u64..12_000).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// Plain account of one request.
#[derive(Clone, Debug)]
struct Plain {
    tokens: u64,
    /// Endpoint that its prompt waits at, the one that decodes as far as prompts go, and the one
    /// that responds.
    prefill: usize,
    decode: usize,
    primary: usize,
    /// Endpoint that a profile of its own picked to compute the prompt, if there is one.
    split: Option<usize>,
    waits: bool,
    begun: bool,
    first_token: bool,
}

impl Plain {
    fn of(routed: &Routed, tokens: u64) -> Self {
        let decision = routed.decision();
        let primary = decision.primary().picks[0] as usize;
        let split = decision.run("compute").map(|run| run.picks[0] as usize);
        let prefill = split.unwrap_or(primary);
        let (waits, begun, first_token) = (true, false, false);
        Self { tokens, prefill, decode: primary, primary, split, waits, begun, first_token }
    }

    fn moved(&mut self, to: usize) {
        self.primary = to;
        if self.waits && to != self.decode {
            if self.prefill == self.decode {
                self.prefill = to;
            }
            self.decode = to;
        }
    }
}

/// Requests and tokens at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    /// Whole requests, as the dispatcher books them.
    routed: i64,
    /// Requests and tokens, as the producer of what is in flight does.
    requests: u64,
    in_flight: u64,
    /// Tokens that are yet to be computed.
    backlog: u64,
}

fn sums<'a>(requests: impl Iterator<Item = &'a Plain>) -> [Sum; ENDPOINTS] {
    let mut sums = [Sum::default(); ENDPOINTS];
    for plain in requests {
        // In blocks of 64 tokens.
        let tokens = if plain.first_token { 0 } else { plain.tokens.div_ceil(64) * 64 };
        let primary = &mut sums[plain.primary];
        primary.routed += 1;
        primary.requests += 1;
        primary.in_flight += tokens;
        if let Some(prefill) = plain.split.filter(|_| !plain.first_token) {
            sums[prefill].requests += 1;
            sums[prefill].in_flight += tokens;
        }
        if plain.waits {
            sums[plain.prefill].backlog += plain.tokens;
        }
    }
    sums
}

/// The pool, and what of it the account is compared with.
struct Books {
    pool: Pool,
    endpoints: Vec<Arc<Endpoint>>,
    counters: InFlightId,
    model: Arc<Model>,
    /// A model that knows of no request.
    idle: Model,
}

impl Books {
    fn new(clock: &Clock) -> Self {
        let pool = pool(clock);
        let model = Model::of(&pool.state);
        let idle = Model::new(RATE, clock.clone());
        let counters = pool.state.in_flight("inflight-load-producer").unwrap().id();
        let endpoints = pool.store.snapshot().endpoints().to_vec();
        Self { pool, endpoints, counters, model, idle }
    }

    /// Compares everything; backlogs only where no time has passed, in which they shrink.
    fn check(&self, expected: [Sum; ENDPOINTS], has_backlogs: bool) {
        for (endpoint, expected) in self.endpoints.iter().zip(expected) {
            let load = endpoint.load();
            let counted = load.in_flight_of(self.counters);
            let got = (load.in_flight(), counted.requests(), counted.tokens());
            let name = endpoint.name();
            assert_eq!(got, (expected.routed, expected.requests, expected.in_flight), "{name}");
            // Two plugins book, and each request is there once.
            if has_backlogs {
                // As many requests are there for both models, so that they differ in tokens alone.
                let reported = Reported { running: 1000.0, ..Reported::default() };
                let seconds = |model: &Model| model.read().ttft(endpoint, 0, &reported);
                let backlog = (seconds(&self.model) - seconds(&self.idle)) * RATE;
                // Prompts of which nothing is seen are kept in nanoseconds.
                assert!((backlog - expected.backlog as f64).abs() < 0.01, "{name}: {backlog} {expected:?}");
            }
        }
    }
}

/// Does the steps, and says what of the account is true after each.
fn run(steps: Vec<Step>, passes: bool) {
    let clock = Clock::stopped();
    let books = Books::new(&clock);
    let mut requests: BTreeMap<usize, (Routed, Plain)> = BTreeMap::new();
    for (number, step) in steps.into_iter().enumerate() {
        let nth = |request: usize, requests: &BTreeMap<usize, (Routed, Plain)>| {
            let count = requests.len().max(1);
            requests.keys().nth(request % count).copied()
        };
        match step {
            Step::Pick { is_long, stream } => {
                let tokens = if is_long { 100 } else { 20 };
                let routed = books.pool.route(&request(number, tokens, stream)).unwrap();
                let plain = Plain::of(&routed, tokens as u64);
                assert!(is_long || plain.split.is_none(), "short prompts stay whole");
                requests.insert(number, (routed, plain));
            }
            Step::PickApart => {
                let apart = SubsetHint::from_entries(["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.5:8000"]);
                let refused = books.pool.route_within(&request(number, 100, true), &apart).unwrap_err();
                assert_eq!(refused.reason, Some("rejected-no-pair"));
            }
            Step::Begins { request, served, is_stream } => {
                let Some(key) = nth(request, &requests) else { continue };
                let Some((routed, plain)) = requests.get_mut(&key).filter(|(_, plain)| !plain.begun) else {
                    continue;
                };
                plain.begun = true;
                // The last one is not of the pool.
                let by = served.map(|served| Served::By(format!("10.0.0.{}:8000", served + 1)));
                routed.response_begins(&by.unwrap_or(Served::Unknown), Verdict::Good, is_stream);
                if let Some(to) = served.filter(|to| *to < ENDPOINTS) {
                    plain.moved(to);
                }
                plain.waits &= is_stream;
            }
            Step::FirstBytes { request } => {
                let Some(key) = nth(request, &requests) else { continue };
                let (routed, plain) = requests.get_mut(&key).unwrap();
                routed.first_token();
                (plain.first_token, plain.waits) = (true, false);
            }
            Step::Ends { request } => {
                let Some(key) = nth(request, &requests) else { continue };
                requests.get_mut(&key).unwrap().0.response_ends(&Usage::default(), 0);
            }
            Step::Drop { request } => {
                let Some(key) = nth(request, &requests) else { continue };
                requests.remove(&key);
            }
            Step::Pass { ms } => {
                if passes {
                    clock.set(clock.elapsed() + Duration::from_millis(ms));
                }
            }
        }
        books.check(sums(requests.values().map(|(_, plain)| plain)), !passes);
    }
    requests.clear();
    books.check([Sum::default(); ENDPOINTS], true);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn random_request_steps_book_the_right_endpoint(steps in proptest::collection::vec(step(), 0..50)) {
        run(steps, false);
    }

    #[test]
    fn bookings_are_released_after_late_random_steps(steps in proptest::collection::vec(step(), 0..50)) {
        run(steps, true);
    }
}

/// Every step at which a request may end, with and without another endpoint that serves.
#[test]
fn request_that_ends_at_any_step_leaves_no_booking() {
    for (is_long, stream) in [(true, true), (true, false), (false, true), (false, false)] {
        for served in [None, Some(0), Some(3), Some(4), Some(5), Some(ENDPOINTS)] {
            let whole = [
                Step::Pick { is_long, stream },
                Step::Begins { request: 0, served, is_stream: stream },
                Step::FirstBytes { request: 0 },
                Step::Ends { request: 0 },
            ];
            for length in 1..=whole.len() {
                run(whole[..length].to_vec(), false);
            }
        }
    }
}
