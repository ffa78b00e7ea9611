//! The scraper as `usher serve` runs it.

use std::net::Ipv4Addr;
use std::sync::Arc;

use prometheus::Registry;
use usher::endpoints::{Clock, EndpointSpec, Store};
use usher::scrape::{ScrapeConfig, ScrapeMetrics, Scraper};

use crate::ages;

/// Scrapes these ports for as long as standard input wants it; the first ones live.
pub fn run(ports: &[u16], live: usize, select: bool) {
    let clock = Clock::start();
    let store = Arc::new(Store::default());
    let spec = |(index, port): (usize, &u16)| {
        EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::LOCALHOST, *port))
    };
    store.replace(ports.iter().enumerate().map(spec).collect());
    let metrics = ScrapeMetrics::register(&Registry::new()).unwrap();
    let snapshot = store.snapshot();
    let loads = snapshot.endpoints().iter().take(live).map(|endpoint| Arc::clone(endpoint.load())).collect();
    ages::watch(loads, clock.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = ScrapeConfig { select_metrics: select, ..ScrapeConfig::default() };
        let _scraper = Scraper::start(store, clock, config, &metrics);
        std::future::pending::<()>().await;
    });
}
