//! The speed that endpoints are taken to have before anything is learned.

use std::sync::{Arc, OnceLock};

use usher_core::config::{ConfigError, Node};
use usher_plugin::params::refused;

/// Tokens per second that an endpoint is taken to compute before anything is known, as
/// llm-d-router assumes them.
pub(crate) const PEAK_PREFILL_THROUGHPUT: f64 = 15_928.0;

/// Checks a `peakPrefillThroughput`, in tokens per second.
///
/// # Errors
/// `ConfigError` with line and column for a number that is not at least 1.
pub(crate) fn check_throughput(parameters: &Node, value: f64) -> Result<(), ConfigError> {
    match value >= 1.0 && value.is_finite() {
        true => Ok(()),
        false => {
            Err(refused(parameters, "peakPrefillThroughput", value)
                .hint("give tokens per second, at least 1"))
        }
    }
}

/// The expected rate of one configuration, in tokens per second. Its plugins share it, since
/// they share a model; it is known when all of them are built.
#[derive(Clone, Debug, Default)]
pub struct InitialRate(Arc<OnceLock<f64>>);

impl InitialRate {
    /// A rate that is known.
    pub fn of(rate: f64) -> Self {
        Self(Arc::new(OnceLock::from(rate)))
    }

    /// Tokens per second; the default where no plugin says anything.
    pub fn get(&self) -> f64 {
        self.0.get().copied().unwrap_or(PEAK_PREFILL_THROUGHPUT)
    }

    /// Takes the rate that a plugin's parameters give. `rate` is that of
    /// [`throughput`]; it counts only if it is written there.
    ///
    /// # Errors
    /// `ConfigError` with line and column if another plugin sets another rate.
    pub(crate) fn read(&self, parameters: &Node, rate: f64) -> Result<(), ConfigError> {
        let Some(written) = parameters.get("peakPrefillThroughput") else { return Ok(()) };
        let known = *self.0.get_or_init(|| rate);
        if known == rate {
            return Ok(());
        }
        let message = format!("peakPrefillThroughput is {rate}, and another plugin says {known}");
        Err(ConfigError::at(written.at, message)
            .hint("there is one model of a pool's latencies: give it once, or twice the same"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_different_rates_are_refused() {
        let node = |text: &str| Node::parse(text).unwrap();
        let (unset, written) = (node("{a: 1}"), node("{peakPrefillThroughput: 2000}"));
        let rate = InitialRate::default();
        assert_eq!(rate.get(), PEAK_PREFILL_THROUGHPUT);
        rate.read(&unset, PEAK_PREFILL_THROUGHPUT).unwrap();
        rate.read(&written, 2000.0).unwrap();
        rate.clone().read(&unset, PEAK_PREFILL_THROUGHPUT).unwrap();
        rate.read(&written, 2000.0).unwrap();
        assert_eq!(rate.get(), 2000.0);
        let error = rate.read(&written, 3000.0).unwrap_err().to_string();
        assert!(error.contains("is 3000, and another plugin says 2000"), "{error}");
    }
}
