//! Metrics that are looked for in pages, and lines that are found.

use usher::scrape::exposition::Line;

/// Names that are looked for: names that begin alike, one that needs a label, and those of a real
/// engine, in the order in which that one lists them.
pub const NAMES: [&str; 9] = [
    "queue",
    "queue_depth",
    "cache_usage",
    "queue",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
];
/// The metric that needs a label.
pub const LABELLED: usize = 3;
/// The label that it needs.
pub const LABEL: (&str, &str) = ("kind", "a\"b");

/// A line that was found. Bits of the value, so that NaN equals NaN.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    Sample { metric: usize, labels: Vec<(String, String)>, bits: u64 },
    Malformed { metric: usize },
}

impl Found {
    /// The line that was read of a metric.
    pub fn of(metric: usize, line: Line<'_>) -> Self {
        let Line::Sample { labels, value, .. } = line else { return Self::Malformed { metric } };
        let list = labels.iter().map(|(name, value)| {
            let text = value.text();
            assert!(value.is(&text) || text.contains('\u{fffd}'));
            (String::from_utf8_lossy(name).into_owned(), text.into_owned())
        });
        Self::Sample { metric, labels: list.collect(), bits: value.to_bits() }
    }

    /// The metric that it is of.
    pub fn metric(&self) -> usize {
        match self {
            Self::Sample { metric, .. } | Self::Malformed { metric } => *metric,
        }
    }
}
