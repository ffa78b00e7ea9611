//! Do the gateway's own limits leave room for what picker and servers can take?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

use super::preconditions::configured;

/// A pool of a few servers holds more requests than this.
const LOW: u64 = 10_000;

/// A single server holds more requests than this.
const TINY: u64 = 100;

pub(super) fn check(seen: &Observations) -> Outcome {
    let (envoy, config) = match configured(seen) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let mut names = config.picker_clusters();
    let routes = config.managers.iter().flat_map(|manager| &manager.routes.routes);
    for name in routes.flat_map(|route| &route.clusters) {
        let follows = config.clusters.get(name).is_some_and(|cluster| cluster.follows());
        if follows && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut findings = Vec::new();
    let mut limits = Vec::new();
    for name in names {
        let Some(cluster) = config.clusters.get(name) else { continue };
        let (field, limit) = &cluster.limit;
        limits.push(format!("{name} {limit}"));
        let tripped = ["upstream_rq_pending_overflow", "upstream_cx_overflow"]
            .map(|stat| envoy.stats.get(&format!("cluster.{name}.{stat}")).copied().unwrap_or(0));
        let tripped: u64 = tripped.iter().sum();
        if tripped > 0 {
            let what = format!("cluster {name}: {field} is {limit}, and was exceeded {tripped} times");
            findings.push(Finding::new(&rules::BREAKER_TRIPS, what));
        } else if *limit < TINY {
            findings.push(Finding::new(&rules::BREAKER_TRIPS, format!("cluster {name}: {field} is {limit}")));
        } else if *limit < LOW {
            findings.push(Finding::new(&rules::BREAKER_LOW, format!("cluster {name}: {field} is {limit}")));
        }
    }
    Outcome::looked(limits.join(", "), findings)
}
