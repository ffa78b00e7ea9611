//! Log messages of a start.

use std::mem::take;

use crate::memory::Budget;
use crate::registry::Pipeline;
use crate::schedule::flow_control::FlowControlRules;
use crate::settings::ServeSettings;

/// Notes and warnings of a configuration.
pub(super) struct StartupLog {
    notes: Vec<String>,
    warnings: Vec<String>,
    limits: Option<FlowControlRules>,
}

impl StartupLog {
    /// Takes it out of the configuration.
    pub(super) fn take(pipeline: &mut Pipeline) -> Self {
        let limits = pipeline.flow_control.as_ref().map(|flow_control| flow_control.rules.clone());
        Self { notes: take(&mut pipeline.notes), warnings: take(&mut pipeline.warnings), limits }
    }

    /// Says once what the user should know about this start.
    pub(super) fn write(&self, settings: &ServeSettings, budget: &Budget, from_file: bool) {
        start(settings, &self.notes, &self.warnings, from_file);
        memory(settings, budget);
        if let Some(rules) = &self.limits {
            limits(settings, rules);
        }
    }
}

fn start(settings: &ServeSettings, notes: &[String], warnings: &[String], from_file: bool) {
    for warning in warnings {
        tracing::warn!(warning, "configuration warning");
    }
    for note in notes {
        tracing::info!(note, "configuration note");
    }
    let (interval, staleness) = (settings.refresh_metrics_interval, settings.metrics_staleness);
    if staleness < interval {
        tracing::warn!(
            refresh_metrics_interval_ms = interval.as_millis(),
            metrics_staleness_threshold_ms = staleness.as_millis(),
            "metrics are too old before they are read again; raise --metrics-staleness-threshold or lower --refresh-metrics-interval"
        );
    }
    if settings.locator.ttl.is_zero() {
        tracing::info!(
            note = "--locator-ttl is 0: candidates are looked up for every request",
            "configuration note"
        );
    }
    if let Some(configured) = settings.raised_refresh_interval {
        tracing::warn!(
            configured_ms = configured.as_secs_f64() * 1e3,
            interval_ms = interval.as_millis(),
            "--refresh-metrics-interval is below the shortest interval and was raised"
        );
    }
    for flag in settings.unused_flags(from_file) {
        tracing::warn!(flag = flag.flag, reason = flag.reason, "flag has no effect");
    }
}

/// Says what the memory budget leaves for bodies, and for prefixes if that is less than asked for.
fn memory(settings: &ServeSettings, budget: &Budget) {
    let Some(bytes) = budget.limit() else { return };
    tracing::info!(bytes, "memory budget");
    if settings.limits.max_request_body as u64 > bytes {
        tracing::warn!(
            max_request_body_bytes = settings.limits.max_request_body,
            bytes,
            "the largest request body does not fit into the memory budget; raise --memory-budget or lower --max-request-body-bytes"
        );
    }
    if let Some(configured_bytes) = settings.memory.prefix_index
        && configured_bytes > budget.prefix_index()
    {
        tracing::warn!(
            configured_bytes,
            prefix_index_bytes = budget.prefix_index(),
            "--prefix-index-bytes is more than half of the memory budget; the prefix index gets half"
        );
    }
}

/// Says what an election decides where replicas share their load.
pub(super) fn every_replica_serves() {
    tracing::info!(
        "all replicas are ready, as they share their load; the elected one alone acts on capacity policies and writes their statuses"
    );
}

/// The limits on what waits that are below `largest`, with their bytes.
fn below(largest: u64, rules: &FlowControlRules) -> String {
    let listed = rules.bands.iter().map(|(priority, band)| (format!("priority {priority}"), band.max_bytes));
    let others = [
        ("other priorities".to_owned(), rules.default_band.max_bytes),
        ("other priorities below 0".to_owned(), rules.default_negative_band.max_bytes),
    ];
    let all = rules.max_bytes.map(|bytes| ("all priorities".to_owned(), bytes));
    let limits = all.into_iter().chain(listed).chain(others);
    let below = limits.filter(|(_, bytes)| *bytes < largest);
    below.map(|(of, bytes)| format!("{of} ({bytes})")).collect::<Vec<_>>().join(", ")
}

/// Says that bodies which are allowed may never wait, and so never go: a request waits
/// before it finds that it needn't.
fn limits(settings: &ServeSettings, rules: &FlowControlRules) {
    let largest = settings.limits.max_request_body as u64;
    let limits = below(largest, rules);
    if !limits.is_empty() {
        tracing::warn!(
            limits,
            max_request_body_bytes = largest,
            "a larger body than maxBytes is refused, even if no request waits; raise flowControl's maxBytes or lower --max-request-body-bytes"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::flow_control::BandRules;

    #[test]
    fn every_limit_below_the_largest_body_is_named() {
        let band = |max_bytes| BandRules { max_bytes, ..BandRules::default() };
        let bands = vec![(7, band(1 << 20)), (3, band(1 << 30)), (0, band(2 << 20))];
        let rules = FlowControlRules { bands, max_bytes: Some(3 << 20), ..FlowControlRules::default() };
        let named = below(4 << 20, &rules);
        assert_eq!(named, "all priorities (3145728), priority 7 (1048576), priority 0 (2097152)");
        assert_eq!(below(2 << 20, &rules), "priority 7 (1048576)");
        assert_eq!(below(1 << 20, &rules), "");
    }
}
