//! What the log says once, at the start.

use crate::config::settings::ServeSettings;
use crate::memory::Budget;
use crate::schedule::waiting::WaitingRules;

/// Says once what the user should know about this start.
pub(super) fn start(settings: &ServeSettings, notes: &[String], warnings: &[String], from_file: bool) {
    for warning in warnings {
        tracing::warn!(warning, "configuration");
    }
    for note in notes {
        tracing::info!(note, "configuration");
    }
    if settings.locator.ttl.is_zero() {
        tracing::info!(
            note = "--locator-ttl is 0: candidates are looked up for every request",
            "configuration"
        );
    }
    for flag in settings.unused_flags(from_file) {
        tracing::warn!(flag = flag.flag, reason = flag.reason, "flag has no effect");
    }
}

/// Says what the memory budget leaves for bodies, and for prefixes if that is less than asked for.
pub(super) fn memory(settings: &ServeSettings, budget: &Budget) {
    let Some(bytes) = budget.limit() else { return };
    tracing::info!(bytes, "memory budget");
    if settings.limits.max_request_body as u64 > bytes {
        tracing::warn!(
            max_request_body_bytes = settings.limits.max_request_body,
            bytes,
            "the largest request body does not fit into the memory budget; raise --memory-budget or lower --max-request-body-bytes"
        );
    }
    if let Some(asked) = settings.memory.prefix_index
        && asked > budget.prefix_index()
    {
        tracing::warn!(
            asked,
            prefix_index_bytes = budget.prefix_index(),
            "--prefix-index-bytes is more than half of the memory budget; the prefix index gets half"
        );
    }
}

/// Says that bodies which are allowed may never wait, and so never go: a request waits
/// before it finds that it needn't.
pub(super) fn limits(settings: &ServeSettings, rules: &WaitingRules) {
    let largest = settings.limits.max_request_body as u64;
    let listed = rules.bands.iter().map(|(priority, band)| (format!("priority {priority}"), band.max_bytes));
    let others = [
        ("other priorities".to_owned(), rules.default_band.max_bytes),
        ("other priorities below 0".to_owned(), rules.default_negative_band.max_bytes),
    ];
    let all = rules.max_bytes.map(|bytes| ("all priorities".to_owned(), bytes));
    let least = all.into_iter().chain(listed).chain(others).min_by_key(|(_, bytes)| *bytes);
    if let Some((of, max_bytes)) = least.filter(|(_, bytes)| *bytes < largest) {
        tracing::warn!(
            of,
            max_bytes,
            max_request_body_bytes = largest,
            "a larger body than maxBytes is refused, also when nobody waits; raise flowControl's maxBytes or lower --max-request-body-bytes"
        );
    }
}
