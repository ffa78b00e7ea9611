//! Choice of the requests whose spans are recorded.

use super::context::{SpanContext, TraceId};
use crate::settings::SamplerSettings;

/// A sampler: a function of the trace's id, so that all services with the same ratio choose the same traces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    /// Traces are recorded whose id, of which 63 bits count, is below.
    bound: u64,
    parent_based: bool,
}

impl Sampler {
    pub(super) fn new(settings: SamplerSettings) -> Self {
        // As OpenTelemetry's library for Go compares.
        let bound = (settings.ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
        Self { bound, parent_based: settings.parent_based }
    }

    /// Returns `true` if spans under `parent` are recorded, or without one those of `trace`.
    pub(super) fn samples(self, parent: Option<&SpanContext>, trace: TraceId) -> bool {
        match parent.filter(|_| self.parent_based) {
            Some(parent) => parent.is_sampled(),
            None => (trace.0 as u64) >> 1 < self.bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(ratio: f64, parent_based: bool) -> Sampler {
        Sampler::new(SamplerSettings { ratio, parent_based })
    }

    #[test]
    fn a_ratio_is_a_bound_on_the_trace_id() {
        let samples = |ratio, id| sampler(ratio, true).samples(None, TraceId(id));
        for id in [1, u128::MAX, 1 << 127, u128::from(u64::MAX)] {
            assert!(samples(1.0, id) && !samples(0.0, id), "{id}");
        }
        assert!(samples(0.25, 0x3fff_ffff_ffff_ffff) && !samples(0.25, 0x4000_0000_0000_0000));
    }

    #[test]
    fn parent_based_sampler_follows_the_parent() {
        let parent = |flags| SpanContext { trace: TraceId(1), span: 1, flags };
        for (ratio, parent_based, flags, expected) in
            [(0.0, true, 1, true), (1.0, true, 0, false), (0.0, false, 1, false), (1.0, false, 0, true)]
        {
            let sampled = sampler(ratio, parent_based).samples(Some(&parent(flags)), TraceId(1));
            assert_eq!(sampled, expected, "{ratio} {parent_based} {flags}");
        }
    }
}
