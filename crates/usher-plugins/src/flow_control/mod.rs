//! Settings of flow control, as plain values. The queue that keeps to it is in `flow`.

mod ceiling;
pub(crate) mod eviction;
pub(crate) mod fairness;
mod holdback;
pub(crate) mod ordering;
mod reflective;
pub(crate) mod usage_limit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use usher_plugin::SaturationDetector;

pub use ceiling::{BandPosition, Ceiling};
pub use fairness::{Fairness, ProgramAwareParams};
pub use holdback::{Domain, HoldbackParams};
pub use ordering::Ordering;
pub use usage_limit::{StaticUsageLimitParams, UsageLimit};

/// Flow control as a configuration asks for it.
#[derive(Clone)]
pub struct FlowControlSpec {
    /// The rules.
    pub rules: FlowControlRules,
    /// Reports the pool's saturation.
    pub detector: Arc<dyn SaturationDetector>,
    /// Name of that plugin.
    pub detector_name: String,
}

impl fmt::Debug for FlowControlSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowControlSpec")
            .field("rules", &self.rules)
            .field("detector_name", &self.detector_name)
            .finish_non_exhaustive()
    }
}

/// The rules by which requests wait.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowControlRules {
    /// Most requests that wait at a time; `None`: no limit.
    pub max_requests: Option<u64>,
    /// Most bytes of bodies that wait at a time; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Longest time that a request waits for room; `None`: for ever.
    pub ttl: Option<Duration>,
    /// Longest time that it waits while there is no endpoint at all; `None`: for ever.
    pub no_endpoint_ttl: Option<Duration>,
    /// The bands that are always there, by priority. That of priority 0 is one of them.
    pub bands: Vec<(i32, BandRules)>,
    /// Rules of the other priorities from 0.
    pub default_band: BandRules,
    /// Rules of the other priorities below 0.
    pub default_negative_band: BandRules,
    /// Part of the pool that each priority may fill.
    pub usage_limit: UsageLimit,
    /// `true` if running requests of priorities below 0 are given up for others.
    pub evicts: bool,
}

/// The rules of one priority.
#[derive(Clone, Debug, PartialEq)]
pub struct BandRules {
    /// Most requests that wait at a time. Default 5000, as in llm-d-router.
    pub max_requests: u64,
    /// Most bytes of bodies that wait at a time. Default 1,000,000,000, as in llm-d-router.
    pub max_bytes: u64,
    /// Policy that chooses which of its flows goes next.
    pub fairness: Fairness,
    /// Order of the requests of a flow.
    pub ordering: Ordering,
}

impl Default for BandRules {
    fn default() -> Self {
        Self {
            max_requests: 5000,
            max_bytes: 1_000_000_000,
            fairness: Fairness::GlobalStrict,
            ordering: Ordering::Fcfs,
        }
    }
}

impl FlowControlRules {
    /// Longest time that a request waits unless something else is said, as in llm-d-router.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(60);

    /// The rules of a priority.
    pub fn band(&self, priority: i32) -> &BandRules {
        let listed = self.bands.iter().find(|(listed, _)| *listed == priority).map(|(_, rules)| rules);
        let default = if priority < 0 { &self.default_negative_band } else { &self.default_band };
        listed.unwrap_or(default)
    }
}

impl Default for FlowControlRules {
    fn default() -> Self {
        Self {
            max_requests: None,
            max_bytes: None,
            ttl: Some(Self::DEFAULT_TTL),
            no_endpoint_ttl: Some(Self::DEFAULT_TTL),
            bands: vec![(0, BandRules::default())],
            default_band: BandRules::default(),
            default_negative_band: BandRules::default(),
            usage_limit: UsageLimit::default(),
            evicts: false,
        }
    }
}
