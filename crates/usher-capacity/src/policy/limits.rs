//! Limits and defaults of policies.

use std::time::Duration;

use super::QUEUE_DEPTH;

/// Most pods of a role.
pub const MOST_PODS: i64 = 1_000_000;
/// Most roles of a policy.
pub const MOST_ROLES: usize = 32;
/// Most rules, and most sizing metrics, of a policy.
pub const MOST_RULES: usize = 128;
/// Most layers of a topology.
pub const MOST_LAYERS: usize = 16;
/// Longest key of a node label, in bytes: a prefix of 253, a slash, and a name of 63.
pub const LONGEST_LAYER: usize = 317;
/// Longest period, window and hold.
pub const LONGEST: Duration = Duration::from_secs(30 * 60);
/// Default interval of ticks.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// Shortest interval of ticks.
pub const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// Default cooldown of a rule.
pub const COOLDOWN: Duration = Duration::from_secs(300);

/// Default pressure metrics and targets of each role (volcano-sh/kthena#948).
pub const PRESSURE: [(&str, [(&str, f64); 2]); 2] = [
    ("prefill", [(QUEUE_DEPTH, 4.0), ("ttft", 0.5)]),
    ("decode", [(QUEUE_DEPTH, 4.0), ("kv_cache_utilization", 0.8)]),
];
