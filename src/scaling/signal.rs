//! Metrics of a policy, and their sources.

use std::time::Duration;

use crate::capacity::policy::QUEUE_DEPTH;
use crate::endpoints::{AttributeId, FIRST_TOKEN_WINDOW, Lease, Load, Reading};

/// Aggregation over the endpoints (ranks) of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Sum: requests, tokens, counts.
    Sum,
    /// Maximum: a request waits or fails where its rank is full, however empty the others are.
    Largest,
}

/// Metric of an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// Requests waiting in the model server.
    Waiting,
    /// Requests running in it.
    Running,
    /// Used part of the KV cache.
    KvUsage,
    /// Requests that this picker sent and whose response isn't complete; if others send requests, too, those
    /// that the model server reports if more.
    InFlight,
    /// Seconds from a decision of this picker to the first token of a streamed response.
    FirstToken,
    /// Metric that an extractor of the configuration reads.
    Configured(AttributeId, Join),
    /// Metric scraped for policies only.
    Scraped(Lease<AttributeId>, Join),
}

/// Built-in names, each with its metric.
pub(super) const NAMED: [(&str, Signal); 5] = [
    (QUEUE_DEPTH, Signal::Waiting),
    ("running", Signal::Running),
    ("kv_cache_utilization", Signal::KvUsage),
    ("in_flight", Signal::InFlight),
    ("ttft", Signal::FirstToken),
];

/// Suffixes of names whose values are fractions: those of kthena, and vLLM's.
const PARTS: [&str; 6] = ["_utilization", "_usage", "_ratio", "_percent", "_perc", "_saturation"];

impl Join {
    /// Aggregation that a name suggests.
    pub(super) fn of(name: &str) -> Self {
        let family = name.split('{').next().unwrap_or(name).trim().to_ascii_lowercase();
        let is_part = PARTS.iter().any(|end| family.ends_with(end)) || family.starts_with("dcgm_");
        if is_part { Self::Largest } else { Self::Sum }
    }
}

/// Ages from which on metrics are stale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ages {
    /// Limit for metrics that the configuration reads.
    pub(super) configured: Duration,
    /// Limit for metrics scraped for policies.
    pub(super) scraped: Duration,
}

impl Signal {
    /// Metric of a built-in name. Metrics that filters and scorers use have their names here, too.
    pub(super) fn named(name: &str) -> Option<Self> {
        let own = NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, signal)| signal);
        own.or_else(|| match Reading::named(name)? {
            Reading::Waiting => Some(Self::Waiting),
            Reading::Running => Some(Self::Running),
            Reading::KvUsage => Some(Self::KvUsage),
            Reading::Attribute(_) => None,
        })
    }

    /// Aggregation over the endpoints of one pod.
    pub(super) fn join(&self) -> Join {
        match self {
            Self::Waiting | Self::Running | Self::InFlight => Join::Sum,
            Self::KvUsage | Self::FirstToken => Join::Largest,
            Self::Configured(_, join) | Self::Scraped(_, join) => *join,
        }
    }

    /// Display name of the source.
    pub(super) fn source(&self) -> &'static str {
        match self {
            Self::Waiting | Self::Running | Self::KvUsage => "model server",
            Self::InFlight | Self::FirstToken => "picker",
            Self::Configured(..) => "extractor",
            Self::Scraped(..) => "read for policies",
        }
    }

    /// Value at an endpoint; NaN if absent or stale. `in_flight`: requests in flight there; `None` if not all
    /// are known.
    pub(super) fn of(&self, load: &Load, in_flight: Option<f64>, now_ms: u64, ages: Ages) -> f64 {
        let gauge = match self {
            Self::Waiting => load.waiting.fresh(now_ms, ages.configured),
            Self::Running => load.running.fresh(now_ms, ages.configured),
            Self::KvUsage => load.kv_usage.fresh(now_ms, ages.configured),
            Self::InFlight => in_flight,
            Self::FirstToken => load.first_token.fresh(now_ms, FIRST_TOKEN_WINDOW).or_else(|| {
                // No first token is awaited there, and none came to another replica, which alone has its time.
                let is_idle =
                    |requests: &f64| *requests <= 0.0 && !load.is_sent_elsewhere(now_ms, FIRST_TOKEN_WINDOW);
                in_flight.filter(is_idle)
            }),
            Self::Configured(id, _) => load.attribute(*id).fresh(now_ms, ages.configured),
            Self::Scraped(lease, _) => load.attribute(lease.id()).fresh(now_ms, ages.scraped),
        };
        gauge.unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in kthena (`optimizer_test.go`): fractions, and values that add up.
    #[test]
    fn metric_names_are_read_as_in_kthena() {
        for part in [
            "gpu_utilization",
            "cpu_utilization",
            "memory_utilization",
            "cache_usage",
            "disk_usage",
            "fill_ratio",
            "load_percent",
            "queue_saturation",
            "GPU_utilization",
            "CPU_UTILIZATION",
            "Cache_Usage",
        ] {
            assert_eq!(Join::of(part), Join::Largest, "{part}");
        }
        for sum in [
            "queue_length",
            "request_count",
            "token_rate",
            "request_rate",
            "throughput_rate",
            "pending_requests",
            "gpu_utilization_rate",
        ] {
            assert_eq!(Join::of(sum), Join::Sum, "{sum}");
        }
    }
}
