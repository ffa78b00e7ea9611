use super::*;
use crate::endpoints::health::ResponseStatus;
use crate::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator};
use crate::flow::{Attempts, Dispatcher, Policy};
use crate::memory::Kind;
use crate::request::rules::{ModelRewrite, RewriteRule, Rewrites, Rules, Target};
use crate::request::{ParserKind, Pieces};
use crate::schedule::{
    MaxScorePicker, PluginId, Profile, QueueScorer, Record, Scheduler, SchedulerMetrics,
    SingleProfileHandler, Stages,
};
use bytes::Bytes;
use futures_util::FutureExt;
use prometheus::Registry;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

mod decision_log;
mod first_token;
mod memory;
mod memory_properties;
mod order;
// Shared with others, which use more of it.
#[allow(dead_code)]
#[path = "../../../../tests/support/protos.rs"]
mod protos;
mod relay;
mod uploads;

const LIMIT: usize = 300_000;

/// An exchange with a real scheduler over one endpoint, or over none.
struct Harness {
    exchange: Exchange,
    rules: Arc<RuleBook>,
    dispatcher: Arc<Dispatcher>,
    store: Arc<Store>,
    registry: Registry,
}

impl Harness {
    fn new(endpoints: u8) -> Self {
        Self::of(endpoints, Arc::default(), &Arc::default())
    }

    fn with_stages(endpoints: u8, stages: Arc<Stages>) -> Self {
        Self::of(endpoints, stages, &Arc::default())
    }

    /// One with a memory budget.
    fn within(endpoints: u8, budget: &Arc<Budget>) -> Self {
        Self::of(endpoints, Arc::default(), budget)
    }

    /// One whose configuration has these parsers.
    fn with_parsers(endpoints: u8, parsers: &[ParserKind]) -> Self {
        Self::build(endpoints, Arc::default(), &Arc::default(), parsers)
    }

    fn of(endpoints: u8, stages: Arc<Stages>, budget: &Arc<Budget>) -> Self {
        let parsers = [ParserKind::OpenAi, ParserKind::VllmGrpc, ParserKind::PassThrough];
        Self::build(endpoints, stages, budget, &parsers)
    }

    fn build(endpoints: u8, stages: Arc<Stages>, budget: &Arc<Budget>, parsers: &[ParserKind]) -> Self {
        let registry = Registry::new();
        let store = Arc::new(Store::default());
        store.replace((1..=endpoints).map(endpoint).collect());
        let clock = Clock::start();
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let mut profile = Profile::builder("default", &metrics);
        profile.scorer(&PluginId::new("queue-scorer", "queue-scorer"), Arc::new(QueueScorer), 1.0);
        let profile = profile.picker(
            &PluginId::new("max-score-picker", "max-score-picker"),
            Arc::new(MaxScorePicker::new(NonZeroUsize::MIN)),
        );
        let handler = PluginId::new("single-profile-handler", "single-profile-handler");
        let scheduler = Scheduler::new(vec![profile], &handler, Arc::new(SingleProfileHandler), &metrics);
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(60), 16);
        let attempts = Arc::new(Attempts::register(&registry).unwrap());
        let max_age = Duration::from_secs(2);
        let policy = Policy { scheduler, stages, max_age, record: Record::No };
        let dispatcher = Arc::new(Dispatcher::new(cached, policy, clock, attempts));
        let rules = Arc::new(RuleBook::default());
        let shared = Shared {
            parsers: Parsers::new(parsers),
            max_request_body_bytes: LIMIT,
            budget: Arc::clone(budget),
            policy: dispatcher.policy().clone(),
            rules: Arc::clone(&rules),
            metrics: ExtProcMetrics::register(&registry, false).unwrap(),
            parsing: Parsing::new(&metrics),
            tracer: None,
            records: None,
        };
        Self { exchange: Exchange::new(Arc::new(shared)), rules, dispatcher, store, registry }
    }

    /// Sends a message, decides at once, and returns the replies.
    fn send(&mut self, event: Event) -> Result<Vec<Reply>, Violation> {
        self.send_message(message(event))
    }

    fn send_message(&mut self, message: Message) -> Result<Vec<Reply>, Violation> {
        self.send_at(message, Instant::now())
    }

    fn send_at(&mut self, message: Message, now: Instant) -> Result<Vec<Reply>, Violation> {
        if let Step::Decide(question) = self.exchange.on_message(message, now)? {
            self.decide(&question);
        }
        Ok(std::iter::from_fn(|| self.exchange.next_reply()).collect())
    }

    fn decide(&mut self, question: &DecisionRequest) -> Step {
        let result =
            self.dispatcher.enter(&question.request, &question.subset).decided().now_or_never().unwrap();
        self.exchange.decided(result, Instant::now())
    }

    fn in_flight(&self) -> i64 {
        self.store.snapshot().endpoints().iter().map(|e| e.load().in_flight()).sum()
    }

    fn metric(&self, line: &str) -> Option<f64> {
        let text = crate::metrics::render(&self.registry);
        let found = text.lines().find(|l| l.strip_prefix(line).is_some_and(|rest| rest.starts_with(' ')))?;
        found.rsplit(' ').next()?.parse().ok()
    }
}

fn endpoint(i: u8) -> EndpointSpec {
    EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000))
}

fn message(event: Event) -> Message {
    Message { event, modes: None, subset: None, served: Served::Unknown }
}

fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> Event {
    Event::RequestHeaders { headers: pairs.iter().copied().collect(), end_of_stream }
}

fn body(text: &str, end_of_stream: bool) -> Event {
    Event::RequestBody { data: Bytes::copy_from_slice(text.as_bytes()).into(), end_of_stream }
}

fn response_headers() -> Event {
    Event::ResponseHeaders {
        status: ResponseStatus::default(),
        event_stream: false,
        encoded: false,
        end_of_stream: false,
    }
}

fn response_body(text: &str, end_of_stream: bool) -> Event {
    Event::ResponseBody { data: Bytes::copy_from_slice(text.as_bytes()).into(), end_of_stream }
}

const POST: [(&str, &str); 2] = [(":path", "/v1/completions"), ("x-request-id", "r-1")];
/// A path whose bodies nobody reads.
const OTHER: [(&str, &str); 1] = [(":path", "/other")];
const PROMPT: &str = r#"{"model":"m","prompt":"hi"}"#;

/// Kind of each reply, with the size of body chunks; `!` ends a body.
fn kinds(replies: &[Reply]) -> Vec<String> {
    let body =
        |name: &str, data: &Pieces, end: bool| format!("{name}{}{}", data.len(), if end { "!" } else { "" });
    replies
        .iter()
        .map(|reply| match reply {
            Reply::RequestHeaders(_) => "headers".to_owned(),
            Reply::RequestBody { data, end_of_stream } => body("body", data, *end_of_stream),
            Reply::RequestBodyAsIs => "body-as-is".to_owned(),
            Reply::RequestTrailers => "trailers".to_owned(),
            Reply::ResponseHeaders(_) => "response-headers".to_owned(),
            Reply::ResponseBody { data, end_of_stream, .. } => body("response-body", data, *end_of_stream),
            Reply::ResponseBodyAsIs { .. } => "response-body-as-is".to_owned(),
            Reply::ResponseTrailers { .. } => "response-trailers".to_owned(),
            Reply::Immediate(rejection) => format!("immediate{}", rejection.code.status()),
        })
        .collect()
}

#[test]
fn a_body_may_end_by_flag_by_an_empty_message_or_by_trailers() {
    let whole = || body(PROMPT, true);
    let table: [(Vec<Event>, &[&str]); 5] = [
        (vec![whole()], &["headers", "body27!"]),
        (vec![body(PROMPT, false), body("", true)], &["headers", "body27!"]),
        (vec![body(PROMPT, false), Event::RequestTrailers], &["headers", "body27", "trailers"]),
        (vec![body(&PROMPT[..9], false), body(&PROMPT[9..], true)], &["headers", "body27!"]),
        (vec![body("", false), whole()], &["headers", "body27!"]),
    ];
    for (events, want) in table {
        let mut harness = Harness::new(1);
        assert!(harness.send(headers(&POST, false)).unwrap().is_empty());
        let replies: Vec<Reply> = events.into_iter().flat_map(|event| harness.send(event).unwrap()).collect();
        assert_eq!(kinds(&replies), want);
        assert_eq!(harness.in_flight(), 1);
    }
}

#[test]
fn rules_set_priority_and_model_and_are_counted() {
    let mut harness = Harness::new(1);
    let target = Target { model: "m-v2".to_owned(), weight: None };
    let rule = RewriteRule { models: Some(vec!["m".to_owned()]), targets: vec![target] };
    let object = ModelRewrite { name: "r".to_owned(), created: String::new(), rules: vec![rule] };
    let objectives = [("batch".to_owned(), -3)].into();
    harness.rules.replace(Rules { objectives, rewrites: Rewrites::new([&object]) });
    let mut post = POST.to_vec();
    post.push(("x-llm-d-inference-objective", "batch"));
    harness.send(headers(&post, false)).unwrap();
    assert_eq!(kinds(&harness.send(body(PROMPT, true)).unwrap()), ["headers", "body30!"]);
    let labels = r#"model_name="m",model_rewrite_name="r",target_model="m-v2""#;
    for family in
        ["llm_d_epp_model_rewrite_decisions_total", "inference_extension_model_rewrite_decisions_total"]
    {
        assert_eq!(harness.metric(&format!("{family}{{{labels}}}")), Some(1.0));
    }
    let labels = r#"fairness_id="default-flow",model_name="m",priority="-3",target_model_name="m-v2""#;
    assert_eq!(harness.metric(&format!("llm_d_epp_request_total{{{labels}}}")), Some(1.0));
    // What the client asked for is what it reads in the response.
    harness.send(response_headers()).unwrap();
    let replies = harness.send(response_body(r#"{"model":"m-v2","choices":[]}"#, true)).unwrap();
    let Some(Reply::ResponseBody { data, .. }) = replies.first() else { panic!("{replies:?}") };
    assert_eq!(data.len(), r#"{"model":"m","choices":[]}"#.len());
}

#[test]
fn duplicate_last_message_counts_once() {
    let mut harness = Harness::new(1);
    harness.send(headers(&POST, false)).unwrap();
    assert_eq!(kinds(&harness.send(body(PROMPT, true)).unwrap()), ["headers", "body27!"]);
    assert!(harness.send(body("hi\"}", true)).unwrap().is_empty());
    assert_eq!(kinds(&harness.send(response_headers()).unwrap()), ["response-headers"]);
}

#[test]
fn an_empty_body_is_one_empty_last_chunk() {
    let mut harness = Harness::new(1);
    assert_eq!(kinds(&harness.send(headers(&OTHER, false)).unwrap()), ["headers"]);
    assert_eq!(kinds(&harness.send(body("", true)).unwrap()), ["body0!"]);
}

#[test]
fn large_chunks_are_cut_and_only_the_last_ends_the_body() {
    let mut harness = Harness::new(1);
    harness.send(headers(&POST, false)).unwrap();
    let replies = harness.send(body(&(" ".repeat(129_973) + PROMPT), true)).unwrap();
    assert_eq!(kinds(&replies), ["headers", "body62000", "body62000", "body6000!"]);
    harness.send(response_headers()).unwrap();
    let replies = harness.send(response_body(&"y".repeat(62_001), true)).unwrap();
    assert_eq!(kinds(&replies), ["response-body62000", "response-body1!"]);
}

#[test]
fn requests_without_a_body_are_routed_by_headers() {
    let mut harness = Harness::new(1);
    let replies = harness.send(headers(&[(":path", "/v1/models")], true)).unwrap();
    assert_eq!(kinds(&replies), ["headers"]);
    let Reply::RequestHeaders(route) = &replies[0] else { panic!() };
    assert_eq!(route.destination, "10.0.0.1:8000");
    assert_eq!(route.request_id.as_ref().map(String::len), Some(36));
    assert_eq!(harness.metric("llm_d_epp_request_total"), None);
}

#[test]
fn refusals_have_the_status_of_their_cause() {
    let table: [(u8, &str, u16); 5] = [
        (0, PROMPT, 503),
        (1, "no healthy upstream", 400),
        (1, "{}", 400),
        (1, r#"{"prompt":"x"}"#, 400),
        (0, r#"{"prompt":"x"}"#, 400),
    ];
    for (endpoints, text, status) in table {
        let mut harness = Harness::new(endpoints);
        harness.send(headers(&POST, false)).unwrap();
        let replies = harness.send(body(text, true)).unwrap();
        assert_eq!(kinds(&replies), [format!("immediate{status}")], "{text}");
    }
    let mut harness = Harness::new(0);
    assert_eq!(kinds(&harness.send(headers(&POST, true)).unwrap()), ["immediate503"]);
}

#[test]
fn a_body_over_the_limit_is_refused_before_it_ends() {
    let mut harness = Harness::new(1);
    harness.send(headers(&POST, false)).unwrap();
    assert!(harness.send(body(&" ".repeat(LIMIT), false)).unwrap().is_empty());
    assert_eq!(kinds(&harness.send(body(" ", false)).unwrap()), ["immediate413"]);
    let error = "llm_d_epp_request_error_total{error_code=\"PayloadTooLarge\",fairness_id=\"default-flow\",model_name=\"\",priority=\"0\",target_model_name=\"\"}";
    assert_eq!(harness.metric(error), Some(1.0));
}

#[test]
fn overlarge_content_length_is_refused_on_the_headers() {
    let length = |length: &str, end| headers(&[POST[0], ("Content-Length", length)], end);
    let (most, more) = (LIMIT.to_string(), (LIMIT + 1).to_string());
    for too_large in [more.as_str(), &"9".repeat(40), &format!("000{more}")] {
        assert_eq!(kinds(&Harness::new(1).send(length(too_large, false)).unwrap()), ["immediate413"]);
    }
    for fine in [most.as_str(), "", "-1", "1e9", "many"] {
        assert!(Harness::new(1).send(length(fine, false)).unwrap().is_empty(), "{fine}");
    }
    // Without a body, or with one that nobody reads or that doesn't come to us, it says nothing.
    assert_eq!(kinds(&Harness::new(1).send(length(&more, true)).unwrap()), ["headers"]);
    let unread = headers(&[OTHER[0], ("content-length", &more)], false);
    assert_eq!(kinds(&Harness::new(1).send(unread).unwrap()), ["headers"]);
    let modes = Some(Modes { request: Mode::OneToOne, response: Mode::FullDuplex });
    let message = Message { modes, ..message(length(&more, false)) };
    assert_eq!(kinds(&Harness::new(1).send_message(message).unwrap()), ["headers"]);
}

#[test]
fn usage_and_duration_are_counted_when_the_response_ends() {
    let mut harness = Harness::new(1);
    harness.send(headers(&POST, false)).unwrap();
    harness.send(body(PROMPT, true)).unwrap();
    let running = "inference_objective_running_requests{model_name=\"m\"}";
    assert_eq!(harness.metric(running), Some(1.0));
    harness.send(response_headers()).unwrap();
    let text = r#"{"usage":{"prompt_tokens":7,"completion_tokens":10}}"#;
    harness.send(response_body(&text[..20], false)).unwrap();
    harness.send(response_body(&text[20..], true)).unwrap();
    let sum = |family: &str| harness.metric(&format!("{family}{{model_name=\"m\",target_model_name=\"m\"}}"));
    assert_eq!(sum("inference_objective_input_tokens_sum"), Some(7.0));
    assert_eq!(sum("inference_objective_output_tokens_sum"), Some(10.0));
    assert_eq!(sum("inference_objective_response_sizes_sum"), Some(text.len() as f64));
    assert_eq!(sum("inference_objective_request_sizes_sum"), Some(PROMPT.len() as f64));
    assert_eq!(sum("inference_objective_request_duration_seconds_count"), Some(1.0));
    assert_eq!(harness.metric(running), Some(0.0));
    assert_eq!(harness.in_flight(), 0, "the booking is back before the stream ends");
}

#[test]
fn aborted_response_counts_its_usage_and_releases_its_booking() {
    let mut harness = Harness::new(1);
    harness.send(headers(&POST, false)).unwrap();
    harness.send(body(PROMPT, true)).unwrap();
    harness.send(response_headers()).unwrap();
    harness.send(response_body(r#"{"usage":{"prompt_tokens":7}}"#, false)).unwrap();
    assert_eq!(harness.in_flight(), 1);
    let Harness { exchange, store, registry, .. } = harness;
    drop(exchange);
    assert_eq!(store.snapshot().endpoints()[0].load().in_flight(), 0);
    let text = crate::metrics::render(&registry);
    assert!(
        text.contains("inference_objective_input_tokens_sum{model_name=\"m\",target_model_name=\"m\"} 7")
    );
    assert!(!text.contains(
        "inference_objective_request_duration_seconds_count{model_name=\"m\",target_model_name=\"m\"} 1"
    ));
}

#[test]
fn the_booking_moves_to_the_endpoint_that_served() {
    let mut harness = Harness::new(2);
    harness.send(headers(&POST, false)).unwrap();
    let replies = harness.send(body(PROMPT, true)).unwrap();
    let Reply::RequestHeaders(route) = &replies[0] else { panic!() };
    let other: SocketAddr =
        if route.destination == "10.0.0.1:8000" { "10.0.0.2:8000" } else { "10.0.0.1:8000" }.parse().unwrap();
    harness
        .send_message(Message { served: Served::By(other.to_string()), ..message(response_headers()) })
        .unwrap();
    let snapshot = harness.store.snapshot();
    assert_eq!(snapshot.at(other.ip(), other.port()).unwrap().load().in_flight(), 1);
    assert_eq!(harness.in_flight(), 1);
}

#[test]
fn local_reply_of_the_gateway_cancels_the_decision() {
    let mut harness = Harness::new(1);
    harness.send(headers(&POST, false)).unwrap();
    let step = harness.exchange.on_message(message(body(PROMPT, true)), Instant::now()).unwrap();
    let Step::Decide(question) = step else { panic!() };
    assert!(harness.exchange.is_deciding());
    assert_eq!(kinds(&harness.send(response_headers()).unwrap()), ["response-headers"]);
    assert!(!harness.exchange.is_deciding());
    harness.decide(&question);
    assert_eq!(harness.exchange.next_reply(), None, "nobody waits for the destination any more");
    assert_eq!(harness.in_flight(), 0);
}

#[test]
fn early_response_is_read_by_the_api_of_its_path() {
    // path, tokens that are counted
    let table = [("/v1/completions", Some(7.0)), ("/tokenize", None), ("/v1/completions/render", None)];
    for (path, want) in table {
        let mut harness = Harness::new(1);
        harness.send(headers(&[(":path", path)], false)).unwrap();
        harness.send(response_headers()).unwrap();
        harness.send(response_body(r#"{"usage":{"prompt_tokens":7}}"#, true)).unwrap();
        let sum = "inference_objective_input_tokens_sum{model_name=\"\",target_model_name=\"\"}";
        assert_eq!(harness.metric(sum), want, "{path}");
    }
}

#[test]
fn outside_of_full_duplex_every_message_has_its_reply() {
    for mode in [Mode::None, Mode::OneToOne] {
        let mut harness = Harness::new(1);
        let modes = Some(Modes { request: mode, response: mode });
        let replies = harness.send_message(Message { modes, ..message(headers(&POST, false)) }).unwrap();
        assert_eq!(kinds(&replies), ["headers"], "the gateway waits for it before it sends a body");
        assert_eq!(kinds(&harness.send(body(PROMPT, false)).unwrap()), ["body-as-is"]);
        assert_eq!(kinds(&harness.send(Event::RequestTrailers).unwrap()), ["trailers"]);
        assert!(harness.exchange.on_message(message(body("x", true)), Instant::now()).is_err());
        assert_eq!(kinds(&harness.send(response_headers()).unwrap()), ["response-headers"]);
        assert_eq!(kinds(&harness.send(response_body("", false)).unwrap()), ["response-body-as-is"]);
        assert_eq!(kinds(&harness.send(response_body("x", true)).unwrap()), ["response-body-as-is"]);
        let name = if mode == Mode::None { "none" } else { "one-to-one" };
        let line =
            format!("usher_extproc_unsupported_body_mode_total{{direction=\"request\",mode=\"{name}\"}}");
        assert_eq!(harness.metric(&line), Some(1.0));
    }
}

#[test]
fn messages_out_of_order_are_violations() {
    let sequences: [Vec<Event>; 11] = [
        vec![body("x", false)],
        vec![Event::RequestTrailers],
        vec![response_body("x", false)],
        vec![Event::ResponseTrailers],
        vec![headers(&POST, false), headers(&POST, false)],
        vec![headers(&POST, false), body(PROMPT, true), body("x", false)],
        vec![headers(&POST, true), body("x", true)],
        vec![headers(&POST, false), body(PROMPT, true), Event::RequestTrailers],
        vec![response_headers(), response_headers()],
        vec![response_headers(), headers(&POST, false)],
        vec![response_headers(), response_body("", true), response_body("", true)],
    ];
    for events in sequences {
        let mut harness = Harness::new(1);
        let last = events.len() - 1;
        for (index, event) in events.into_iter().enumerate() {
            assert_eq!(harness.send(event.clone()).is_err(), index == last, "{index}: {event:?}");
        }
        assert_eq!(harness.metric("usher_extproc_protocol_violations_total"), Some(1.0));
    }
}
