//! Steps of whole prompts, which go before steps of decoding, as in SGLang without mixed
//! chunks or TensorRT-LLM without chunked context.
//!
//! A step takes, in seconds,
//!
//! ```text
//! prefill: launch + tokens * seconds_per_token + pairs * attention_seconds
//! decode:  base + per_sequence * padded + context * kv_read
//! ```
//!
//! where `pairs` and `context` are as in [`chunked_prefill`](super::chunked_prefill) and
//! `padded` is the number of requests rounded up to the sizes that CUDA graphs are captured
//! for: 1, 2, 4, 8 and multiples of 8, as vLLM and SGLang list them. Prefill as a launch, a
//! linear and a quadratic term, and decoding as a base, a batch and a context term are the
//! forms of DistServe (arXiv 2401.09670, appendix A).
//!
//! While requests wait that can be admitted, the next step is one of prefill: whole prompts
//! of `max_batched_tokens` together, or one longer prompt alone, in chunks of that. All
//! others stand still meanwhile, for `max_prefill_steps` such steps in a row at most. A
//! request is admitted if the KV cache has room for its prompt and for the responses: for
//! itself and each in the batch `reserve_ratio` of what its limit leaves, 512 tokens at most
//! (SGLang's `new_token_ratio` and `CLIP_MAX_NEW_TOKENS`). Its requests have no other
//! limit than their length. While fewer than 128 requests wait, the one with the longest cached
//! prefix is first (`lpm` of SGLang, arXiv 2312.07104), otherwise the oldest. Unlike there, a
//! request is first once 256 have come after it, so that none waits forever.

use super::work::{Mean, Room, Step};

/// Tokens of a response that room is reserved for, before the ratio.
pub(super) const CLIPPED_OUTPUT: u32 = 512;

/// Constants of the cost of a step, in seconds of at most a million, and of admission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillFirst {
    /// Per step of prefill. Drawn from 3 to 9 ms.
    pub launch: f64,
    /// Computing a prompt's token, attention aside. Drawn from 7,000 to 24,000 tokens per
    /// second.
    pub seconds_per_token: f64,
    /// Attention of a prompt's token to one token before it. Drawn from 0.4 to 2.5 ns, such
    /// that a prompt of 32,768 tokens costs 1.2 to 2.2 times what its tokens cost alone.
    pub attention_seconds: f64,
    /// Per step of decoding. Drawn from 7 to 15 ms.
    pub base: f64,
    /// Per request of the padded batch. Drawn from 60 to 200 µs.
    pub per_sequence: f64,
    /// Reading the keys and values of a token. Drawn from 15 to 50 ns.
    pub kv_read: f64,
    /// Steps of prefill in a row while a request could decode, at least 1; `u32::MAX` as in
    /// SGLang: any number. Drawn from 1 to 4.
    pub max_prefill_steps: u32,
    /// Share of the rest of a response that room is reserved for. Drawn: 0.3.
    pub reserve_ratio: f64,
}

impl PrefillFirst {
    /// All constants that are times.
    pub(super) fn seconds_mut(&mut self) -> [&mut f64; 6] {
        let Self { launch, seconds_per_token, attention_seconds, base, per_sequence, kv_read, .. } = self;
        [launch, seconds_per_token, attention_seconds, base, per_sequence, kv_read]
    }

    /// Seconds that a step takes.
    pub(super) fn seconds(&self, step: &Step) -> f64 {
        let mut seconds = 0.0;
        if step.prefill_tokens > 0 {
            seconds += self.prefill(f64::from(step.prefill_tokens), step.attention_pairs);
        }
        if step.decoding > 0 {
            seconds += self.decode(f64::from(padded(step.decoding)), step.context as f64);
        }
        seconds
    }

    fn prefill(&self, tokens: f64, pairs: f64) -> f64 {
        self.launch + tokens * self.seconds_per_token + pairs * self.attention_seconds
    }

    fn decode(&self, padded: f64, context: f64) -> f64 {
        self.base + padded * self.per_sequence + context * self.kv_read
    }

    /// Seconds that a full engine takes for a request.
    ///
    /// Between two steps of decoding, those that ended are replaced in one step of prefill
    /// if any ended (in Poisson fashion) and their prompts fit into it.
    pub(super) fn work(&self, room: Room, mean: Mean) -> f64 {
        let budget = room.step_tokens;
        // Requests per step of prefill.
        let together = if mean.computed > budget {
            1.0 / (mean.computed / budget).ceil()
        } else {
            (budget / mean.computed.max(1.0)).floor().min(room.max_running)
        };
        let prefill = self.prefill(mean.computed, mean.attention_pairs()) - self.launch;
        // The first token is the prefill's.
        let steps = (mean.output - 1.0).max(0.0);
        if steps == 0.0 {
            return prefill + self.launch / together;
        }
        let reserve = self.reserve_ratio * (mean.output / 2.0).min(f64::from(CLIPPED_OUTPUT));
        let admitted = room.full_batch(mean.context() + reserve);
        // No more can begin between two steps of decoding.
        let begun = f64::from(self.max_prefill_steps) * together;
        let batch = admitted.min(begun * steps).max(1.0);
        let ends = batch / steps;
        let launches = (1.0 - (-ends).exp()).max(ends / together);
        let decode = self.decode(f64::from(padded(batch.round() as u32)), batch * mean.context());
        prefill + (self.launch * launches + decode) / ends
    }
}

/// Requests rounded up to the next batch that a CUDA graph is captured for.
fn padded(requests: u32) -> u32 {
    match requests {
        0..=2 => requests,
        3..=4 => 4,
        _ => requests.next_multiple_of(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: PrefillFirst = PrefillFirst {
        launch: 5e-3,
        seconds_per_token: 1e-4,
        attention_seconds: 1e-9,
        base: 1e-2,
        per_sequence: 1e-4,
        kv_read: 1e-7,
        max_prefill_steps: 2,
        reserve_ratio: 0.3,
    };

    #[test]
    fn prefill_is_quadratic_and_decoding_pays_for_the_padded_batch() {
        // chunks as (before, tokens), requests that decode with 1000 tokens each, milliseconds
        let table: [(&[(u32, u32)], u32, f64); 7] = [
            (&[(0, 1000)], 0, 5.0 + 100.0 + 0.5),
            (&[(10_000, 1000)], 0, 5.0 + 100.0 + 0.5 + 10.0),
            (&[(0, 1000), (0, 1000)], 0, 5.0 + 200.0 + 1.0),
            (&[], 1, 10.0 + 0.1 + 0.1),
            (&[], 3, 10.0 + 0.4 + 0.3),
            (&[], 9, 10.0 + 1.6 + 0.9),
            (&[], 0, 0.0),
        ];
        for (chunks, decoding, millis) in table {
            let mut step = Step::new(10_000);
            chunks.iter().for_each(|(before, tokens)| step.prefill(*before, *tokens));
            (0..decoding).for_each(|_| step.decode(1000));
            let took = MODEL.seconds(&step) * 1e3;
            assert!((took - millis).abs() < 1e-9, "{chunks:?} {decoding}: {took}, not {millis}");
        }
    }

    #[test]
    fn batches_are_padded_to_the_sizes_of_graphs() {
        let sizes = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 25, 255, 256].map(padded);
        assert_eq!(sizes, [0, 1, 2, 4, 4, 8, 8, 16, 16, 24, 24, 32, 256, 256]);
    }
}
