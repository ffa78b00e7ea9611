//! Scraping real servers on loopback: what they say arrives, and what they do
//! to a scraper stays with them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use usher::config::{EndpointPickerConfig, Node};
use usher::endpoints::{AttributeId, Clock, Endpoint, EndpointSpec, Store};
use usher::registry::Pipeline;
use usher::schedule::{SchedulerMetrics, State};
use usher::scrape::params::CoreMetricsExtractorParams;
use usher::scrape::{Engine, EngineSpec, Engines, ScrapeConfig, ScrapeMetrics, Scraper};

/// Reaction of a server to a request.
#[derive(Clone)]
enum Does {
    Responds(Arc<str>),
    /// The same, without a length and in small pieces.
    Streams(Arc<str>),
    RespondsAndCloses(Arc<str>),
    Fails(u16),
    Compresses,
    Hangs,
    /// A piece of the page, and no more.
    Stalls(Arc<str>),
}

/// A model server of a test.
struct Server {
    address: SocketAddr,
    does: Arc<Mutex<Does>>,
    requests: watch::Receiver<usize>,
    open: watch::Receiver<usize>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    async fn start(does: Does) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let does = Arc::new(Mutex::new(does));
        let (counter, requests) = watch::channel(0);
        let (opened, open) = watch::channel(0);
        let connections = Arc::new(AtomicUsize::new(0));
        let (total, doing) = (Arc::clone(&connections), Arc::clone(&does));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                total.fetch_add(1, Relaxed);
                opened.send_modify(|open| *open += 1);
                let (counter, opened, doing) = (counter.clone(), opened.clone(), Arc::clone(&doing));
                tokio::spawn(async move {
                    let respond = service_fn(|request: Request<Incoming>| {
                        assert_eq!(request.uri().path(), "/metrics");
                        counter.send_modify(|count| *count += 1);
                        let does = doing.lock().unwrap().clone();
                        async move { Ok::<_, Infallible>(respond(does).await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), respond);
                    // A client that goes away is part of the tests.
                    connection.await.unwrap_or_default();
                    opened.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { address, does, requests, open, connections }
    }

    fn now(&self, does: Does) {
        *self.does.lock().unwrap() = does;
    }

    fn count(&self) -> usize {
        *self.requests.borrow()
    }

    /// Waits for more requests. The one before the last is then done with,
    /// as an endpoint has one scrape at a time.
    async fn more(&self, requests: usize) {
        let want = self.count() + requests;
        reached(self.requests.clone(), move |count| count >= want).await;
    }
}

async fn reached(mut state: watch::Receiver<usize>, done: impl FnMut(usize) -> bool) {
    let mut done = done;
    let wait = state.wait_for(|value| done(*value));
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("in time").unwrap();
}

type Body = BoxBody<Bytes, Infallible>;

fn pieces(page: &str) -> impl Iterator<Item = Result<Frame<Bytes>, Infallible>> + use<> {
    let pieces: Vec<Bytes> = page.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
    pieces.into_iter().map(|piece| Ok(Frame::data(piece)))
}

async fn respond(does: Does) -> Response<Body> {
    let full = |page: &str| Full::new(Bytes::copy_from_slice(page.as_bytes())).boxed();
    let response = Response::builder();
    match does {
        Does::Responds(page) => response.body(full(&page)),
        Does::Streams(page) => response.body(BodyExt::boxed(StreamBody::new(stream::iter(pieces(&page))))),
        Does::RespondsAndCloses(page) => response.header("connection", "close").body(full(&page)),
        Does::Fails(status) => response.status(status).body(full("vllm:num_requests_waiting 99\n")),
        Does::Compresses => response.header("content-encoding", "br").body(full("\u{1f}")),
        Does::Hangs => std::future::pending().await,
        Does::Stalls(page) => {
            let start = stream::iter(pieces(&page));
            let rest = stream::pending();
            response.body(BodyExt::boxed(StreamBody::new(futures_util::StreamExt::chain(start, rest))))
        }
    }
    .unwrap()
}

fn page(waiting: u32, running: u32) -> Arc<str> {
    format!(
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:kv_cache_usage_perc 0.5\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1\n\
         vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"sql\",waiting_lora_adapters=\"\"}} 5\n"
    )
    .into()
}

fn spec(name: &str, address: SocketAddr) -> EndpointSpec {
    EndpointSpec::new(name, address)
}

/// A pool under scraping.
struct Pool {
    store: Arc<Store>,
    scraper: Scraper,
    registry: Registry,
}

impl Pool {
    fn start(servers: &[&Server], config: ScrapeConfig) -> Self {
        let store = Arc::new(Store::default());
        let specs = servers.iter().zip(0..).map(|(server, i)| spec(&format!("pod-{i}"), server.address));
        store.replace(specs.collect());
        let registry = Registry::new();
        let metrics = ScrapeMetrics::register(&registry).unwrap();
        let scraper = Scraper::start(Arc::clone(&store), Clock::start(), config, &metrics);
        Self { store, scraper, registry }
    }

    fn endpoint(&self, index: usize) -> Arc<Endpoint> {
        Arc::clone(&self.store.snapshot().endpoints()[index])
    }

    /// The value of a counter, the same under both names.
    fn errors(&self, kind: &str) -> u64 {
        let families = self.registry.gather();
        let value = |prefix: &str| -> f64 {
            let name = format!("{prefix}_datalayer_{kind}_errors_total");
            let family = families.iter().find(|family| family.name() == name).unwrap();
            family.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum()
        };
        assert_eq!(value("llm_d_epp"), value("llm_d_inference_scheduler"));
        value("llm_d_epp") as u64
    }
}

/// Failures are over soon and tried again soon.
fn hurried() -> ScrapeConfig {
    let soon = Duration::from_millis(100);
    ScrapeConfig { timeout: soon, max_backoff: soon, ..ScrapeConfig::default() }
}

fn numbers(endpoint: &Endpoint) -> [f64; 5] {
    let load = endpoint.load();
    [&load.waiting, &load.running, &load.kv_usage, &load.block_size, &load.num_blocks]
        .map(|gauge| gauge.last())
}

#[tokio::test]
async fn scrapes_share_one_connection() {
    let server = Server::start(Does::Responds(page(3, 7))).await;
    let pool = Pool::start(&[&server], ScrapeConfig::default());
    server.more(2).await;
    let endpoint = pool.endpoint(0);
    assert_eq!(numbers(&endpoint), [3.0, 7.0, 0.5, 16.0, 100.0]);
    let adapters = endpoint.load().adapters.load_full().unwrap();
    assert_eq!((adapters.running.as_slice(), adapters.max), (["sql".to_owned()].as_slice(), 2));
    assert!(endpoint.load().scraped_at_ms().is_some());
    server.now(Does::Streams(page(4, 8)));
    server.more(3).await;
    assert_eq!(numbers(&endpoint)[..2], [4.0, 8.0]);
    assert_eq!(server.connections.load(Relaxed), 1);
    assert_eq!((pool.errors("poll"), pool.errors("extract")), (0, 0));
}

#[tokio::test]
async fn connection_closed_after_each_response_is_no_failure() {
    let server = Server::start(Does::RespondsAndCloses(page(3, 7))).await;
    let pool = Pool::start(&[&server], ScrapeConfig::default());
    server.more(4).await;
    assert_eq!(numbers(&pool.endpoint(0))[..2], [3.0, 7.0]);
    assert!(server.connections.load(Relaxed) >= 4);
    assert_eq!(pool.errors("poll"), 0);
}

#[tokio::test]
async fn hanging_server_delays_no_other_scrape() {
    let (good, hung) = (Server::start(Does::Responds(page(3, 7))).await, Server::start(Does::Hangs).await);
    let stalled = Server::start(Does::Stalls(page(9, 9))).await;
    let config = ScrapeConfig { timeout: Duration::from_secs(3600), ..ScrapeConfig::default() };
    let pool = Pool::start(&[&hung, &good, &stalled], config);
    good.more(10).await;
    assert_eq!((hung.count(), stalled.count()), (1, 1), "still at their first response");
    assert_eq!(numbers(&pool.endpoint(1))[..2], [3.0, 7.0]);
    assert_eq!(pool.endpoint(2).load().scraped_at_ms(), None, "half a page is no page");
}

#[tokio::test]
async fn a_scrape_ends_with_its_timeout_and_is_tried_again() {
    for does in [Does::Hangs, Does::Stalls(page(9, 9))] {
        let server = Server::start(does).await;
        let pool = Pool::start(&[&server], hurried());
        server.more(2).await;
        assert!(pool.errors("poll") >= 1);
        assert_eq!(pool.endpoint(0).load().scraped_at_ms(), None);
        server.now(Does::Responds(page(1, 2)));
        server.more(3).await;
        assert_eq!(numbers(&pool.endpoint(0))[..2], [1.0, 2.0]);
    }
}

#[tokio::test]
async fn invalid_page_keeps_the_old_readings() {
    let server = Server::start(Does::Responds(page(3, 7))).await;
    let pool = Pool::start(&[&server], ScrapeConfig { max_body_bytes: 1000, ..hurried() });
    server.more(2).await;
    let long: Arc<str> = (page(50, 50).to_string() + &"# filler\n".repeat(100)).into();
    let bad = [
        Does::Fails(500),
        Does::Fails(404),
        Does::Fails(302),
        Does::Compresses,
        Does::Responds(Arc::clone(&long)),
        Does::Streams(long),
    ];
    for (does, waiting) in bad.into_iter().zip(10_u16..) {
        let (before, errors) = (numbers(&pool.endpoint(0)), pool.errors("poll"));
        server.now(does);
        server.more(2).await;
        assert_eq!(numbers(&pool.endpoint(0)), before);
        assert!(pool.errors("poll") > errors);
        server.now(Does::Responds(page(waiting.into(), 1)));
        server.more(3).await;
        assert_eq!(numbers(&pool.endpoint(0))[..2], [f64::from(waiting), 1.0]);
    }
    assert_eq!(pool.errors("extract"), 0);
}

#[tokio::test]
async fn unreachable_server_fails_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let other = Server::start(Does::Responds(page(3, 7))).await;
    let pool = Pool::start(&[&other], ScrapeConfig::default());
    pool.store.replace(vec![spec("gone", address), spec("other", other.address)]);
    other.more(5).await;
    assert!(pool.errors("poll") >= 1);
    assert_eq!(numbers(&pool.endpoint(1))[..2], [3.0, 7.0]);
}

#[tokio::test]
async fn missing_metric_family_ages_alone() {
    let server = Server::start(Does::Responds(page(3, 7))).await;
    let pool = Pool::start(&[&server], ScrapeConfig::default());
    server.more(2).await;
    server.now(Does::Responds("vllm:num_requests_running 8\nvllm:num_requests_waiting NaN\n".into()));
    server.more(2).await;
    let endpoint = pool.endpoint(0);
    let load = endpoint.load();
    let read_at = [&load.waiting, &load.running, &load.kv_usage].map(|gauge| gauge.read_at_ms().unwrap());
    server.more(2).await;
    let [waiting, running, kv_usage] =
        [&load.waiting, &load.running, &load.kv_usage].map(|gauge| gauge.read_at_ms().unwrap());
    assert_eq!([waiting, kv_usage], [read_at[0], read_at[2]], "no reading, no new age");
    assert!(running > read_at[1]);
    assert_eq!(load.scraped_at_ms(), Some(running));
    assert_eq!(numbers(&endpoint)[..3], [3.0, 8.0, 0.5]);
    assert!(pool.errors("extract") >= 3);
    assert_eq!(pool.errors("poll"), 0);
}

#[tokio::test]
async fn new_address_of_an_endpoint_is_scraped() {
    let old = Server::start(Does::Responds(page(1, 1))).await;
    let new = Server::start(Does::Responds(page(2, 2))).await;
    let pool = Pool::start(&[&old], ScrapeConfig::default());
    old.more(2).await;
    pool.store.replace(vec![spec("pod-0", new.address)]);
    new.more(2).await;
    let left = old.count();
    new.more(4).await;
    assert_eq!(old.count(), left);
    assert_eq!(numbers(&pool.endpoint(0))[..2], [2.0, 2.0]);
}

#[tokio::test]
async fn scraping_follows_removed_and_added_endpoints() {
    let gone = Server::start(Does::Responds(page(1, 1))).await;
    let stays = Server::start(Does::Responds(page(2, 2))).await;
    let comes = Server::start(Does::Responds(page(3, 3))).await;
    let pool = Pool::start(&[&gone, &stays], ScrapeConfig::default());
    gone.more(2).await;
    let removed = pool.endpoint(0);
    pool.store.replace(vec![spec("pod-1", stays.address), spec("pod-2", comes.address)]);
    reached(gone.open.clone(), |open| open == 0).await;
    let (requests, scraped) = (gone.count(), removed.load().scraped_at_ms());
    comes.more(4).await;
    assert_eq!((gone.count(), removed.load().scraped_at_ms()), (requests, scraped));
    assert_eq!(numbers(&pool.endpoint(1))[..2], [3.0, 3.0]);
    assert_eq!(stays.connections.load(Relaxed), 1, "who stays isn't disturbed");
}

#[tokio::test]
async fn a_new_label_chooses_another_engine() {
    let server = Server::start(Does::Responds("mine 5\nvllm:num_requests_waiting 6\n".into())).await;
    let mine = EngineSpec {
        name: "mine".to_owned(),
        waiting: Some(usher::scrape::exposition::MetricSpec::named("mine")),
        ..EngineSpec::default()
    };
    let engines = vec![Engines::new("engine", Engine::new(EngineSpec::vllm()), vec![Engine::new(mine)])];
    let pool = Pool::start(&[&server], ScrapeConfig { engines, ..ScrapeConfig::default() });
    server.more(2).await;
    assert_eq!(numbers(&pool.endpoint(0))[0], 6.0);
    let mut labelled = spec("pod-0", server.address);
    labelled.labels.insert("engine".to_owned(), "mine".to_owned());
    pool.store.replace(vec![labelled]);
    server.more(3).await;
    assert_eq!(numbers(&pool.endpoint(0))[0], 5.0);
}

#[tokio::test]
async fn all_extractors_of_a_source_read_a_page_the_last_one_last() {
    let config = "
plugins:
- {name: poll, type: metrics-data-source}
- name: first
  type: core-metrics-extractor
  parameters: {engineConfigs: [{name: vllm, queuedRequestsSpec: queue, customMetrics: [{attributeKey: a, metricSpec: degrees}]}]}
- name: second
  type: core-metrics-extractor
  parameters: {engineConfigs: [{name: vllm, runningRequestsSpec: busy, customMetrics: [{attributeKey: a, metricSpec: watts}]}]}
- {name: third, type: core-metrics-extractor, parameters: {engineConfigs: [{name: vllm, runningRequestsSpec: absent}]}}
dataLayer:
  injectDefaults: false
  sources: [{pluginRef: poll, extractors: [{pluginRef: first}, {pluginRef: second}, {pluginRef: third}]}]
";
    let config = EndpointPickerConfig::parse(config).unwrap();
    let (metrics, state) = (SchedulerMetrics::register(&Registry::new()).unwrap(), State::default());
    let pipeline = Pipeline::build(Some(&config), false, &metrics, &state).unwrap();
    assert!(pipeline.notes.iter().all(|note| !note.contains("no effect, as")), "{:?}", pipeline.notes);
    let attributes = ["first", "second"].map(|producer| state.attribute(producer, "a").unwrap().id());
    let engines = pipeline.sources[0].engines.clone();
    // Each takes a page apart for itself, wherever it was cut.
    let page = "queue 3\nbusy 4\ndegrees 60\nwatts 700\n";
    let server = Server::start(Does::Streams(page.into())).await;
    let pool = Pool::start(&[&server], ScrapeConfig { engines, ..ScrapeConfig::default() });
    server.more(2).await;
    let endpoint = pool.endpoint(0);
    assert_eq!(numbers(&endpoint)[..2], [3.0, 4.0]);
    assert_eq!(attributes.map(|id| endpoint.load().attribute(id).last()), [60.0, 700.0]);
    server.now(Does::Streams("queue 3\nbusy 4\nabsent 5\n".into()));
    server.more(2).await;
    assert_eq!(numbers(&endpoint)[1], 5.0);
    assert!(pool.errors("extract") > 0, "the attributes are missing");
}

#[tokio::test]
async fn configuration_selects_the_metrics_of_each_engine() {
    let parameters = r#"{
        "engineLabelKey": "engine", "defaultEngine": "sglang",
        "engineConfigs": [
            {"name": "vllm", "queuedRequestsSpec": "queue{kind=\"own\"}",
             "cacheInfoSpec": "geometry", "cacheBlockSizeLabelName": "size", "cacheNumBlocksSpec": "blocks",
             "customMetrics": [{"attributeKey": "hot", "metricSpec": "degrees"}]},
            {"name": "triton", "runningRequestsSpec": "nv_inference_exec_count"}
        ]
    }"#;
    let params = CoreMetricsExtractorParams::decode(&Node::parse(parameters).unwrap()).unwrap();
    assert_eq!(params.attribute_keys().collect::<Vec<_>>(), ["hot"]);
    let id = AttributeId::new(5).unwrap();
    let engines = vec![params.engines(|key| (key == "hot").then_some(id.into()))];
    // What each engine has, under names of both.
    let page = "queue{kind=\"other\"} 90\nqueue{kind=\"own\"} 1\nqueue{kind=\"own\",rank=\"1\"} 2\n\
                vllm:num_requests_running 8\ngeometry{size=\"32\",num_gpu_blocks=\"9\"} 1\nblocks 70\n\
                degrees -3.5\ndegrees 9\n\
                sglang:num_queue_reqs 11\nsglang:num_running_reqs 12\nsglang:token_usage 0.25\n\
                sglang:cache_config_info{page_size=\"64\",num_pages=\"500\"} 1\n\
                trtllm_num_requests_waiting 21\nnv_inference_exec_count 31\n";
    let labels = [
        ("engine", "vllm"),
        ("engine", "unheard-of"),
        ("inference.networking.k8s.io/engine-type", "trtllm-serve"),
        ("engine", "triton"),
    ];
    let pool = Pool::start(&[], ScrapeConfig { engines, ..ScrapeConfig::default() });
    let (mut servers, mut specs) = (Vec::new(), Vec::new());
    for (label, engine) in labels {
        let server = Server::start(Does::Responds(page.into())).await;
        let mut spec = spec(engine, server.address);
        spec.labels.insert(label.to_owned(), engine.to_owned());
        servers.push(server);
        specs.push(spec);
    }
    pool.store.replace(specs);
    for server in &servers {
        server.more(2).await;
    }
    assert_eq!(numbers(&pool.endpoint(0)), [3.0, 0.0, 0.0, 32.0, 70.0]);
    assert_eq!(numbers(&pool.endpoint(1)), [11.0, 12.0, 0.25, 64.0, 500.0]);
    assert_eq!(numbers(&pool.endpoint(2)), [21.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(numbers(&pool.endpoint(3)), [0.0, 31.0, 0.0, 0.0, 0.0], "a counter, but it was asked for");
    let hot = [0, 1].map(|index| pool.endpoint(index).load().attribute(id).read_at_ms().is_some());
    assert_eq!((pool.endpoint(0).load().attribute(id).last(), hot), (-3.5, [true, false]));
    assert_eq!(pool.endpoint(0).load().running.read_at_ms(), None, "its engine has no such metric");
}

#[tokio::test]
async fn the_metrics_may_be_on_another_port() {
    let server = Server::start(Does::Responds(page(3, 7))).await;
    let store = Arc::new(Store::default());
    store.replace(vec![spec("pod-0", ([127, 0, 0, 1], 9).into())]);
    let config = ScrapeConfig { port: Some(server.address.port()), ..ScrapeConfig::default() };
    let metrics = ScrapeMetrics::register(&Registry::new()).unwrap();
    let _scraper = Scraper::start(Arc::clone(&store), Clock::start(), config, &metrics);
    server.more(2).await;
    assert_eq!(numbers(&store.snapshot().endpoints()[0])[..2], [3.0, 7.0]);
}

#[tokio::test]
async fn after_the_shutdown_nothing_is_scraped() {
    let server = Server::start(Does::Responds(page(3, 7))).await;
    let hung = Server::start(Does::Hangs).await;
    let pool = Pool::start(&[&server, &hung], ScrapeConfig::default());
    server.more(2).await;
    hung.more(1).await;
    let endpoint = pool.endpoint(0);
    pool.scraper.shutdown().await;
    let (requests, scraped) = (server.count(), endpoint.load().scraped_at_ms());
    for open in [server.open.clone(), hung.open.clone()] {
        reached(open, |open| open == 0).await;
    }
    // One may have been on its way to the server.
    assert!(server.count() <= requests + 1);
    assert_eq!(endpoint.load().scraped_at_ms(), scraped);
}
