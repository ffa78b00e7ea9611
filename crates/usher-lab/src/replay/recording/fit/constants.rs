//! Constants that are fitted, and their ranges.

use serde::Serialize;

/// Fitted rates, in prompt tokens per second: from a slow processor to ten times what the fastest servers do.
const PREFILL_RATE: [f64; 2] = [1.0, 1e7];

/// Fitted steps, in milliseconds.
const DECODE_STEP_MS: [f64; 2] = [0.01, 10_000.0];

/// Fitted batch factors: up to a step of two requests that takes as long as two steps of one.
const BATCH_FACTOR: [f64; 2] = [0.0, 1.0];

/// Fitted delays, in milliseconds.
const DELAY_MS: [f64; 2] = [0.0, 60_000.0];

/// Factors of servers that differ.
pub(super) const SLOWER: [f64; 2] = [0.01, 100.0];

/// Constants of an engine, and the time that none of them explains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Constants {
    /// Prompt tokens that an engine computes per second.
    pub prefill_rate: f64,
    /// Milliseconds of a step that decodes for one request.
    pub decode_step_ms: f64,
    /// By how much of that each further request prolongs it.
    pub batch_factor: f64,
    /// Milliseconds that every request takes besides: network, gateway, tokenizer.
    pub delay_ms: f64,
}

/// Constants that are given, and aren't fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fixed {
    /// The rate.
    pub prefill_rate: bool,
    /// The step.
    pub decode_step: bool,
    /// The factor.
    pub batch_factor: bool,
    /// The delay.
    pub delay: bool,
}

impl Constants {
    /// The nearest constants that an engine can have: those that are not fixed are put into their ranges.
    pub(super) fn in_range(self, fixed: Fixed) -> Self {
        let within = |is_fixed: bool, value: f64, [least, most]: [f64; 2]| {
            if is_fixed { value } else { value.clamp(least, most) }
        };
        Self {
            prefill_rate: within(fixed.prefill_rate, self.prefill_rate, PREFILL_RATE),
            decode_step_ms: within(fixed.decode_step, self.decode_step_ms, DECODE_STEP_MS),
            batch_factor: within(fixed.batch_factor, self.batch_factor, BATCH_FACTOR),
            delay_ms: within(fixed.delay, self.delay_ms, DELAY_MS),
        }
    }
}

/// Median; `None` of nothing.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitted_constants_stay_in_range() {
        let endless = Constants {
            prefill_rate: f64::INFINITY,
            decode_step_ms: f64::INFINITY,
            batch_factor: f64::INFINITY,
            delay_ms: f64::INFINITY,
        };
        let [rate, step, factor, delay] =
            [PREFILL_RATE, DECODE_STEP_MS, BATCH_FACTOR, DELAY_MS].map(|of| of[1]);
        let most =
            Constants { prefill_rate: rate, decode_step_ms: step, batch_factor: factor, delay_ms: delay };
        assert_eq!(endless.in_range(Fixed::default()), most);
        let fixed = Fixed { prefill_rate: true, decode_step: true, batch_factor: true, delay: true };
        assert_eq!(endless.in_range(fixed), endless);
    }
}
