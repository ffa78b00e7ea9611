//! A simulated server and the scraper together: what the engine does is what the
//! picker knows.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use usher::endpoints::{Clock, EndpointSpec, Gauge, Load, Store};
use usher::scrape::{ScrapeConfig, ScrapeMetrics, Scraper};
use usher::sim::{Dialect, EngineConfig, SimConfig, start};

/// Sends a completion and doesn't read the response.
fn ask(address: SocketAddr, model: &str) -> TcpStream {
    let body = format!(r#"{{"model":"{model}","prompt":"{}","max_tokens":8}}"#, "word ".repeat(100));
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

/// Waits until the scraper has read what is wanted. Nothing announces a scrape, so
/// this looks again whenever the runtime comes round; the time is for a hang.
async fn until(what: &str, load: &Load, read: impl Fn(&Load) -> bool) {
    let look = async {
        while !read(load) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), look).await.unwrap_or_else(|_| panic!("{what}: {load:?}"));
}

#[tokio::test]
async fn scraped_metrics_match_the_engine_state() {
    let engine = EngineConfig {
        max_running: 2,
        // The first prompt takes half a second: time enough for the second to arrive before
        // a step begins that takes an hour, in which who runs goes on running.
        prefill_tokens_per_second: 250.0,
        decode_step: Duration::from_secs(3600),
        num_blocks: 1000,
        ..EngineConfig::default()
    };
    let config = SimConfig { loras: vec!["tuned".to_owned()], engine, ..SimConfig::default() };
    let sim = start(config, vec![TcpListener::bind("127.0.0.1:0").unwrap()]).await.unwrap();
    let address = sim.addresses()[0];
    let store = Arc::new(Store::default());
    store.replace(vec![EndpointSpec::new("sim-0", address)]);
    let metrics = ScrapeMetrics::register(&Registry::new()).unwrap();
    let scraper = Scraper::start(Arc::clone(&store), Clock::start(), ScrapeConfig::default(), &metrics);
    let load = Arc::clone(store.snapshot().endpoints()[0].load());

    until("an idle engine", &load, |load| load.scraped_at_ms().is_some()).await;
    assert_eq!((load.waiting.last(), load.running.last(), load.kv_usage.last()), (0.0, 0.0, 0.0));
    assert_eq!((load.block_size.last(), load.num_blocks.last()), (16.0, 1000.0));

    let _open: Vec<TcpStream> = (0..5).map(|_| ask(address, "tuned")).collect();
    until("five requests, two of them running", &load, |load| {
        (load.running.last(), load.waiting.last()) == (2.0, 3.0)
    })
    .await;
    assert!(load.kv_usage.last() > 0.0);
    let adapters = load.adapters.load_full().unwrap();
    assert_eq!(adapters.running, ["tuned"]);
    scraper.shutdown().await;
    sim.shutdown().await;
}

#[tokio::test]
async fn every_engine_is_read_by_its_metric_names() {
    // What an engine says nothing about has no reading.
    let all = [Some(2.0), Some(1.0), Some(16.0), Some(1000.0)];
    for (name, dialect) in Dialect::ALL {
        let engine = EngineConfig {
            max_running: 1,
            // A step takes an hour: who runs goes on running.
            decode_step: Duration::from_secs(3600),
            num_blocks: 1000,
            ..EngineConfig::default()
        };
        let config = SimConfig { dialect, engine, ..SimConfig::default() };
        let sim = start(config, vec![TcpListener::bind("127.0.0.1:0").unwrap()]).await.unwrap();
        let store = Arc::new(Store::default());
        let mut spec = EndpointSpec::new(name, sim.addresses()[0]);
        spec.labels.insert("llm-d.ai/engine-type".to_owned(), name.to_owned());
        store.replace(vec![spec]);
        let registry = Registry::new();
        let metrics = ScrapeMetrics::register(&registry).unwrap();
        let scraper = Scraper::start(Arc::clone(&store), Clock::start(), ScrapeConfig::default(), &metrics);
        let load = Arc::clone(store.snapshot().endpoints()[0].load());

        let _open: Vec<TcpStream> = (0..3).map(|_| ask(sim.addresses()[0], "any")).collect();
        until(name, &load, |load| load.waiting.last() == 2.0).await;
        let read = |gauge: &Gauge| gauge.read_at_ms().map(|_| gauge.last());
        let numbers = [&load.waiting, &load.running, &load.block_size, &load.num_blocks].map(read);
        let usage = read(&load.kv_usage);
        if dialect == Dialect::Triton {
            // Its page has a count of executions, which is no number of running requests.
            assert_eq!((numbers, usage), ([Some(2.0), None, None, None], None));
        } else {
            assert_eq!(numbers, all, "{name}");
            assert!(
                usage.is_some_and(|usage| (0.0..1.0).contains(&usage) && usage > 0.0),
                "{name}: {usage:?}"
            );
        }
        let page = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let complete = "llm_d_epp_datalayer_extract_errors_total{extractor_type=\"core-metrics-extractor\",source_type=\"metrics-data-source\"} 0";
        assert!(page.contains(complete), "{name}: {page}");
        scraper.shutdown().await;
        sim.shutdown().await;
    }
}

#[tokio::test]
async fn latency_histograms_are_read_only_when_used() {
    for (name, dialect) in Dialect::ALL {
        let engine = EngineConfig { decode_step: Duration::from_millis(1), ..EngineConfig::default() };
        let config = SimConfig { dialect, engine, ..SimConfig::default() };
        let sim = start(config, vec![TcpListener::bind("127.0.0.1:0").unwrap()]).await.unwrap();
        let store = Arc::new(Store::default());
        let mut spec = EndpointSpec::new(name, sim.addresses()[0]);
        spec.labels.insert("llm-d.ai/engine-type".to_owned(), name.to_owned());
        store.replace(vec![spec]);
        let metrics = ScrapeMetrics::register(&Registry::new()).unwrap();
        let load = Arc::clone(store.snapshot().endpoints()[0].load());
        let plain = Scraper::start(Arc::clone(&store), Clock::start(), ScrapeConfig::default(), &metrics);
        until(name, &load, |load| load.scraped_at_ms().is_some()).await;
        plain.shutdown().await;
        assert_eq!(load.engine_times.version(), 0, "{name}: nobody needs them");

        let _open: Vec<TcpStream> = (0..3).map(|_| ask(sim.addresses()[0], "any")).collect();
        let config = ScrapeConfig { times: Arc::new(true.into()), ..ScrapeConfig::default() };
        let scraper = Scraper::start(Arc::clone(&store), Clock::start(), config, &metrics);
        if dialect == Dialect::Triton || dialect == Dialect::TritonTensorrtLlm {
            until(name, &load, |load| load.scraped_at_ms().is_some()).await;
            assert_eq!(load.engine_times.version(), 0, "{name} has none");
        } else {
            let all = |load: &Load| {
                let times = load.engine_times.get();
                times.first_token.is_some_and(|first| first.count == 3.0 && first.sum > 0.0)
                    && times
                        .inter_token
                        .or(times.per_request)
                        .is_some_and(|tokens| tokens.count > 0.0 && tokens.sum > 0.0)
            };
            until(name, &load, all).await;
            assert!(load.engine_times.get().started.is_some_and(|started| started > 1e9), "{name}");
        }
        scraper.shutdown().await;
        sim.shutdown().await;
    }
}
