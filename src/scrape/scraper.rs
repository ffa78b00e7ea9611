//! Scrapes every endpoint of the pool in the background.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::endpoints::{Clock, Endpoint, Snapshot, Store};

use super::client::Buffer;
use super::config::ScrapeConfig;
use super::engine::Engines;
use super::metrics::ScrapeMetrics;
use super::poll::{Source, poll};
use super::state;

/// Running scrapes. Dropping it ends them.
#[derive(Debug)]
pub struct Scraper {
    stop: CancellationToken,
    supervisor: AbortOnDropHandle<()>,
}

impl Scraper {
    /// Starts to scrape the endpoints of a store and to follow its membership,
    /// on the current tokio runtime. Every source of metrics is a scraper.
    pub fn start(store: Arc<Store>, clock: Clock, config: ScrapeConfig, metrics: &ScrapeMetrics) -> Self {
        let interval = config.interval.max(ScrapeConfig::MIN_INTERVAL);
        let extractors = config.engines.iter().map(Engines::extractor_type);
        let counters = metrics.counters(config.source_type, extractors);
        let state = config.state.then(state::wanted);
        let source = Arc::new(Source {
            config: ScrapeConfig { interval, ..config },
            clock,
            counters,
            origin: Instant::now(),
            buffer: Buffer::default(),
            state,
            store: Arc::clone(&store),
        });
        let stop = CancellationToken::new();
        let supervisor = tokio::spawn(supervise(store, source, stop.clone()));
        Self { stop, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Ends all scrapes. Nothing is written once this returns.
    pub async fn shutdown(self) {
        self.stop.cancel();
        // An error would mean that the task is gone already, which is what is asked for.
        self.supervisor.await.unwrap_or_default();
    }
}

/// Keeps one task per endpoint of the store.
async fn supervise(store: Arc<Store>, source: Arc<Source>, stop: CancellationToken) {
    let mut membership = store.subscribe();
    let mut tasks = Tasks::default();
    loop {
        membership.mark_unchanged();
        tasks.follow(&store.snapshot(), &source).await;
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            changed = membership.changed() => if changed.is_err() { break },
        }
    }
    tasks.follow(&Snapshot::new(0, Vec::new()), &source).await;
}

#[derive(Default)]
struct Tasks {
    by_id: HashMap<Arc<str>, Task>,
}

struct Task {
    endpoint: Arc<Endpoint>,
    handle: AbortOnDropHandle<()>,
}

impl Tasks {
    /// Ends the tasks of endpoints that are gone or have changed, waits until
    /// they have, and starts those that are new.
    async fn follow(&mut self, members: &Snapshot, source: &Arc<Source>) {
        let current: HashMap<&Arc<str>, &Arc<Endpoint>> =
            members.endpoints().iter().map(|endpoint| (endpoint.id(), endpoint)).collect();
        let stays = |id: &Arc<str>, task: &mut Task| {
            current.get(id).is_some_and(|endpoint| Arc::ptr_eq(endpoint, &task.endpoint))
        };
        let ended: Vec<JoinHandle<()>> = self
            .by_id
            .extract_if(|id, task| !stays(id, task))
            .map(|(_, task)| task.handle.detach())
            .collect();
        ended.iter().for_each(JoinHandle::abort);
        for task in ended {
            // Cancelled; until then it might still write.
            task.await.unwrap_or_default();
        }
        for endpoint in members.endpoints() {
            self.by_id.entry(Arc::clone(endpoint.id())).or_insert_with(|| {
                let endpoint = Arc::clone(endpoint);
                let task = tokio::spawn(poll(Arc::clone(&endpoint), Arc::clone(source)));
                Task { endpoint, handle: AbortOnDropHandle::new(task) }
            });
        }
    }
}
