//! Records of requests that wait for their export.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::metrics::TraceMetrics;
use super::record::Record;

/// A bounded queue that never blocks: what doesn't fit is dropped and counted.
#[derive(Debug)]
pub(super) struct Queue {
    // Held for a push or a take.
    waiting: Mutex<Waiting>,
    /// Notified when there is enough for an export.
    enough: Notify,
    /// Most spans that wait.
    max_spans: usize,
    /// Spans of an export.
    batch: usize,
    metrics: TraceMetrics,
}

#[derive(Debug, Default)]
struct Waiting {
    records: VecDeque<Box<Record>>,
    spans: usize,
}

impl Queue {
    pub(super) fn new(max_spans: usize, batch: usize, metrics: TraceMetrics) -> Self {
        Self { waiting: Mutex::default(), enough: Notify::new(), max_spans, batch, metrics }
    }

    pub(super) fn metrics(&self) -> &TraceMetrics {
        &self.metrics
    }

    /// Adds a record, or drops it if its spans don't fit.
    pub(super) fn push(&self, record: Box<Record>) {
        let spans = record.spans();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.spans + spans > self.max_spans {
            drop(waiting);
            self.metrics.queue_full.inc_by(spans as u64);
            return;
        }
        let had_enough = waiting.spans >= self.batch;
        waiting.spans += spans;
        waiting.records.push_back(record);
        let has_enough = waiting.spans >= self.batch;
        drop(waiting);
        if has_enough && !had_enough {
            self.enough.notify_one();
        }
    }

    /// Takes the records of one export, at least one if there is any.
    #[expect(clippy::vec_box, reason = "records move as they came, and are large")]
    pub(super) fn take(&self) -> Vec<Box<Record>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut spans) = (Vec::new(), 0);
        while let Some(record) = waiting.records.front() {
            spans += record.spans();
            if spans > self.batch && !taken.is_empty() {
                break;
            }
            waiting.spans -= record.spans();
            taken.extend(waiting.records.pop_front());
        }
        taken
    }

    /// Returns `true` if there is enough for an export.
    pub(super) fn has_enough(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).spans >= self.batch
    }

    /// Waits until there is enough for an export.
    pub(super) async fn enough(&self) {
        while !self.has_enough() {
            self.enough.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures_util::FutureExt;
    use prometheus::Registry;

    use super::*;

    fn record() -> Box<Record> {
        // One span: it was refused before it was decided.
        Box::new(Record::for_test(Instant::now()))
    }

    #[test]
    fn spans_beyond_the_queue_size_are_dropped_and_counted() {
        let queue = Queue::new(3, 2, TraceMetrics::register(&Registry::new()).unwrap());
        (0..5).for_each(|_| queue.push(record()));
        assert_eq!(queue.metrics().queue_full.get(), 2);
        assert_eq!([queue.take().len(), queue.take().len(), queue.take().len()], [2, 1, 0]);
        queue.push(record());
        assert_eq!((queue.take().len(), queue.metrics().queue_full.get()), (1, 2));
    }

    #[test]
    fn exporter_wakes_when_a_batch_is_full() {
        let queue = Queue::new(10, 2, TraceMetrics::register(&Registry::new()).unwrap());
        let mut enough = Box::pin(queue.enough());
        assert!(enough.as_mut().now_or_never().is_none());
        queue.push(record());
        assert!(enough.as_mut().now_or_never().is_none());
        queue.push(record());
        assert!(enough.as_mut().now_or_never().is_some());
    }
}
