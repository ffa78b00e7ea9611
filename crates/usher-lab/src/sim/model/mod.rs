//! The engine: continuous batching over a paged KV cache, as a state machine
//! without sockets and without a clock.
//!
//! The engine works in steps. By default a step takes one token of every request that decodes,
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
mod engine;
mod job;
mod linear;
mod models;
mod phases;
mod prefill_first;
mod receive;
mod request;
mod transfers;
mod work;

use std::time::Duration;

use super::kv::Lease;
use super::stats::Timeline;
use job::Job;
use usher_core::random::mix;
use work::Step;

pub use chunked_prefill::ChunkedPrefill;
pub use engine::Engine;
pub use models::{EngineModel, ModelKind};
pub use prefill_first::PrefillFirst;
pub use request::{EngineState, Finish, Kind, Output, Rejected, SimRequest};

impl Engine {
    /// Takes a request. It can enter the batch with the next step; [`advance`](Self::advance)
    /// begins it.
    ///
    /// # Errors
    /// `Rejected` if the request can never fit, or the batch and the queue are full.
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
        } else if self.taken() + self.waiting.len()
            >= self.config.max_running.saturating_add(self.config.max_waiting)
        {
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

    /// Time at which something happens next, if no request arrives before. `None`: idle.
    pub fn next_event_at(&self) -> Option<Duration> {
        if self.step_ends.is_some() {
            return self.step_ends;
        }
        if self.untried && !self.waiting.is_empty() {
            return Some(self.now);
        }
        self.next_received()
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

#[cfg(test)]
mod tests;
