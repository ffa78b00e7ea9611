//! Scrapes one endpoint, again and again.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

use crate::endpoints::{Clock, Endpoint, Store};

use super::client::{Buffer, Client};
use super::config::ScrapeConfig;
use super::exposition::Wanted;
use super::extraction::Extraction;
use super::metrics::Counters;
use super::report::Log;
use super::request::Requests;
use super::schedule::{Schedule, backoff};
use super::times::TimesSpec;

/// State that the tasks of a source share.
pub(super) struct Source {
    pub(super) config: ScrapeConfig,
    pub(super) clock: Clock,
    pub(super) counters: Counters,
    /// Origin of the intervals of all endpoints.
    pub(super) origin: Instant,
    pub(super) buffer: Buffer,
    /// Metrics about the engine's process, if they are read.
    pub(super) state: Option<Wanted>,
    /// Notified of every page that was read.
    pub(super) store: Arc<Store>,
}

/// Scrapes one endpoint until the task is aborted.
pub(super) async fn poll(endpoint: Arc<Endpoint>, source: Arc<Source>) {
    let Source { config, clock, counters, origin, buffer, state, store } = &*source;
    let Some(address) = address(&endpoint, config) else {
        let (endpoint, source) = (endpoint.id(), config.source_type);
        return warn!(%endpoint, source, "endpoint isn't scraped, as the address of its node is not known");
    };
    let mut log = Log::new(&endpoint, config.source_type, address);
    let mut client = Client::new(address, config.tls.clone(), config.max_body_bytes);
    let engine = config.engines.first().map(|engines| engines.of(&endpoint));
    // Takes tens of KiB, so it is made only where it is read by.
    let spec = OnceLock::new();
    let of_engine = || engine.and_then(|engine| TimesSpec::of(engine.name()));
    let more = |reads: bool| {
        let times = if reads { spec.get_or_init(of_engine).as_ref() } else { None };
        (times, state.as_ref())
    };
    let mut reads_times = config.times.load(Relaxed);
    let mut extractions = Extraction::all(&endpoint, config, more(reads_times), counters);
    let mut requests = Requests::new(config, address, &extractions);
    let schedule = Schedule::new(*origin, config.interval, endpoint.slot().number());
    let mut failures = 0_u32;
    let mut next = schedule.after(Instant::now());
    loop {
        sleep_until(next).await;
        if config.times.load(Relaxed) != reads_times {
            // Another configuration learns latencies, or no longer does.
            reads_times = !reads_times;
            extractions = Extraction::all(&endpoint, config, more(reads_times), counters);
            requests = Requests::new(config, address, &extractions);
        }
        let sent = endpoint.load().sent();
        let mut feed = |piece: &[u8]| extractions.iter_mut().for_each(|extraction| extraction.feed(piece));
        let page = timeout(config.timeout, client.get(requests.next(), buffer, &mut feed)).await;
        let now = Instant::now();
        let now_ms = clock.at(now.into_std());
        let complete = match page.unwrap_or_else(|_| Err(client.timed_out(config.timeout))) {
            Ok(()) => {
                log.got_page(now);
                failures = 0;
                next = schedule.after(now);
                let finish =
                    |complete, extraction: &mut Extraction<'_>| extraction.finish(now, now_ms) & complete;
                let complete = extractions.iter_mut().fold(true, finish);
                if config.keeps_health {
                    endpoint.load().scrapes.succeeded();
                    endpoint.load().seen(sent);
                    endpoint.health().scrape_succeeded();
                    endpoint.health().page_read(endpoint.load());
                }
                store.loads_changed();
                complete
            }
            Err(error) => {
                extractions.iter_mut().for_each(Extraction::restart);
                counters.failed(error.reason());
                log.failed(&error, now);
                if config.keeps_health {
                    endpoint.load().scrapes.failed(client.connected() || error.is_of_tls(), now_ms);
                    if error.is_of_the_server() {
                        let is_theirs = address == endpoint.address();
                        endpoint.health().scrape_failed(is_theirs && error.is_refused());
                    }
                }
                failures = failures.saturating_add(1);
                next = now + backoff(config.interval, config.max_backoff, failures, rand::random());
                // A refusal may be of the query; nothing else says anything about that.
                !error.is_refusal()
            }
        };
        if requests.learn(complete) {
            log.gets_whole_pages();
        }
    }
}

/// Address of the page; `None` when that is on the endpoint's node, which is unknown.
fn address(endpoint: &Endpoint, config: &ScrapeConfig) -> Option<SocketAddr> {
    let address = endpoint.address();
    let ip = if config.on_node { endpoint.spec().node? } else { address.ip() };
    Some(SocketAddr::new(ip, config.port.unwrap_or(address.port())))
}
