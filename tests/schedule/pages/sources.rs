//! Every type of source, as a configuration declares it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use prometheus::Registry;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{AttributeId, EndpointSpec};
use usher::registry::Pipeline;
use usher::schedule::{SchedulerMetrics, State};
use usher::scrape::ScrapeConfig;

use crate::pages::pool::Pool;
use crate::pages::server::{Server, Step, ok, page};

fn build(config: &str) -> Pipeline {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let config = EndpointPickerConfig::parse(config).unwrap();
    Pipeline::build(Some(&config), true, &metrics, &State::default()).unwrap()
}

/// Scrape settings of the first source of a configuration.
fn config(pipeline: &Pipeline) -> ScrapeConfig {
    let source = &pipeline.sources[0];
    let tick = Duration::from_millis(50);
    ScrapeConfig::new(&source.params, tick, source.engines.clone(), source.models).unwrap()
}

fn on_node(name: &str, node: Option<IpAddr>) -> EndpointSpec {
    EndpointSpec { node, ..EndpointSpec::new(name, ([127, 0, 0, 1], 9)) }
}

#[tokio::test]
async fn gpus_of_a_pod_are_found_among_those_of_its_node() {
    let text = "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",namespace=\"default\",pod=\"pod-0\"} 20\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",namespace=\"default\",pod=\"pod-0\"} 75\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"2\",namespace=\"default\",pod=\"pod-1\"} 90\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"3\",namespace=\"other\",pod=\"pod-1\"} 99\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"4\",namespace=\"\",pod=\"\"} 5\n";
    let server = Server::start(move |_| ok(text)).await;
    let pipeline = build(&format!(
        "plugins:
- {{name: source, type: dcgm-data-source, parameters: {{port: {}, useNodeAddress: true, interval: 50ms}}}}
- {{name: gpus, type: dcgm-extractor}}
- {{type: endpoint-attribute-scorer, parameters: {{attributeKey: GPUUtilization, producer: dcgm-extractor, algorithm: {{type: linear_lower_is_better}}}}}}
dataLayer: {{injectDefaults: false, sources: [{{pluginRef: source, extractors: [{{pluginRef: gpus}}]}}]}}
",
        server.address.port()
    ));
    let attributes: Vec<(AttributeId, &str)> = pipeline.sources[0].engines[0].attributes().collect();
    let [(id, "GPUUtilization")] = attributes[..] else { panic!("{attributes:?}") };
    let node = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let specs =
        vec![on_node("pod-0", node), on_node("pod-1", node), on_node("pod-2", node), on_node("lost", None)];
    let pool = Pool::of(specs, config(&pipeline));
    server.more(9).await;
    let read = [0, 1, 2, 3].map(|index| {
        let load = pool.load(index);
        load.attribute(id).read_at_ms().map(|_| load.attribute(id).last())
    });
    assert_eq!(read, [Some(0.75), Some(0.9), Some(0.05), None], "who isn't on a known node isn't asked");
    assert_eq!(pool.load(0).scrapes.failures_in_a_row(), 0, "which is for the metrics of servers to say");
}

#[test]
fn gpu_exporters_have_their_own_port_and_pace() {
    let pipeline = build(
        "plugins: [{type: dcgm-data-source}, {type: dcgm-extractor}]
dataLayer: {injectDefaults: false, sources: [{pluginRef: dcgm-data-source, extractors: [{pluginRef: dcgm-extractor}]}]}
",
    );
    let config = config(&pipeline);
    assert_eq!((config.port, config.interval, config.on_node), (Some(9400), Duration::from_secs(1), false));
    assert_eq!((config.source_type, config.keeps_health), ("dcgm-data-source", false));
}

const MODELS: &str = "plugins: [{type: models-data-source, parameters: {interval: 50ms}}, {type: models-data-extractor}]
dataLayer: {injectDefaults: false, sources: [{pluginRef: models-data-source, extractors: [{pluginRef: models-data-extractor}]}]}
";

#[tokio::test]
async fn models_and_their_parents_are_read() {
    let text = r#"{"object":"list","data":[{"id":"llama","parent":null},{"id":"sql","parent":"llama"}]}"#;
    let server = Server::start(move |head| {
        assert!(head.starts_with("GET /v1/models HTTP/1.1\r\n"), "{head}");
        ok(text)
    });
    let server = server.await;
    let pool = Pool::start(&[server.address], config(&build(MODELS)));
    server.more(3).await;
    let models = pool.load(0).models.load_full().unwrap();
    let names: Vec<_> = models.iter().map(|model| (model.id.as_str(), model.parent.as_deref())).collect();
    assert_eq!(names, [("llama", None), ("sql", Some("llama"))]);
    assert_eq!(pool.counted("llm_d_epp_datalayer_extract_errors_total", "models-data-extractor"), 0);
}

#[tokio::test]
async fn invalid_model_list_is_an_extractor_error() {
    let (good, bad) = (r#"{"data":[{"id":"llama"}]}"#, r#"{"models":["sql"]}"#);
    let asked = AtomicUsize::new(0);
    let server = Server::start(move |_| ok(if asked.fetch_add(1, Relaxed) == 0 { good } else { bad })).await;
    let pool = Pool::start(&[server.address], config(&build(MODELS)));
    let errors =
        |pool: &Pool| pool.counted("llm_d_epp_datalayer_extract_errors_total", "models-data-extractor");
    pool.until("a bad list is counted", |pool| errors(pool) >= 2).await;
    let load = pool.load(0);
    assert_eq!(load.models.load_full().unwrap()[0].id, "llama", "what was known stays");
    assert!(errors(&pool) < server.requests.borrow().len() as u64, "and the first was good");
    assert_eq!(pool.counted("llm_d_epp_datalayer_poll_errors_total", "models-data-source"), 0);
}

fn selecting() -> ScrapeConfig {
    config(&build(
        "plugins: [{type: metrics-data-source, parameters: {selectMetrics: true}}, {type: core-metrics-extractor}]
dataLayer: {sources: [{pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}]}
",
    ))
}

const SELECTED: &str = "GET /metrics/?name%5B%5D=vllm:num_requests_waiting&name%5B%5D=vllm:num_requests_running\
    &name%5B%5D=vllm:kv_cache_usage_perc&name%5B%5D=vllm:cache_config_info\
    &name%5B%5D=vllm:lora_requests_info HTTP/1.1";

#[tokio::test]
async fn only_metrics_in_use_are_requested() {
    let server = Server::start(|_| ok(&page(3))).await;
    let pool = Pool::start(&[server.address], selecting());
    server.more(4).await;
    assert_eq!(pool.waiting(0), Some(3.0));
    assert!(
        server.requests.borrow().iter().all(|request| request == SELECTED),
        "{:?}",
        server.requests.borrow()
    );
}

#[tokio::test]
async fn server_without_metric_filters_is_asked_for_whole_pages() {
    let lacking = || ok("vllm:num_requests_waiting 9\n");
    let unknown = || vec![Step::Send(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n".to_vec())];
    let odd: [fn() -> Vec<Step>; 2] = [lacking, unknown];
    for odd in odd {
        let server =
            Server::start(move |head| if head.contains("name%5B%5D") { odd() } else { ok(&page(3)) }).await;
        let pool = Pool::start(&[server.address], selecting());
        server.more(4).await;
        assert_eq!(pool.waiting(0), Some(3.0));
        let requests = server.requests.borrow().clone();
        assert_eq!(requests[0], SELECTED);
        assert!(requests[1..].iter().all(|request| request == "GET /metrics HTTP/1.1"), "{requests:?}");
    }
}

#[tokio::test]
async fn every_rank_is_asked_at_its_own_port() {
    let (first, second) = (Server::start(|_| ok(&page(1))).await, Server::start(|_| ok(&page(2))).await);
    let rank = |rank: u32, server: &Server| EndpointSpec {
        pod: "pod".to_owned(),
        rank,
        ..EndpointSpec::new(format!("pod-rank-{rank}"), server.address)
    };
    let pool = Pool::of(vec![rank(0, &first), rank(1, &second)], ScrapeConfig::default());
    pool.until("both", |pool| (pool.waiting(0), pool.waiting(1)) == (Some(1.0), Some(2.0))).await;
}
