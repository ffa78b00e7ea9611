//! Tasks that run queries periodically, and their results.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntCounterVec;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Server;
use crate::cluster::Backoff;
use crate::endpoints::Clock;

/// Longest interval of a query, however seldom its policy ticks, so that values are fresh. Servers scrape
/// about this often.
const SLOWEST: Duration = Duration::from_secs(15);

/// Longest pause after failures, unless the query's interval is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Concurrent queries.
const AT_ONCE: usize = 4;

/// Age of a valid result, in intervals, as one query may fail.
const INTERVALS: u32 = 3;

/// Interval of a query of a policy that ticks every `interval`.
fn every(interval: Duration) -> Duration {
    interval.min(SLOWEST)
}

/// Results of queries. Each query's task writes its entry; ticks read.
#[derive(Debug, Default)]
pub struct QueryResults {
    // Guards what was answered last, and when; `None` where there was no number. Held for a read or an
    // entry, never across an await.
    last: Mutex<HashMap<Arc<str>, Option<(f64, Duration)>>>,
}

impl QueryResults {
    fn last(&self) -> MutexGuard<'_, HashMap<Arc<str>, Option<(f64, Duration)>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Result of a query, for a policy that ticks every `interval`; `None` if absent or stale.
    pub fn number(&self, query: &str, interval: Duration, now: Duration) -> Option<f64> {
        let (value, at) = self.last().get(query).copied().flatten()?;
        (now.saturating_sub(at) <= every(interval) * INTERVALS).then_some(value)
    }

    /// Returns `true` if a query has no result yet, not even a failure.
    pub fn is_open(&self, query: &str) -> bool {
        !self.last().contains_key(query)
    }
}

/// Runs queries until dropped.
#[derive(Debug)]
pub struct QueryRunner {
    shared: Arc<Shared>,
    /// Queries, each with the shortest interval of its policies.
    queries: BTreeMap<Arc<str>, Duration>,
    tasks: JoinSet<()>,
    /// `true` while values are needed.
    wanted: watch::Sender<bool>,
}

#[derive(Debug)]
struct Shared {
    server: Server,
    clock: Clock,
    results: QueryResults,
    /// Count by result.
    asked: IntCounterVec,
    at_once: Semaphore,
}

impl QueryRunner {
    /// Client of this server, without queries yet.
    pub fn new(server: Server, clock: Clock, asked: IntCounterVec) -> Self {
        let (results, at_once) = (QueryResults::default(), Semaphore::new(AT_ONCE));
        let shared = Arc::new(Shared { server, clock, results, asked, at_once });
        Self { shared, queries: BTreeMap::new(), tasks: JoinSet::new(), wanted: watch::Sender::new(false) }
    }

    /// Results of the queries.
    pub fn results(&self) -> &QueryResults {
        &self.shared.results
    }

    /// Sets the queries, each with the interval of its policy. Must be called on a runtime.
    pub fn ask(&mut self, queries: BTreeMap<Arc<str>, Duration>) {
        if self.queries == queries {
            return;
        }
        self.tasks = JoinSet::new();
        self.shared.results.last().retain(|query, _| queries.contains_key(query));
        for (query, interval) in &queries {
            let (shared, query) = (Arc::clone(&self.shared), Arc::clone(query));
            self.tasks.spawn(shared.keep_asking(query, every(*interval), self.wanted.subscribe()));
        }
        self.queries = queries;
    }

    /// Runs queries only while `wanted`: replicas that don't plan send none.
    pub fn want(&self, wanted: bool) {
        self.wanted.send_if_modified(|now| std::mem::replace(now, wanted) != wanted);
    }
}

impl Shared {
    async fn keep_asking(
        self: Arc<Self>,
        query: Arc<str>,
        every: Duration,
        mut wanted: watch::Receiver<bool>,
    ) {
        let mut backoff = Backoff::new(every, every.max(LONGEST_PAUSE));
        // Errors logged since the last result.
        let mut logged: Vec<&'static str> = Vec::new();
        loop {
            if wanted.wait_for(|wanted| *wanted).await.is_err() {
                return;
            }
            let result = {
                let Ok(_turn) = self.at_once.acquire().await else { return };
                self.server.ask(&query).await
            };
            let pause = match result {
                Ok(value) => {
                    let response = Some((value, self.clock.elapsed()));
                    self.results.last().insert(Arc::clone(&query), response);
                    self.asked.with_label_values(&["number"]).inc();
                    if !std::mem::take(&mut logged).is_empty() {
                        info!(query = &*query, "Prometheus query recovered");
                    }
                    backoff.reset();
                    every
                }
                Err(error) => {
                    let label = error.label();
                    self.asked.with_label_values(&[label]).inc();
                    if !logged.contains(&label) {
                        warn!(query = &*query, %error, "Prometheus query returned no usable value");
                        logged.push(label);
                    }
                    let is_response = error.is_response();
                    let mut last = self.results.last();
                    let entry = last.entry(Arc::clone(&query)).or_default();
                    if is_response {
                        // The metric has no value now. An error of the server doesn't imply that.
                        *entry = None;
                        backoff.reset();
                        every
                    } else {
                        backoff.next(&mut rand::rng())
                    }
                }
            };
            sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_counts_for_three_intervals() {
        let s = Duration::from_secs;
        let results = QueryResults::default();
        assert!(results.is_open("q"));
        results.last().insert("q".into(), Some((4.5, s(100))));
        results.last().insert("none".into(), None);
        let table = [
            // interval, now, number
            (s(2), s(106), Some(4.5)),
            (s(2), Duration::from_millis(106_001), None),
            // However seldom a policy ticks, it is asked every 15 s.
            (s(1800), s(145), Some(4.5)),
            (s(1800), s(146), None),
            (s(15), s(99), Some(4.5)),
        ];
        for (interval, now, number) in table {
            assert_eq!(results.number("q", interval, now), number, "{interval:?} {now:?}");
        }
        assert_eq!((results.number("none", s(2), s(100)), results.is_open("none")), (None, false));
    }
}
