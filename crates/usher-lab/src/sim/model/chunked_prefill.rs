//! Chunked prefill mixed with decoding on a GPU that either computes or reads memory, as
//! in vLLM's V1 engine.
//!
//! A step takes, in seconds,
//!
//! ```text
//! overhead + request_overhead * requests
//!   + max(tokens * seconds_per_token + pairs * attention_seconds,
//!         weight_read + context * kv_read)
//! ```
//!
//! where `tokens` are all that the step computes, `pairs` is the sum of
//! `chunk * before + chunk² / 2` over the prompts' chunks, `before` being what of the
//! prompt is in the cache, and `context` the sum of the tokens of those that decode.
//! The maximum is the roofline model (Williams, Waterman and Patterson 2009); that decoding
//! reads memory while prefill computes, and that a chunk computes in the shadow of what
//! decoding reads, is from Sarathi-Serve (arXiv 2403.02310). The quadratic part is causal
//! attention (Vidur, arXiv 2405.05254, fits the same terms to measurements).
//!
//! A full engine's work per request follows from the mean step: `batch` requests, and
//! prompts at the rate at which responses end. Prompts begin in Poisson fashion, so that a
//! share of the steps has none and is as long as reading memory takes.

use super::work::{Mean, Room, Step};

/// Constants of the cost of a step, in seconds of at most a million.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChunkedPrefill {
    /// Per step: scheduling, sampling, launches. Drawn from 1 to 4 ms.
    pub overhead: f64,
    /// Per request in the step. Drawn from 10 to 60 µs.
    pub request_overhead: f64,
    /// Computing a token, attention aside. Drawn from 9,000 to 30,000 tokens per second.
    pub seconds_per_token: f64,
    /// Attention of a prompt's token to one token before it. Drawn from 0.5 to 3 ns, such
    /// that a prompt of 32,768 tokens costs 1.3 to 2.5 times what its tokens cost alone.
    pub attention_seconds: f64,
    /// Reading the weights once. Drawn from 6 to 14 ms.
    pub weight_read: f64,
    /// Reading the keys and values of a token. Drawn from 25 to 70 ns.
    pub kv_read: f64,
}

impl ChunkedPrefill {
    /// All constants that are times.
    pub(super) fn seconds_mut(&mut self) -> [&mut f64; 6] {
        let Self { overhead, request_overhead, seconds_per_token, attention_seconds, weight_read, kv_read } =
            self;
        [overhead, request_overhead, seconds_per_token, attention_seconds, weight_read, kv_read]
    }

    /// Seconds that a step takes.
    pub(super) fn seconds(&self, step: &Step) -> f64 {
        let requests = f64::from(step.prefilling + step.decoding);
        let compute =
            f64::from(step.tokens()) * self.seconds_per_token + step.attention_pairs * self.attention_seconds;
        let memory = self.weight_read + step.context as f64 * self.kv_read;
        self.overhead + self.request_overhead * requests + compute.max(memory)
    }

    /// Seconds that a full engine takes for a request.
    pub(super) fn work(&self, room: Room, mean: Mean) -> f64 {
        let budget = room.step_tokens;
        let output = mean.output.max(1.0);
        let batch = room.full_batch(mean.prompt + mean.output);
        // A request's tokens share the steps with the chunks of others.
        let decoding = batch.min(budget / (1.0 + mean.computed / output));
        let ends = decoding / output;
        let room = (budget - decoding).max(1.0);
        // Steps that a prompt is in, and the share of steps with a prompt.
        let chunks = (mean.computed / room).max(1.0);
        let with_prefill = if decoding < batch { 1.0 } else { 1.0 - (-ends * chunks).exp() };
        let prefill =
            mean.computed * self.seconds_per_token + mean.attention_pairs() * self.attention_seconds;
        let compute = decoding * self.seconds_per_token;
        let memory = self.weight_read + decoding * mean.context() * self.kv_read;
        let beside = if with_prefill > 0.0 {
            memory.max(compute + ends * prefill / with_prefill)
        } else {
            compute.max(memory)
        };
        let step = self.overhead
            + self.request_overhead * (decoding + ends * chunks)
            + with_prefill * beside
            + (1.0 - with_prefill) * compute.max(memory);
        step / ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ChunkedPrefill = ChunkedPrefill {
        overhead: 1e-3,
        request_overhead: 1e-5,
        seconds_per_token: 1e-4,
        attention_seconds: 1e-9,
        weight_read: 1e-2,
        kv_read: 1e-7,
    };

    #[test]
    fn a_step_takes_the_longer_of_computing_and_reading() {
        // chunks as (before, tokens), contexts of those that decode, milliseconds
        let table: [(&[(u32, u32)], &[u32], f64); 6] = [
            // Reading the weights is most of a step for one request.
            (&[], &[1000], 1.0 + 0.01 + 10.0 + 0.1),
            (&[], &[100_000], 1.0 + 0.01 + 10.0 + 10.0),
            // 50 tokens compute in the shadow of that.
            (&[(0, 50)], &[1000], 1.0 + 0.02 + 10.0 + 0.1),
            (&[(0, 1000)], &[1000], 1.0 + 0.02 + 100.1 + 0.5),
            // What is before a chunk counts for each of its tokens.
            (&[(10_000, 1000)], &[], 1.0 + 0.01 + 100.0 + 0.5 + 10.0),
            (&[(0, 1000), (1000, 1000)], &[], 1.0 + 0.02 + 200.0 + 0.5 + 1.5),
        ];
        for (chunks, contexts, millis) in table {
            let mut step = Step::new(10_000);
            chunks.iter().for_each(|(before, tokens)| step.prefill(*before, *tokens));
            contexts.iter().for_each(|context| step.decode(*context));
            let took = MODEL.seconds(&step) * 1e3;
            assert!((took - millis).abs() < 1e-9, "{chunks:?} {contexts:?}: {took}, not {millis}");
        }
    }

    #[test]
    fn chunks_have_the_attention_pairs_of_whole_prompts() {
        let mut step = Step::new(10_000);
        [(0, 3000), (3000, 3000), (6000, 2000)].iter().for_each(|(before, new)| step.prefill(*before, *new));
        let mut whole = Step::new(10_000);
        whole.prefill(0, 8000);
        assert_eq!(step.attention_pairs, whole.attention_pairs);
        assert_eq!((step.budget, step.tokens()), (2000, 8000));
    }
}
