//! Statistics of an engine, in the shapes that vLLM reports. Buckets are vLLM's
//! (`vllm/v1/metrics/loggers.py`).

use std::time::Duration;

const SECONDS_TO_FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const SECONDS_PER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const SECONDS_PER_REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const SECONDS_PER_PREFILL_TOKEN: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
const TOKENS_PER_STEP: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// A histogram in Prometheus' sense.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: Vec<f64>,
    // One more than bounds: the last counts what is above all of them.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in rising order.
    pub fn new(bounds: &[f64]) -> Self {
        Self { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    // Bounds 1, 2, 5, 10, 20 … up to `max`, as vLLM counts tokens per request.
    fn one_two_five(max: u32) -> Self {
        let bounds = (0..10).flat_map(|power| [1u64, 2, 5].map(|m| m * 10u64.pow(power)));
        Self::new(&bounds.take_while(|bound| *bound <= u64::from(max)).map(|b| b as f64).collect::<Vec<_>>())
    }

    /// Counts one value.
    pub fn observe(&mut self, value: f64) {
        self.observe_in(self.bucket(value), value);
    }

    /// Number of the bucket that a value belongs to.
    pub(super) fn bucket(&self, value: f64) -> usize {
        self.bounds.partition_point(|bound| *bound < value)
    }

    /// Counts one value, whose bucket is known.
    pub(super) fn observe_in(&mut self, bucket: usize, value: f64) {
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Upper bound and cumulative count of each bucket, without the infinite one.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.bounds.iter().zip(&self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((*bound, *total))
        })
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// Counters of an engine since its start. Times are in simulated seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Prompt tokens looked up in the KV cache.
    pub prefix_queries: u64,
    /// Number of these that were cached.
    pub prefix_hits: u64,
    /// Requests thrown out of the batch for want of blocks, to be computed anew.
    pub preemptions: u64,
    /// Prompt tokens of requests that reached their first token.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Requests that ended by themselves.
    pub finished_stop: u64,
    /// Requests that ended at their token limit.
    pub finished_length: u64,
    /// Requests whose client left.
    pub aborted: u64,
    /// Requests refused.
    pub rejected: u64,
    /// Prompts computed for another engine.
    pub prefilled: u64,
    /// Prompts that came from another engine.
    pub received: u64,
    /// Bytes of these that crossed a link, by the layer that its ends share, in the order
    /// of [`Layer::ALL`](crate::sim::Layer::ALL).
    pub received_bytes: [u64; 5],
    /// Tokens computed per step.
    pub tokens_per_step: Histogram,
    /// From arrival to the first token.
    pub time_to_first_token: Histogram,
    /// Between one token and the next.
    pub inter_token: Histogram,
    /// Mean time per token after the first, one value per request.
    pub time_per_output_token: Histogram,
    /// Prefill time per prompt token, one value per request.
    pub time_per_prefill_token: Histogram,
    /// From arrival to the last token.
    pub e2e: Histogram,
    /// From arrival to the batch.
    pub queue: Histogram,
    /// From the batch to the last token.
    pub inference: Histogram,
    /// From the batch to the first token.
    pub prefill: Histogram,
    /// From the first token to the last.
    pub decode: Histogram,
    /// Prompt tokens per request.
    pub request_prompt_tokens: Histogram,
    /// Prompt tokens per request that had to be computed.
    pub request_computed_tokens: Histogram,
    /// Generated tokens per request.
    pub request_generation_tokens: Histogram,
    /// Token limits that the requests set.
    pub request_max_tokens: Histogram,
    /// Choices per request: always one.
    pub request_n: Histogram,
}

/// Times of a finished request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeline {
    pub(crate) arrived: Duration,
    pub(crate) admitted: Duration,
    pub(crate) first_token: Duration,
    pub(crate) finished: Duration,
}

impl Stats {
    /// All zero, for requests of at most `max_model_len` tokens.
    pub fn new(max_model_len: u32) -> Self {
        let tokens = Histogram::one_two_five(max_model_len);
        let per_request = Histogram::new(SECONDS_PER_REQUEST);
        Self {
            prefix_queries: 0,
            prefix_hits: 0,
            preemptions: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            finished_stop: 0,
            finished_length: 0,
            aborted: 0,
            rejected: 0,
            prefilled: 0,
            received: 0,
            received_bytes: [0; 5],
            tokens_per_step: Histogram::new(TOKENS_PER_STEP),
            time_to_first_token: Histogram::new(SECONDS_TO_FIRST),
            inter_token: Histogram::new(SECONDS_PER_TOKEN),
            time_per_output_token: Histogram::new(SECONDS_PER_TOKEN),
            time_per_prefill_token: Histogram::new(SECONDS_PER_PREFILL_TOKEN),
            e2e: per_request.clone(),
            queue: per_request.clone(),
            inference: per_request.clone(),
            prefill: per_request.clone(),
            decode: per_request,
            request_prompt_tokens: tokens.clone(),
            request_computed_tokens: tokens.clone(),
            request_generation_tokens: tokens.clone(),
            request_max_tokens: tokens,
            request_n: Histogram::new(CHOICES),
        }
    }

    /// Counts what is known when a request has finished.
    pub(crate) fn finish(&mut self, prompt: u32, cached: u32, generated: u32, at: Timeline) {
        let seconds = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let prefill = seconds(at.admitted, at.first_token);
        let decode = seconds(at.first_token, at.finished);
        self.e2e.observe(seconds(at.arrived, at.finished));
        self.queue.observe(seconds(at.arrived, at.admitted));
        self.inference.observe(seconds(at.admitted, at.finished));
        self.prefill.observe(prefill);
        self.decode.observe(decode);
        self.time_per_prefill_token.observe(prefill / f64::from(prompt.max(1)));
        if generated > 1 {
            self.time_per_output_token.observe(decode / f64::from(generated - 1));
        }
        self.request_prompt_tokens.observe(f64::from(prompt));
        self.request_computed_tokens.observe(f64::from(prompt - cached.min(prompt)));
        self.request_generation_tokens.observe(f64::from(generated));
        self.request_n.observe(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        for value in [1.0, 1.5, 2.0, 3.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(1.0, 1), (2.0, 3)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 7.5));
    }

    #[test]
    fn token_buckets_stop_at_the_context_length() {
        let bounds: Vec<f64> = Histogram::one_two_five(100).buckets().map(|b| b.0).collect();
        assert_eq!(bounds, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }
}
