//! Do HTTPRoutes lead to the pool, and do gateways take them?

use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

use super::preconditions::responded;

pub(super) fn check(seen: &Observations) -> Outcome {
    let cluster = match responded(&seen.cluster) {
        Ok(cluster) => cluster,
        Err(outcome) => return outcome,
    };
    let Some(pool) = &cluster.pool else {
        return Outcome::skipped("routes lead to pools, and pods by their labels are none");
    };
    let Ok(pool) = pool else { return Outcome::skipped("nothing is known of the pool; see pool") };
    let routes = match &pool.routes {
        Ok(routes) => routes,
        Err(reason) => return Outcome::skipped(format!("HTTPRoutes can't be read: {reason}")),
    };
    let mut findings = Vec::new();
    if routes.is_empty() {
        let what = format!("no HTTPRoute of namespace {} names pool {}", cluster.namespace, pool.name);
        findings.push(Finding::new(&rules::NO_ROUTE, what));
    }
    for route in routes {
        for (parent, kind, message) in &route.rejected {
            let what = format!("gateway {parent}, {kind} of HTTPRoute {} is false: {message}", route.name);
            findings.push(Finding::new(&rules::ROUTE_NOT_ACCEPTED, what));
        }
    }
    Outcome::looked(
        format!("{} to pool {}", count(routes.len(), "HTTPRoute", "HTTPRoutes"), pool.name),
        findings,
    )
}
