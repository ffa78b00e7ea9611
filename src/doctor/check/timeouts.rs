//! Is there time enough, for the picker's replies and for responses?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::{Envoy, Observations};

use super::preconditions::configured;

/// Replies that take longer than this are usual: an upload, a place in a queue. Seconds.
const SHORT: f64 = 1.0;
const LOW: f64 = 60.0;

/// Responses that take longer than this are usual, seconds.
const RESPONSE: f64 = 60.0;

pub(super) fn check(seen: &Observations) -> Outcome {
    let (envoy, config) = match configured(seen) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let mut findings = Vec::new();
    let mut seconds = Vec::new();
    for (manager, processor) in config.pickers() {
        for (place, settings) in processor.effective() {
            let timeout = settings.message_timeout;
            let rule = match timeout {
                time if time < SHORT => Some(&rules::MESSAGE_TIMEOUT_SHORT),
                time if time < LOW => Some(&rules::MESSAGE_TIMEOUT_LOW),
                _ => None,
            };
            if let Some(rule) = rule {
                findings.push(Finding::new(rule, format!("{place}: message_timeout is {timeout} s")));
            }
            seconds.push(format!("message_timeout {timeout} s"));
        }
        let stat = |name: &str| counter(envoy, &manager.stat_prefix, name);
        let missed = stat("message_timeouts");
        if missed > 0 {
            let what = format!("listener {}: {missed} messages to the picker timed out", manager.listener);
            findings.push(Finding::new(&rules::MESSAGES_TIMED_OUT, what));
        }
        let failed = stat("streams_failed");
        if failed > 0 {
            let what = format!(
                "listener {}: {failed} of {} calls to the picker failed",
                manager.listener,
                stat("streams_started")
            );
            findings.push(Finding::new(&rules::STREAMS_FAILED, what));
        }
        let leads = |name: &String| config.clusters.get(name).is_some_and(|cluster| cluster.follows());
        for route in manager.routes.routes.iter().filter(|route| route.clusters.iter().any(leads)) {
            if route.timeout > 0.0 && route.timeout < RESPONSE {
                let what = format!("route {}: responses may take {} s", route.name, route.timeout);
                findings.push(Finding::new(&rules::ROUTE_TIMEOUT_SHORT, what));
            }
        }
    }
    Outcome::looked(seconds.join(", "), findings)
}

/// A counter of the ext_proc filters of a listener; several filters may each have a prefix.
pub(super) fn counter(envoy: &Envoy, prefix: &str, name: &str) -> u64 {
    let start = format!("http.{prefix}.ext_proc.");
    let of = envoy
        .stats
        .iter()
        .filter(|(stat, _)| stat.starts_with(&start) && stat.ends_with(&format!(".{name}")));
    of.map(|(_, value)| value).sum()
}
