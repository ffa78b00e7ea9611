//! An engine: what it has, and what it shows of that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::job::Job;
use super::request::{EngineState, Output};
use super::transfers::{Receiving, SharingClock};
use crate::sim::config::EngineConfig;
use crate::sim::error::ConfigError;
use crate::sim::kv::{KvCache, KvChange};
use crate::sim::stats::Stats;

/// A simulated engine. Times are since its start and never go back: an earlier one
/// counts as the latest seen.
#[derive(Debug)]
pub struct Engine {
    pub(super) config: EngineConfig,
    pub(super) kv: KvCache,
    pub(super) running: Vec<Job>,
    pub(super) waiting: VecDeque<Job>,
    // Requests with their blocks, whose prompt is on its way, the first to be there first.
    pub(super) receiving: Vec<Receiving>,
    pub(super) sharing_clock: SharingClock,
    // Whether one of those waiting may find a place that was not there at the last try.
    pub(super) untried: bool,
    // `kv.releases()` when the first waiting request found too few blocks. Until blocks
    // are given back it is not tried again, which would cost a walk over its prompt.
    pub(super) starved_at: Option<u64>,
    pub(super) now: Duration,
    // End of the step in progress. While there is none nothing runs.
    pub(super) step_ends: Option<Duration>,
    pub(super) steps: u64,
    // Steps of prefill since one of decoding, of a model that keeps them apart.
    pub(super) prefill_steps: u32,
    // Requests taken so far.
    pub(super) arrivals: u64,
    pub(super) stats: Stats,
    pub(super) changes: u64,
    pub(super) outputs: Vec<Output>,
}

impl Engine {
    /// An idle engine.
    ///
    /// # Errors
    /// `ConfigError` if the configuration is not valid.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            kv: KvCache::new(config.num_blocks),
            running: Vec::new(),
            waiting: VecDeque::new(),
            receiving: Vec::new(),
            sharing_clock: SharingClock::default(),
            untried: false,
            starved_at: None,
            now: Duration::ZERO,
            step_ends: None,
            steps: 0,
            prefill_steps: 0,
            arrivals: 0,
            stats: Stats::new(config.max_model_len),
            changes: 0,
            outputs: Vec::new(),
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The KV cache.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// Keeps changes of the KV cache from now on.
    pub fn keep_kv_changes(&mut self) {
        self.kv.keep_changes();
    }

    /// Changes of the KV cache since this was called last.
    pub fn take_kv_changes(&mut self) -> Vec<KvChange> {
        self.kv.take_changes()
    }

    /// Forgets the content of the KV cache; see [`KvCache::forget`].
    pub fn forget_kv(&mut self) {
        self.kv.forget();
        self.changes += 1;
    }

    /// A number that grows whenever anything observable changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The latest time seen.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Current state of the engine.
    pub fn state(&self) -> EngineState {
        EngineState {
            running: self.running.len(),
            waiting: self.waiting.len() + self.receiving.len(),
            receiving: self.receiving.len(),
            kv_usage: self.kv.usage(),
            kv_used_blocks: self.kv.used(),
            kv_idle_blocks: self.kv.idle(),
        }
    }

    /// The adapters in the batch and those only waiting, each once, in order of arrival.
    pub fn adapters(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let running = distinct(self.running.iter(), &[]);
        let receiving = self.receiving.iter().map(|receiving| &receiving.job);
        let waiting = distinct(receiving.chain(&self.waiting), &running);
        (running, waiting)
    }

    /// Places in the batch that are not free.
    pub(super) fn taken(&self) -> usize {
        self.running.len() + self.receiving.len()
    }
}

/// Adapters of these requests but for `except`, each once, in their order.
pub(super) fn distinct<'a>(jobs: impl Iterator<Item = &'a Job>, except: &[Arc<str>]) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for adapter in jobs.filter_map(|job| job.request.adapter.as_ref()) {
        if !names.contains(adapter) && !except.contains(adapter) {
            names.push(adapter.clone());
        }
    }
    names
}
