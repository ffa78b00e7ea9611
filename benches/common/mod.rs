//! A picker without sockets: the built-in configuration over some endpoints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use prometheus::Registry;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator};
use usher::extproc::exchange::{Event, Exchange, Message, Shared, Step};
use usher::extproc::metrics::ExtProcMetrics;
use usher::extproc::reply::Reply;
use usher::flow::{Attempts, Dispatcher};
use usher::request::Parsers;
use usher::schedule::registry::Pipeline;
use usher::schedule::{Record, SchedulerMetrics};

/// What an exchange needs, and the server.
pub struct Picker {
    pub shared: Arc<Shared>,
    pub dispatcher: Arc<Dispatcher>,
}

impl Picker {
    /// A picker over `count` endpoints with fresh, different loads.
    pub fn new(count: u16) -> Self {
        let registry = Registry::new();
        let store = Arc::new(Store::default());
        let spec = |i: u16| EndpointSpec {
            namespace: "default".into(),
            name: format!("pod-{i}"),
            pod: format!("pod-{i}"),
            address: ([10, 0, (i >> 8) as u8, i as u8], 8000).into(),
            labels: Default::default(),
            rank: 0,
        };
        store.replace((0..count).map(spec).collect());
        let clock = Clock::start();
        for (index, endpoint) in store.snapshot().endpoints().iter().enumerate() {
            endpoint.load().waiting.set((index % 7) as f64, clock.now_ms());
            endpoint.load().kv_usage.set((index % 11) as f64 / 11.0, clock.now_ms());
        }
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let pipeline = Pipeline::build(None, false, &metrics).unwrap();
        let locator = Arc::new(StoreLocator::new(store, false));
        let hour = Duration::from_secs(3600);
        let dispatcher = Dispatcher::new(
            CachedLocator::new(locator, clock, hour, 16),
            pipeline.scheduler,
            clock,
            hour,
            Record::No,
            Arc::new(Attempts::register(&registry).unwrap()),
        );
        let shared = Shared {
            parsers: Parsers::new(&pipeline.parsers),
            max_request_body_bytes: 32 << 20,
            metrics: ExtProcMetrics::register(&registry, false).unwrap(),
        };
        Self { shared: Arc::new(shared), dispatcher: Arc::new(dispatcher) }
    }

    /// Runs a whole exchange: request headers, the body's chunks, an answer of one
    /// chunk. Returns the bytes that were sent upstream.
    pub fn run(&self, headers: &[(&str, &str)], chunks: &[Bytes], answer: &Bytes) -> usize {
        let mut exchange = Exchange::new(Arc::clone(&self.shared));
        let mut sent = 0;
        let headers = headers.iter().copied().collect();
        self.step(&mut exchange, Event::RequestHeaders { headers, end_of_stream: false }, &mut sent);
        for (index, chunk) in chunks.iter().enumerate() {
            let end_of_stream = index + 1 == chunks.len();
            self.step(&mut exchange, Event::RequestBody { data: chunk.clone(), end_of_stream }, &mut sent);
        }
        let event = Event::ResponseHeaders { event_stream: false, end_of_stream: false };
        self.step(&mut exchange, event, &mut sent);
        let event = Event::ResponseBody { data: answer.clone(), end_of_stream: true };
        self.step(&mut exchange, event, &mut sent);
        sent
    }

    fn step(&self, exchange: &mut Exchange, event: Event, sent: &mut usize) {
        let message = Message { event, modes: None, subset: None, served: None };
        if let Step::Decide(question) = exchange.on_message(message, Instant::now()).unwrap() {
            let result = match self.dispatcher.try_dispatch(&question.request, &question.subset) {
                Some(result) => result,
                None => self.dispatcher.dispatch(&question.request, &question.subset).now_or_never().unwrap(),
            };
            exchange.decided(result, Instant::now());
        }
        while let Some(reply) = exchange.next_reply() {
            if let Reply::RequestBody { data, .. } = reply {
                *sent += data.len();
            }
        }
    }
}

/// A completions body of about this many bytes, in chunks as Envoy sends them.
/// One character in a hundred is escaped, as in prose with line breaks.
pub fn completions(bytes: usize) -> Vec<Bytes> {
    let mut prompt = String::with_capacity(bytes);
    while prompt.len() < bytes {
        prompt.push_str("the quick brown fox jumps over the lazy dog and then it does so again until the line is over.\\n");
    }
    prompt.truncate(bytes - bytes % 96);
    let body = Bytes::from(format!(r#"{{"model":"m","max_tokens":16,"prompt":"{prompt}"}}"#));
    (0..body.len()).step_by(32 << 10).map(|at| body.slice(at..body.len().min(at + (32 << 10)))).collect()
}

/// The headers that a gateway shows for a completions request.
pub const HEADERS: [(&str, &str); 9] = [
    (":method", "POST"),
    (":path", "/v1/completions"),
    (":authority", "example.com"),
    (":scheme", "http"),
    ("content-type", "application/json"),
    ("user-agent", "client/1.0"),
    ("accept", "*/*"),
    ("x-forwarded-proto", "http"),
    ("x-request-id", "7e1b8d0c-6f3f-4f0e-9d0a-0d6f3a7e1b8d"),
];

/// An answer with usage.
pub fn answer() -> Bytes {
    Bytes::from_static(
        br#"{"id":"c-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"hello","finish_reason":"length"}],"usage":{"prompt_tokens":50,"completion_tokens":16,"total_tokens":66}}"#,
    )
}
