//! A pool of endpoints that is scraped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use usher::endpoints::{Clock, EndpointSpec, Load, Store};
use usher::scrape::{ScrapeConfig, ScrapeMetrics, Scraper};

pub struct Pool {
    pub store: Arc<Store>,
    pub registry: Registry,
    pub clock: Clock,
    _scraper: Scraper,
}

impl Pool {
    pub fn start(addresses: &[SocketAddr], config: ScrapeConfig) -> Self {
        let specs =
            addresses.iter().zip(0..).map(|(address, i)| EndpointSpec::new(format!("pod-{i}"), *address));
        Self::of(specs.collect(), config)
    }

    pub fn of(specs: Vec<EndpointSpec>, config: ScrapeConfig) -> Self {
        let store = Arc::new(Store::default());
        store.replace(specs);
        let (registry, clock) = (Registry::new(), Clock::start());
        let metrics = ScrapeMetrics::register(&registry).unwrap();
        let scraper = Scraper::start(Arc::clone(&store), clock.clone(), config, &metrics);
        Self { store, registry, clock, _scraper: scraper }
    }

    pub fn load(&self, index: usize) -> Arc<Load> {
        Arc::clone(self.store.snapshot().endpoints()[index].load())
    }

    pub fn waiting(&self, index: usize) -> Option<f64> {
        let load = self.load(index);
        load.waiting.read_at_ms().map(|_| load.waiting.last())
    }

    /// The sum of a counter's series that have this label value.
    pub fn counted(&self, name: &str, value: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let has = |metric: &&prometheus::proto::Metric| {
            metric.get_label().iter().any(|label| label.value() == value)
        };
        family.get_metric().iter().filter(has).map(|metric| metric.get_counter().get_value() as u64).sum()
    }

    pub fn failures(&self, reason: &str) -> u64 {
        self.counted("usher_scrape_failures_total", reason)
    }

    /// Waits until something is so. Nothing announces a scrape, so this looks again whenever
    /// the runtime comes round; the time is for a hang.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let look = async {
            while !is_so(self) {
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), look).await;
        assert!(ended.is_ok(), "{what}: {:?}", self.store.snapshot().endpoints()[0].load());
    }
}

/// Failures are over soon and tried again soon.
pub fn hurried() -> ScrapeConfig {
    ScrapeConfig { max_backoff: Duration::from_millis(50), ..ScrapeConfig::default() }
}
