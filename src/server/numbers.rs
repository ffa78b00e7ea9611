//! Numbers that a pool and the process register.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus::Registry;

use crate::endpoints::CachedLocator;
use crate::extproc::connection_metrics::ConnectionMetrics;
use crate::extproc::spread::Threads;
use crate::flow::Dispatcher;
use crate::memory::{self, Budget};
use crate::metrics::{self, Timings};
use crate::observe::counters::{Kind, Number};
use crate::observe::endpoints::Attributes;
use crate::observe::pool;
use crate::registry::MetricsSource;
use crate::scrape::Engines;

/// Registers the numbers of the process.
pub(super) fn register_process(budget: &Arc<Budget>, registry: &Registry) -> prometheus::Result<()> {
    register_memory(budget, registry)?;
    metrics::register(
        registry,
        pool::build_info()?,
        Some(metrics::Legacy {
            name: "inference_extension_info",
            labels: &[("commit", "commit"), ("build_ref", "build_ref")],
        }),
    )?;
    let process = prometheus::process_collector::ProcessCollector::for_self();
    registry.register(Box::new(process))
}

/// Registers the numbers of a pool's cache of candidates.
pub(super) fn register_locator(dispatcher: &Arc<Dispatcher>, registry: &Registry) -> prometheus::Result<()> {
    use Kind::{Counter, Gauge};
    let numbers: [(&str, &str, Kind, fn(&CachedLocator) -> u64); 5] = [
        ("usher_locator_hits_total", "Candidate look-ups served from the cache.", Counter, |l| {
            l.metrics().hits()
        }),
        ("usher_locator_misses_total", "Candidate look-ups not in the cache.", Counter, |l| {
            l.metrics().misses.load(Relaxed)
        }),
        (
            "usher_locator_shared_total",
            "Candidate look-ups that shared the look-up of another request.",
            Counter,
            |l| l.metrics().shared.load(Relaxed),
        ),
        (
            "usher_locator_evicted_total",
            "Subsets of endpoints evicted from the cache before they expired.",
            Counter,
            |l| l.metrics().evicted.load(Relaxed),
        ),
        ("usher_locator_subsets", "Subsets of endpoints in the cache.", Gauge, |l| l.keys() as u64),
    ];
    for (name, help, kind, read) in numbers {
        let dispatcher = Arc::clone(dispatcher);
        let number = Number::new(name, help, kind, move || read(dispatcher.locator()))?;
        registry.register(Box::new(number))?;
    }
    let age = dispatcher.locator().metrics().age.clone();
    let help = "Age in seconds of cached candidates when a look-up finds them.";
    registry.register(Box::new(Timings::of("usher_locator_age_seconds", help, age)?))
}

fn register_memory(budget: &Arc<Budget>, registry: &Registry) -> prometheus::Result<()> {
    use Kind::{Counter, Gauge};
    use memory::Kind::{Bodies, Connections, PrefixIndex, Records, SmallPorts, Streams, Tokenizers, Unread};
    let numbers: [(&str, &str, Kind, fn(&Budget) -> u64); 15] = [
        (
            "usher_memory_budget_bytes",
            "Memory budget of the process in bytes; 0 without a budget.",
            Gauge,
            |budget| budget.process().unwrap_or(0),
        ),
        (
            "usher_memory_limit_bytes",
            "Bytes of the memory budget for everything that is counted against it; 0 without a budget.",
            Gauge,
            |budget| budget.limit().unwrap_or(0),
        ),
        (
            "usher_memory_base_bytes",
            "Bytes of the process that are not counted against the memory budget; 0 if not measured.",
            Gauge,
            |budget| budget.base().unwrap_or(0),
        ),
        ("usher_memory_bodies_bytes", "Budgeted bytes held by request bodies.", Gauge, |budget| {
            budget.used(Bodies)
        }),
        ("usher_memory_prefix_index_bytes", "Budgeted bytes held by prefix indexes.", Gauge, |budget| {
            budget.used(PrefixIndex)
        }),
        ("usher_memory_tokenizers_bytes", "Budgeted bytes held by tokenizers.", Gauge, |budget| {
            budget.used(Tokenizers)
        }),
        ("usher_memory_records_bytes", "Budgeted bytes held by records of decisions.", Gauge, |budget| {
            budget.used(Records)
        }),
        ("usher_memory_streams_bytes", "Budgeted bytes held by open streams.", Gauge, |budget| {
            budget.used(Streams)
        }),
        (
            "usher_memory_connections_bytes",
            "Budgeted bytes held by connections and their receive buffers.",
            Gauge,
            |budget| budget.used(Connections),
        ),
        (
            "usher_memory_unread_bytes",
            "Budgeted bytes received and not yet read by streams.",
            Gauge,
            |budget| budget.used(Unread),
        ),
        (
            "usher_connections_evicted_total",
            "Connections closed to free memory: idle ones, or those with the most unread data.",
            Counter,
            Budget::evicted,
        ),
        (
            "usher_memory_small_ports_bytes",
            "Budgeted bytes held by the health, KEDA, metrics and admin ports.",
            Gauge,
            |budget| budget.used(SmallPorts),
        ),
        (
            "usher_small_requests_ended_total",
            "Requests to the health, KEDA, metrics and admin ports ended to make room for others.",
            Counter,
            Budget::small_calls_ended,
        ),
        (
            "usher_memory_refused_total",
            "Requests rejected because the memory budget was used up.",
            Counter,
            Budget::refused,
        ),
        (
            "usher_memory_shed_bytes_total",
            "Bytes freed by rejecting waiting requests.",
            Counter,
            Budget::shed,
        ),
    ];
    for (name, help, kind, read) in numbers {
        let budget = Arc::clone(budget);
        registry.register(Box::new(Number::new(name, help, kind, move || read(&budget))?))?;
    }
    Ok(())
}

pub(super) fn register_connections(
    metrics: &Arc<ConnectionMetrics>,
    registry: &Registry,
) -> prometheus::Result<()> {
    let counts: [(&str, &str, fn(&ConnectionMetrics) -> &AtomicU64); 5] = [
        ("usher_connections_accepted_total", "Connections that a worker thread took.", |m| &m.accepted),
        (
            "usher_connections_refused_total",
            "Connections closed before they were open: too many were open or being opened.",
            |m| &m.refused,
        ),
        ("usher_connections_unopened_total", "Connections that did not start HTTP/2, or not in time.", |m| {
            &m.unopened
        }),
        (
            "usher_connections_broken_total",
            "Connections that broke HTTP/2, went away or no longer responded.",
            |m| &m.broken,
        ),
        (
            "usher_connections_goaway_total",
            "Connections ended with GOAWAY because of a client's protocol error. Logged once a minute per reason and address, 64 a minute at most.",
            |m| &m.goaway,
        ),
    ];
    for (name, help, count) in counts {
        let metrics = Arc::clone(metrics);
        let number = Number::new(name, help, Kind::Counter, move || count(&metrics).load(Relaxed))?;
        registry.register(Box::new(number))?;
    }
    Ok(())
}

/// Streams of the threads that serve connections.
pub(super) fn register_threads(threads: &Arc<Threads>, registry: &Registry) -> prometheus::Result<()> {
    let (open, total) = (Arc::clone(threads), Arc::clone(threads));
    let open = Number::each(
        "usher_worker_streams",
        "Open streams of a worker thread: requests in progress.",
        Kind::Gauge,
        "worker",
        move || open.open().into_iter().map(|count| count as u64).collect(),
    )?;
    let total = Number::each(
        "usher_worker_streams_total",
        "Streams that a worker thread took: requests and health checks.",
        Kind::Counter,
        "worker",
        move || total.total(),
    )?;
    registry.register(Box::new(open))?;
    registry.register(Box::new(total))
}

/// Attributes that extractors add to the numbers that every engine reports; each id once.
pub(super) fn attributes(sources: &[MetricsSource]) -> Attributes {
    let mut attributes = Attributes::new();
    for (id, name) in sources.iter().flat_map(|source| &source.engines).flat_map(Engines::attributes) {
        if attributes.iter().all(|(known, _)| *known != id) {
            attributes.push((id, name.to_owned()));
        }
    }
    attributes
}
