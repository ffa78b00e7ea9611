//! Producers, from a configuration to the endpoints: their learning and their bookings.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use serde_json::{Value, json};
use usher::config::EndpointPickerConfig;
use usher::endpoints::health::Verdict;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, InFlightId, Store, StoreLocator, SubsetHint};
use usher::flow::{Attempts, Dispatcher, Policy, Routed};
use usher::metrics::render;
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, Served, State};

struct Pool {
    registry: Registry,
    state: State,
    store: Arc<Store>,
    dispatcher: Arc<Dispatcher>,
    counters: InFlightId,
}

impl Pool {
    /// Endpoints `pod-1`, `pod-2` and so on.
    fn new(config: &str, endpoints: u8) -> Self {
        Self::labelled(config, &vec![None; endpoints.into()])
    }

    /// Endpoints with these context lengths.
    fn labelled(config: &str, lengths: &[Option<&str>]) -> Self {
        let store = Arc::new(Store::default());
        let spec = |(index, length): (u8, &Option<&str>)| {
            let mut spec = EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index], 8000));
            let label = |length: &str| ("llm-d.ai/context-length-range".to_owned(), length.to_owned());
            spec.labels.extend(length.map(label));
            spec
        };
        store.replace((1..).zip(lengths).map(spec).collect());
        let (registry, state, clock) = (Registry::new(), State::default(), Clock::start());
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let config = EndpointPickerConfig::parse(config).unwrap();
        let Pipeline { scheduler, stages, .. } =
            Pipeline::build(Some(&config), false, &metrics, &state).unwrap();
        let policy = Policy { scheduler, stages, max_age: Duration::from_secs(2), record: Record::No };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(60), 16);
        let attempts = Arc::new(Attempts::register(&registry).unwrap());
        let dispatcher = Arc::new(Dispatcher::new(cached, policy, clock, attempts));
        let counters = state.in_flight("inflight-load-producer").unwrap().id();
        Self { registry, state, store, dispatcher, counters }
    }

    async fn send(&self, request: &Request) -> Routed {
        self.dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided().await.unwrap()
    }

    /// Tokens under way at each endpoint.
    fn tokens(&self) -> Vec<u64> {
        let of = |load: &usher::endpoints::Load| load.in_flight_of(self.counters).tokens();
        self.store.snapshot().endpoints().iter().map(|endpoint| of(endpoint.load())).collect()
    }

    #[track_caller]
    fn shows(&self, line: &str) {
        let text = render(&self.registry);
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

fn name(routed: &Routed) -> String {
    routed.decision().primary_endpoint().name().to_owned()
}

fn parsed(path: &str, flow: &str, body: &Value) -> Request {
    let headers: Headers = [(":path", path), ("x-llm-d-inference-fairness-id", flow)].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(body.to_string().into());
    parser.finish().unwrap()
}

fn completion(tokens: usize, flow: &str) -> Request {
    parsed("/v1/completions", flow, &json!({"model": "m", "prompt": "word".repeat(tokens)}))
}

fn images(urls: &[&str]) -> Request {
    let blocks: Vec<Value> =
        urls.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}})).collect();
    parsed("/v1/chat/completions", "", &json!({"model": "m", "messages": [{"content": blocks}]}))
}

const TOKEN_LOAD: &str = "plugins: [{type: token-load-scorer}]\n";

#[tokio::test]
async fn token_load_is_balanced_around_a_long_prompt() {
    let pool = Pool::new(TOKEN_LOAD, 2);
    let long = pool.send(&completion(100, "")).await;
    let mut routed = Vec::new();
    for _ in 0..10 {
        routed.push(pool.send(&completion(10, "")).await);
    }
    assert_eq!(pool.tokens(), [100; 2], "a long one here, ten short ones there");
    assert!(routed.iter().all(|routed| name(routed) != name(&long)));
    drop((long, routed));
    assert_eq!(pool.tokens(), [0; 2]);
}

#[tokio::test]
async fn an_image_is_booked_with_its_tokens() {
    let pool = Pool::new(TOKEN_LOAD, 1);
    let _routed = pool.send(&images(&["http://example.com/a.png", "http://example.com/b.png"])).await;
    assert_eq!(pool.tokens(), [450]);
}

#[tokio::test]
async fn in_flight_load_is_exported_by_flow() {
    let pool = Pool::new(TOKEN_LOAD, 1);
    let labels = |flow: &str| {
        format!(
            r#"{{endpoint_name="pod-1",fairness_id="{flow}",namespace="default",priority="0",producer_name="inflight-load-producer"}}"#
        )
    };
    let (one, mut two) = (pool.send(&completion(7, "gold")).await, pool.send(&completion(5, "gold")).await);
    let other = pool.send(&completion(3, "")).await;
    pool.shows(&format!("llm_d_epp_inflight_requests{} 2", labels("gold")));
    pool.shows(&format!("llm_d_epp_inflight_tokens{} 12", labels("gold")));
    pool.shows(&format!("llm_d_epp_inflight_tokens{} 3", labels("default-flow")));
    two.first_token();
    pool.shows(&format!("llm_d_epp_inflight_requests{} 2", labels("gold")));
    pool.shows(&format!("llm_d_epp_inflight_tokens{} 7", labels("gold")));
    drop((one, two, other));
    pool.shows(&format!("llm_d_epp_inflight_requests{} 0", labels("gold")));
    pool.store.replace(Vec::new());
    pool.state.sweep(&pool.store.snapshot(), 1);
    assert!(!render(&pool.registry).contains("llm_d_epp_inflight"));
}

#[tokio::test]
async fn in_flight_load_moves_to_the_serving_endpoint() {
    let pool = Pool::new(TOKEN_LOAD, 2);
    let mut routed = pool.send(&completion(5, "f")).await;
    let first = name(&routed);
    let other = if first == "pod-1" { "pod-2" } else { "pod-1" };
    routed.response_begins(&Served::By(format!("10.0.0.{}:8000", &other[4..])), Verdict::Good, true);
    for (endpoint, requests) in [(first.as_str(), 0), (other, 1)] {
        pool.shows(&format!(
            r#"llm_d_epp_inflight_requests{{endpoint_name="{endpoint}",fairness_id="f",namespace="default",priority="0",producer_name="inflight-load-producer"}} {requests}"#
        ));
    }
}

#[tokio::test]
async fn new_configuration_shares_the_series_of_producers() {
    let config = "
plugins:
- {name: one, type: inflight-load-producer}
- {name: two, type: inflight-load-producer}
- {type: token-load-scorer, parameters: {inFlightLoadProducerName: two}}
";
    let pool = Pool::new(config, 1);
    let routed = pool.send(&completion(5, "f")).await;
    for producer in ["one", "two"] {
        pool.shows(&format!(
            r#"llm_d_epp_inflight_tokens{{endpoint_name="pod-1",fairness_id="f",namespace="default",priority="0",producer_name="{producer}"}} 5"#
        ));
    }
    drop(routed);
}

const EMBEDDINGS: &str = "plugins: [{type: mm-embeddings-cache-scorer}]\n";

#[tokio::test]
async fn repeated_images_go_to_the_same_endpoint() {
    let pool = Pool::new(EMBEDDINGS, 8);
    let (cat, dog) = (images(&["http://cat"]), images(&["http://dog", "http://bird"]));
    let (first_cat, first_dog) = (name(&pool.send(&cat).await), name(&pool.send(&dog).await));
    for _ in 0..20 {
        assert_eq!(name(&pool.send(&cat).await), first_cat);
        assert_eq!(name(&pool.send(&dog).await), first_dog);
    }
    let plugin = r#"plugin_name="mm-embeddings-cache-producer",plugin_type="mm-embeddings-cache-producer""#;
    pool.shows(&format!(r#"llm_d_epp_encoder_cache_queries_total{{modality="image",{plugin}}} 63"#));
    pool.shows(&format!("llm_d_epp_encoder_cache_hit_ratio_sum{{{plugin}}} 40"));
    // Text asks for nothing.
    drop(pool.send(&completion(3, "")).await);
    pool.shows(&format!("llm_d_epp_encoder_cache_hit_ratio_count{{{plugin}}} 42"));
}

#[tokio::test]
async fn image_is_also_cached_at_the_serving_endpoint() {
    let pool = Pool::new(EMBEDDINGS, 2);
    let cat = images(&["http://cat"]);
    let mut routed = pool.send(&cat).await;
    let (first, other) = if name(&routed) == "pod-1" { ("pod-1", 2) } else { ("pod-2", 1) };
    routed.response_begins(&Served::By(format!("10.0.0.{other}:8000")), Verdict::Good, true);
    let served = format!("pod-{other}");
    let mut seen = Vec::new();
    for _ in 0..40 {
        seen.push(name(&pool.send(&cat).await));
    }
    assert!(seen.contains(&served) && seen.iter().any(|name| name == first), "{seen:?}");
}

#[tokio::test]
async fn a_small_cache_forgets() {
    let config = "
plugins:
- {name: mm-embeddings-cache-producer, type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: 3}}
- {type: mm-embeddings-cache-scorer}
";
    let pool = Pool::new(config, 1);
    let plugin = r#"plugin_name="mm-embeddings-cache-producer",plugin_type="mm-embeddings-cache-producer""#;
    for (url, found) in [("http://a", 0), ("http://a", 1), ("http://b", 1), ("http://a", 1), ("http://a", 2)]
    {
        drop(pool.send(&images(&[url])).await);
        pool.shows(&format!("llm_d_epp_encoder_cache_hit_ratio_sum{{{plugin}}} {found}"));
    }
}

#[tokio::test]
async fn prompt_goes_to_the_endpoint_for_its_length() {
    let lengths = [Some("0-100"), Some("101-1000"), Some("broken")];
    let score = "plugins: [{type: context-length-aware}]\n";
    let filter = "plugins: [{type: context-length-aware, parameters: {enableFiltering: true}}]\n";
    for config in [score, filter] {
        let pool = Pool::labelled(config, &lengths);
        for (tokens, endpoint) in [(1, "pod-1"), (100, "pod-1"), (101, "pod-2"), (1000, "pod-2")] {
            assert_eq!(name(&pool.send(&completion(tokens, "")).await), endpoint, "{tokens} {config}");
        }
    }
    let too_long = completion(1001, "");
    let (scored, filtered) = (Pool::labelled(score, &lengths), Pool::labelled(filter, &lengths));
    assert_eq!(name(&scored.send(&too_long).await), "pod-2", "the nearest");
    let refused = filtered
        .dispatcher
        .enter(&Arc::new(too_long.clone()), &SubsetHint::Missing)
        .decided()
        .await
        .unwrap_err();
    assert_eq!(refused.code.status(), 429);
}
