//! The thread that follows the events of engines.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;
use usher_core::endpoints::{Clock, Store};
use usher_plugins::KvEventsSource;

use super::driver::Driver;
use super::metrics::KvEventsMetrics;

/// A thread named `usher-kv-events`, until this is dropped.
#[derive(Debug)]
pub struct KvEventsThread {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl KvEventsThread {
    /// Follows the events of the endpoints in the store.
    ///
    /// # Errors
    /// `io::Error` if the system can't start another thread.
    pub fn start(
        source: KvEventsSource,
        store: Arc<Store>,
        clock: Clock,
        metrics: &KvEventsMetrics,
    ) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let numbers = metrics.of(&source.name);
        let stopped = stop.clone();
        let run = move || runtime.block_on(Driver::new(source, store, clock, numbers).run(stopped));
        let thread = std::thread::Builder::new().name("usher-kv-events".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for KvEventsThread {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It ends after the batch under way. A panic there was logged.
            let _ = thread.join();
        }
    }
}
