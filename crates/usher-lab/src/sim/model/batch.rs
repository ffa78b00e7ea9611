//! Planning of the next step: tokens of the requests in the batch, and of those that
//! enter it.

use super::engine::{Engine, distinct};
use super::job::Job;
use super::models::EngineModel;
use super::request::Kind;
use super::work::Step;
use crate::sim::kv::{KvCache, Lease};

impl Engine {
    /// Plans a step of decoding and chunks of prompts, first for the requests in the batch.
    /// True if one had to leave it.
    pub(super) fn plan_mixed(&mut self, step: &mut Step) -> bool {
        let preempted = self.plan_running(step, |_| true);
        if !preempted {
            self.admit(step);
        }
        preempted
    }

    /// Plans the step for those requests in the batch that `belongs` says. True if one had
    /// to leave it.
    pub(super) fn plan_running(&mut self, step: &mut Step, belongs: impl Fn(&Job) -> bool) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() {
            let job = &mut self.running[at];
            if !belongs(job) {
                at += 1;
                continue;
            }
            let planned = (job.length() - job.computed).min(step.budget);
            if planned > 0 && !extend(&mut self.kv, job, planned, self.config.block_size) {
                self.preempt_last();
                preempted = true;
                continue;
            }
            let job = &self.running[at];
            match planned {
                0 => {}
                _ if job.decodes() => step.decode(job.length()),
                _ => step.prefill(job.computed, planned),
            }
            at += 1;
        }
        preempted
    }

    fn preempt_last(&mut self) {
        if let Some(mut job) = self.running.pop() {
            self.kv.release(std::mem::take(&mut job.lease));
            (job.computed, job.planned, job.published) = (0, 0, 0);
            if std::mem::take(&mut job.received) {
                // Whoever computed the prompt may have forgotten it by now.
                job.request.kind = Kind::Whole;
            }
            self.waiting.push_front(job);
            self.stats.preemptions += 1;
        }
    }

    /// Lets those in that wait, in their order, as far as there is room.
    pub(super) fn admit(&mut self, step: &mut Step) {
        if self.starved_at == Some(self.kv.releases()) {
            return;
        }
        let whole = match self.config.model {
            EngineModel::PrefillFirst(model) => Some(model),
            EngineModel::Linear | EngineModel::ChunkedPrefill(_) => None,
        };
        while step.budget > 0 && self.taken() < self.config.max_running {
            let Some(at) = self.next_admissible() else { break };
            let Some(mut job) = self.waiting.remove(at) else { break };
            let block_size = self.config.block_size;
            job.lease = self.kv.hold_prefix(job.reusable(block_size));
            job.published = job.lease.len() as usize;
            job.ready_for = 0;
            let cached = job.lease.len() * block_size;
            job.computed = cached;
            let missing = job.length() - cached;
            let planned = missing.min(step.budget);
            let next_step = whole.is_some() && planned < missing && step.prefilling > 0;
            let fits = !next_step
                && whole.is_none_or(|model| self.has_reserve(&job, model.reserve_ratio))
                && match (job.request.kind, whole) {
                    // Its blocks are known to others once they are here.
                    (Kind::Decode(_), _) => {
                        let prompt = job.request.prompt_tokens;
                        take_up_to(&mut self.kv, &mut job.lease, prompt, block_size)
                    }
                    (Kind::Whole | Kind::Prefill, None) => {
                        extend(&mut self.kv, &mut job, planned, block_size)
                    }
                    (Kind::Whole | Kind::Prefill, Some(_)) => {
                        let all = job.length();
                        take_up_to(&mut self.kv, &mut job.lease, all, block_size)
                            && extend(&mut self.kv, &mut job, planned, block_size)
                    }
                };
            if !fits {
                self.kv.release(std::mem::take(&mut job.lease));
                (job.computed, job.published) = (0, 0);
                self.waiting.insert(at, job);
                self.starved_at = (!next_step).then(|| self.kv.releases());
                break;
            }
            if let Kind::Decode(transfer) = job.request.kind {
                self.receive(job, transfer);
                continue;
            }
            if job.admitted.is_none() {
                job.admitted = Some((self.now, cached));
                self.stats.prefix_queries += u64::from(job.request.prompt_tokens);
                self.stats.prefix_hits += u64::from(cached);
            }
            step.prefill(cached, planned);
            self.running.push(job);
        }
    }

    // The first waiting request whose adapter has a place: others overtake those whose
    // adapter has none, as in vLLM.
    fn next_admissible(&self) -> Option<usize> {
        let first = self.waiting.front()?;
        if first.request.adapter.is_none() {
            return Some(0);
        }
        let receiving = self.receiving.iter().map(|receiving| &receiving.job);
        let loaded = distinct(self.running.iter().chain(receiving), &[]);
        self.waiting.iter().position(|job| match &job.request.adapter {
            None => true,
            Some(adapter) => loaded.len() < self.config.max_loras || loaded.contains(adapter),
        })
    }
}

// Takes the blocks for `planned` more tokens and makes full ones known.
fn extend(kv: &mut KvCache, job: &mut Job, planned: u32, block_size: u32) -> bool {
    let tokens = job.computed + planned;
    if tokens > job.ready_for {
        if !take_up_to(kv, &mut job.lease, tokens, block_size) {
            return false;
        }
        let known = job.request.blocks.len();
        let full = ((tokens / block_size) as usize).min(known);
        for hash in job.request.blocks.get(job.published..full).unwrap_or_default() {
            kv.publish(&mut job.lease, *hash);
        }
        job.published = job.published.max(full);
        let room = job.lease.len().saturating_mul(block_size);
        let next_full = (job.published as u32 + 1).saturating_mul(block_size) - 1;
        job.ready_for = if job.published < known { room.min(next_full) } else { room };
    }
    job.planned = planned;
    true
}

// Takes the blocks that are missing for so many tokens.
fn take_up_to(kv: &mut KvCache, lease: &mut Lease, tokens: u32, block_size: u32) -> bool {
    let wanted = tokens.div_ceil(block_size).saturating_sub(lease.len());
    kv.take(lease, wanted)
}
