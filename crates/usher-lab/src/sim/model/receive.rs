//! Prompts that another engine computed.
//!
//! As in vLLM with a connector that pulls, a request takes the blocks of its whole prompt
//! first, and a place in the batch with them. What of the prompt is in the prefix cache
//! need not come; the rest takes its bytes by the speed of the link. With the step after
//! that the request is in the batch. Its first step computes the last token of the
//! prompt again, from which its first own token comes, and costs what decoding costs.

use std::time::Duration;

use super::engine::Engine;
use super::job::Job;
use super::transfers::Receiving;
use crate::sim::link::Transfer;

impl Engine {
    /// Begins to fetch the prompt of a request that has its blocks.
    pub(super) fn receive(&mut self, job: Job, transfer: Transfer) {
        self.go_on_receiving();
        let receiving = Receiving::new(job, transfer, &self.sharing_clock);
        let at = self.receiving.partition_point(|other| other.ends <= receiving.ends);
        self.receiving.insert(at, receiving);
        self.changes += 1;
    }

    /// Time at which the first prompt is there, or was.
    pub(super) fn next_received(&self) -> Option<Duration> {
        let first = self.receiving.first()?;
        if first.there {
            return Some(self.now);
        }
        Some(self.sharing_clock.reaches(first.ends, self.sharing()).max(self.now))
    }

    // Transfers under way that slow each other down.
    fn sharing(&self) -> usize {
        let under_way = self.receiving.iter().filter(|receiving| !receiving.there).count();
        if self.config.shared_link { under_way.max(1) } else { 1 }
    }

    /// Lets prompts come until now. Each that is there leaves its share to the others.
    pub(super) fn go_on_receiving(&mut self) {
        while let Some(next) = self.receiving.iter().position(|receiving| !receiving.there) {
            let sharing = self.sharing();
            let at = self.sharing_clock.reaches(self.receiving[next].ends, sharing);
            if at > self.now {
                self.sharing_clock.go_on(self.now, sharing);
                return;
            }
            self.sharing_clock.go_on(at, sharing);
            self.receiving[next].there = true;
        }
        self.sharing_clock.go_on(self.now, 1);
    }

    /// Puts those into the batch whose prompt is there by now.
    pub(super) fn join_received(&mut self) {
        self.go_on_receiving();
        let there = self.receiving.partition_point(|receiving| receiving.there);
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
