//! Prompts that another engine computed.
//!
//! As in vLLM with a connector that pulls, a request takes the blocks of its whole prompt
//! first, and a place in the batch with them. What of the prompt is in the prefix cache
//! need not come; the rest takes its bytes by the speed of the link. With the step after
//! that the request is in the batch. Its first step computes the last token of the
//! prompt again, from which its first own token comes, and costs what decoding costs.

use std::time::Duration;

use super::{Engine, Job};
use crate::sim::link::Transfer;

/// A request with its blocks, whose prompt is on its way.
#[derive(Debug)]
pub(super) struct Receiving {
    // `computed` is what was in the prefix cache.
    pub(super) job: Job,
    pub(super) ready_at: Duration,
    transfer: Transfer,
}

impl Receiving {
    // Tokens that come over the link.
    fn tokens(&self) -> u32 {
        self.job.request.prompt_tokens.saturating_sub(self.job.computed)
    }
}

impl Engine {
    /// Begins to fetch the prompt of a request that has its blocks.
    pub(super) fn receive(&mut self, job: Job, transfer: Transfer) {
        let mut receiving = Receiving { job, ready_at: self.now, transfer };
        receiving.ready_at += transfer.time(receiving.tokens());
        let at = self.receiving.partition_point(|other| other.ready_at <= receiving.ready_at);
        self.receiving.insert(at, receiving);
        self.changes += 1;
    }

    /// Puts those into the batch whose prompt is there by now.
    pub(super) fn join_received(&mut self) {
        let there = self.receiving.partition_point(|receiving| receiving.ready_at <= self.now);
        for receiving in self.receiving.drain(..there) {
            let (tokens, Receiving { mut job, transfer, .. }) = (receiving.tokens(), receiving);
            let prompt = job.request.prompt_tokens;
            self.stats.received += 1;
            let bytes = self.stats.received_bytes.get_mut(transfer.layer as usize);
            if let Some(bytes) = bytes {
                *bytes = bytes.saturating_add(transfer.bytes(tokens));
            }
            self.stats.prefix_queries += u64::from(prompt);
            self.stats.prefix_hits += u64::from(job.computed);
            job.admitted = Some((self.now, job.computed));
            job.computed = prompt - 1;
            job.received = true;
            self.running.push(job);
        }
    }
}
