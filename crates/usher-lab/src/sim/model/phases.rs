//! Steps that are either prefill or decoding, and the order in which requests are
//! admitted to those of prefill; see [`prefill_first`](super::prefill_first).

use super::engine::Engine;
use super::job::Job;
use super::prefill_first::CLIPPED_OUTPUT;
use super::work::Step;

/// Waiting requests from which on the order is that of arrival: looking up so many prompts
/// takes longer than it saves.
const LONG_QUEUE: usize = 128;

/// Later arrivals after which a request goes before those with longer cached prefixes.
const MOST_LATER: u64 = 256;

impl Engine {
    /// Plans a step of prefill if there is something for it, unless there were
    /// `max_prefill_steps` in a row and a request waits for its next token; otherwise one of
    /// decoding. True if a request had to leave the batch.
    pub(super) fn plan_phase(&mut self, step: &mut Step, max_prefill_steps: u32) -> bool {
        let decode_first = self.prefill_steps >= max_prefill_steps && self.running.iter().any(Job::decodes);
        if !decode_first {
            self.plan_prefill(step);
            if step.prefilling > 0 {
                self.prefill_steps = self.prefill_steps.saturating_add(1);
                return false;
            }
        }
        self.prefill_steps = 0;
        // One token each, however many there are.
        step.budget = u32::MAX;
        self.plan_running(step, Job::decodes)
    }

    fn plan_prefill(&mut self, step: &mut Step) {
        // A prompt of several steps has its blocks, and goes alone.
        if self.running.iter().any(|job| !job.decodes()) {
            self.plan_running(step, |job| !job.decodes());
        } else if !self.waiting.is_empty() && self.taken() < self.config.max_running {
            self.order_waiting();
            self.admit(step);
        }
    }

    fn order_waiting(&mut self) {
        if self.starved_at == Some(self.kv.releases()) {
            return;
        }
        let by_prefix = self.waiting.len() < LONG_QUEUE;
        let (arrivals, kv, block_size) = (self.arrivals, &self.kv, self.config.block_size);
        self.waiting.make_contiguous().sort_by_cached_key(|job| {
            let first = !by_prefix || arrivals - job.number > MOST_LATER;
            let cached = if first { usize::MAX } else { kv.matched(job.reusable(block_size)) };
            (std::cmp::Reverse(cached), job.number)
        });
    }

    /// Returns `true` if there is room for what a request lacks, and for this share of what
    /// it and those in the batch may yet generate. Alone it needs no room for responses.
    pub(super) fn has_reserve(&self, job: &Job, ratio: f64) -> bool {
        let block_size = self.config.block_size;
        let lacks = job.length().div_ceil(block_size).saturating_sub(job.lease.len());
        let free = self.kv.total() - self.kv.used();
        let others = self.running.iter().chain(self.receiving.iter().map(|receiving| &receiving.job));
        let expected: f64 = others.map(rest).sum();
        let reserve = if self.taken() == 0 { 0.0 } else { ratio * (expected + rest(job)) };
        f64::from(lacks) + reserve / f64::from(block_size) <= f64::from(free)
    }
}

// Tokens that a request may yet generate, as far as room is reserved for them.
fn rest(job: &Job) -> f64 {
    f64::from((job.request.output_tokens - job.generated).min(CLIPPED_OUTPUT))
}
