//! Fail mode: does a request go on when the picker is away, and is that what was asked for?

use crate::doctor::envoy::Destination;
use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

use super::preconditions::configured;
use super::timeouts::counter;

pub(super) fn check(seen: &Observations) -> Outcome {
    let (envoy, config) = match configured(seen) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let wanted = seen.cluster.as_ref().ok().and_then(|cluster| cluster.pool.as_ref()?.as_ref().ok());
    let mut findings = Vec::new();
    let mut modes = Vec::new();
    for (manager, processor) in config.pickers() {
        for (place, settings) in processor.effective() {
            let word = if settings.fails_open { "open" } else { "closed" };
            modes.push(format!("{place} fails {word}"));
            if let Some(pool) = wanted.filter(|pool| pool.fails_open != settings.fails_open) {
                let mode = if pool.fails_open { "FailOpen" } else { "FailClose" };
                let what = format!("pool {} asks for {mode}, and {place} fails {word}", pool.name);
                findings.push(Finding::new(&rules::FAIL_MODE_DIFFERS, what));
            }
            if !settings.fails_open {
                continue;
            }
            findings.push(Finding::new(&rules::FAILS_OPEN, format!("{place}: failure_mode_allow is true")));
            let without = manager.routes.routes.iter().filter(|route| !route.needs_destination);
            let mut clusters =
                without.flat_map(|route| &route.clusters).filter_map(|name| config.clusters.get(name));
            let has_hosts = |destination: &Destination| {
                !matches!(destination, Destination::Header | Destination::Metadata)
            };
            if !manager.routes.routes.is_empty() && !clusters.any(|cluster| has_hosts(&cluster.destination)) {
                let what =
                    format!("listener {} has no route for requests without a destination", manager.listener);
                findings.push(Finding::new(&rules::FAILS_OPEN_NOWHERE, what));
            }
        }
        let passed = counter(envoy, &manager.stat_prefix, "failure_mode_allowed");
        if passed > 0 {
            let what = format!("listener {}: {passed} requests went on without the picker", manager.listener);
            findings.push(Finding::new(&rules::FAILED_OPEN, what));
        }
    }
    Outcome::looked(modes.join(", "), findings)
}
