//! The engine: continuous batching over a paged KV cache, as a state machine
//! without sockets and without a clock.
//!
//! It works in steps. By default a step takes one token of every request that decodes,
//! and prompt tokens of the others up to `max_batched_tokens` (chunked prefill, as in
//! vLLM's scheduler), first for the requests in the batch, then for those that it admits
//! in the order of arrival; [`EngineModel::PrefillFirst`] keeps the two apart. Blocks
//! present for a prompt's beginning are not computed again, but for the last token, whose
//! result is needed. A step takes what its [`EngineModel`] says times `1 ± jitter`, and its
//! tokens exist at its end. A request whose prompt is complete yields a token per step it is
//! in. When blocks run out, the last one admitted leaves the batch and is computed anew
//! later. Full blocks of prompts and of generated tokens can be shared from the step that
//! computes them.
//!
//! `batch` and `phases` put steps together; prompts that come from another
//! engine are in `receive`. Costs are in `linear`, `chunked_prefill` and `prefill_first`.

mod batch;
mod chunked_prefill;
mod cost;
mod draws;
mod linear;
mod phases;
mod prefill_first;
mod receive;
mod request;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::config::{ConfigError, EngineConfig};
use super::kv::{KvCache, Lease};
use super::mix;
use super::stats::{Stats, Timeline};
use cost::Step;
use receive::{Receiving, SharingClock};

pub use chunked_prefill::ChunkedPrefill;
pub use cost::{EngineModel, ModelKind};
pub use prefill_first::PrefillFirst;
pub use request::{EngineState, Finish, Kind, Output, Rejected, SimRequest};

#[derive(Debug)]
struct Job {
    request: SimRequest,
    // Requests that came before it.
    number: u64,
    arrived: Duration,
    // Set at the first admission and kept through preemptions, as vLLM reports them.
    admitted: Option<(Duration, u32)>,
    first_token: Duration,
    last_token: Duration,
    lease: Lease,
    // Tokens whose keys and values are in the cache.
    computed: u32,
    generated: u32,
    // Tokens that the step in progress computes.
    planned: u32,
    // Full blocks that are known by their hash, or need not be.
    published: usize,
    // Tokens up to which it needs no further block, and none of its blocks becomes full.
    ready_for: u32,
    // The prompt came from another engine, and was not lost since.
    received: bool,
}

impl Job {
    fn length(&self) -> u32 {
        self.request.prompt_tokens + self.generated
    }

    // The hashes of the blocks that need not be computed if they are cached. The last
    // token is always computed: the next one comes from it.
    fn reusable(&self, block_size: u32) -> &[u64] {
        let full = ((self.length() - 1) / block_size) as usize;
        &self.request.blocks[..full.min(self.request.blocks.len())]
    }

    // Whether its next token is all that it needs, its prompt being complete.
    fn decodes(&self) -> bool {
        self.length() - self.computed == 1 && (self.generated > 0 || self.received)
    }
}

/// A simulated engine. Times are since its start and never go back: an earlier one
/// counts as the latest seen.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    kv: KvCache,
    running: Vec<Job>,
    waiting: VecDeque<Job>,
    // Requests with their blocks, whose prompt is on its way, the first to be there first.
    receiving: Vec<Receiving>,
    sharing_clock: SharingClock,
    // Whether one of those waiting may find a place that was not there at the last try.
    untried: bool,
    // `kv.releases()` when the first waiting request found too few blocks. Until blocks
    // are given back it is not tried again, which would cost a walk over its prompt.
    starved_at: Option<u64>,
    now: Duration,
    // End of the step in progress. While there is none nothing runs.
    step_ends: Option<Duration>,
    steps: u64,
    // Steps of prefill since one of decoding, of a model that keeps them apart.
    prefill_steps: u32,
    // Requests taken so far.
    arrivals: u64,
    stats: Stats,
    changes: u64,
    outputs: Vec<Output>,
}

impl Engine {
    /// An idle engine.
    ///
    /// # Errors
    /// When the configuration is not valid.
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

    /// A number that grows whenever anything observable changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The latest time seen.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// What it is doing.
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

    /// Takes a request. It can enter the batch with the next step; [`advance`](Self::advance)
    /// begins it.
    ///
    /// # Errors
    /// When it can never fit, or when no room is left in the batch and the queue.
    pub fn arrive(&mut self, mut request: SimRequest, now: Duration) -> Result<(), Rejected> {
        self.run(now, false);
        request.prompt_tokens = request.prompt_tokens.max(1);
        request.output_tokens = request.output_tokens.max(1);
        if request.kind == Kind::Prefill {
            request.output_tokens = 1;
        }
        let tokens = request.prompt_tokens.saturating_add(request.output_tokens);
        request.blocks.truncate((tokens / self.config.block_size) as usize);
        let limit = self.config.context_limit();
        let refusal = if tokens > limit {
            Some(Rejected::TooLong { limit })
        } else if self.taken() + self.waiting.len() >= self.config.max_running + self.config.max_waiting {
            Some(Rejected::QueueFull)
        } else {
            None
        };
        self.changes += 1;
        if let Some(refusal) = refusal {
            self.stats.rejected += 1;
            return Err(refusal);
        }
        self.waiting.push_back(Job {
            request,
            number: self.arrivals,
            arrived: self.now,
            admitted: None,
            first_token: Duration::ZERO,
            last_token: Duration::ZERO,
            lease: Lease::default(),
            computed: 0,
            generated: 0,
            planned: 0,
            published: 0,
            ready_for: 0,
            received: false,
        });
        self.arrivals += 1;
        self.untried = true;
        if let EngineModel::PrefillFirst(_) = self.config.model {
            // It may go before the one that found too few blocks.
            self.starved_at = None;
        }
        Ok(())
    }

    /// Forgets a request whose client has left. The step in progress keeps its length.
    pub fn abort(&mut self, id: u64, now: Duration) {
        self.run(now, false);
        let job = if let Some(at) = self.running.iter().position(|job| job.request.id == id) {
            self.running.remove(at)
        } else if let Some(at) = self.waiting.iter().position(|job| job.request.id == id) {
            match self.waiting.remove(at) {
                Some(job) => job,
                None => return,
            }
        } else if let Some(at) = self.receiving.iter().position(|it| it.job.request.id == id) {
            self.go_on_receiving();
            self.receiving.remove(at).job
        } else {
            return;
        };
        self.kv.release(job.lease);
        self.untried = true;
        self.stats.aborted += 1;
        self.changes += 1;
    }

    /// When something happens next, if no request arrives before. `None`: idle.
    pub fn next_event_at(&self) -> Option<Duration> {
        if self.step_ends.is_some() {
            return self.step_ends;
        }
        if self.untried && !self.waiting.is_empty() {
            return Some(self.now);
        }
        self.next_received()
    }

    // Places in the batch that are not free.
    fn taken(&self) -> usize {
        self.running.len() + self.receiving.len()
    }

    /// Lets time pass up to and including `now`, and appends the tokens that exist by
    /// then to `outputs`, in the order of time.
    pub fn advance(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        self.run(now, true);
        outputs.append(&mut self.outputs);
    }

    // An arrival at the end of a step must be there when the next one is put together,
    // so it lets time pass only up to its own instant.
    fn run(&mut self, now: Duration, inclusive: bool) {
        while let Some(at) = self.next_event_at() {
            if at > now || (at == now && !inclusive) {
                break;
            }
            self.now = self.now.max(at);
            if self.step_ends.take().is_some() {
                self.finish_step();
            }
            self.begin_step();
        }
        self.now = self.now.max(now);
    }

    fn begin_step(&mut self) {
        let mut step = Step::new(self.config.max_batched_tokens);
        self.join_received();
        self.untried = match self.config.model {
            EngineModel::Linear | EngineModel::ChunkedPrefill(_) => self.plan_mixed(&mut step),
            EngineModel::PrefillFirst(model) => self.plan_phase(&mut step, model.max_prefill_steps),
        };
        if step.tokens() == 0 {
            return;
        }
        self.stats.tokens_per_step.observe(f64::from(step.tokens()));
        self.steps += 1;
        self.changes += 1;
        self.step_ends = Some(self.now + self.step_time(&step));
    }

    fn step_time(&self, step: &Step) -> Duration {
        let config = &self.config;
        let seconds = config.step_seconds(step);
        // 53 random bits make an even draw from 0..1.
        let draw = (mix(config.seed ^ mix(self.steps)) >> 11) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(seconds * (1.0 + config.jitter * (2.0 * draw - 1.0)))
    }

    fn finish_step(&mut self) {
        self.changes += 1;
        let Self { running, kv, stats, outputs, now, .. } = self;
        // Most requests had their last token at the same time.
        let mut since = Duration::MAX;
        let (mut gap, mut bucket) = (0.0, 0);
        running.retain_mut(|job| {
            job.computed += std::mem::take(&mut job.planned);
            if job.computed < job.length() {
                return true;
            }
            job.generated += 1;
            stats.generation_tokens += 1;
            let prompt = job.request.prompt_tokens;
            if job.generated == 1 {
                stats.prompt_tokens += u64::from(prompt);
                stats.time_to_first_token.observe((*now - job.arrived).as_secs_f64());
                job.first_token = *now;
            } else {
                if job.last_token != since {
                    since = job.last_token;
                    gap = (*now - since).as_secs_f64();
                    bucket = stats.inter_token.bucket(gap);
                }
                stats.inter_token.observe_in(bucket, gap);
            }
            job.last_token = *now;
            let finished = job.generated == job.request.output_tokens;
            let (admitted, cached) = job.admitted.unwrap_or((*now, 0));
            let (id, generated) = (job.request.id, job.generated);
            outputs.push(Output { id, at: *now, generated, cached_tokens: cached, finished });
            if finished {
                kv.release(std::mem::take(&mut job.lease));
                let (arrived, first_token) = (job.arrived, job.first_token);
                let times = Timeline { arrived, admitted, first_token, finished: *now };
                // The last token of a prompt is computed wherever the rest came from.
                let reused = if job.received { prompt - 1 } else { cached };
                stats.finish(prompt, reused, generated, times);
                stats.prefilled += u64::from(job.request.kind == Kind::Prefill);
                match job.request.finish {
                    Finish::Stop => stats.finished_stop += 1,
                    Finish::Length => {
                        stats.finished_length += 1;
                        stats.request_max_tokens.observe(f64::from(generated));
                    }
                }
            }
            !finished
        });
    }
}

fn distinct<'a>(jobs: impl Iterator<Item = &'a Job>, except: &[Arc<str>]) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for adapter in jobs.filter_map(|job| job.request.adapter.as_ref()) {
        if !names.contains(adapter) && !except.contains(adapter) {
            names.push(adapter.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests;
