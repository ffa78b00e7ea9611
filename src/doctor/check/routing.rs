//! Does the gateway send to where the picker says, and to nowhere that a client says?

use crate::doctor::envoy::{DESTINATION, Destination};
use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::{Choice, Observations};

use super::preconditions::configured;

/// Retries that may come after a server or a picker has responded.
const REPEATS: [&str; 7] = [
    "5xx",
    "gateway-error",
    "reset",
    "retriable-4xx",
    "retriable-status-codes",
    "retriable-headers",
    "http3-post-connect-failure",
];

pub(super) fn check(seen: &Observations) -> Outcome {
    let (_, config) = match configured(seen) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    let list = match seen.picker.as_ref().map(|picker| &picker.reply) {
        Ok(Ok(Choice::Destination(endpoints))) if endpoints.contains(',') => Some(endpoints),
        _ => None,
    };
    let mut findings = Vec::new();
    let mut ways = Vec::new();
    for (manager, processor) in config.pickers() {
        let routes = &manager.routes.routes;
        if routes.is_empty() {
            return Outcome::skipped(format!(
                "the routes of listener {} are not in the dump",
                manager.listener
            ));
        }
        let clusters =
            routes.iter().flat_map(|route| &route.clusters).filter_map(|name| config.clusters.get(name));
        let follow: Vec<_> = clusters.filter(|cluster| cluster.follows()).collect();
        if follow.is_empty() {
            let names = routes.iter().flat_map(|route| route.clusters.iter().map(String::as_str));
            let what =
                format!("listener {} leads to {}", manager.listener, names.collect::<Vec<_>>().join(", "));
            findings.push(Finding::new(&rules::DESTINATION_IGNORED, what));
        }
        let settings = || processor.effective().map(|(_, settings)| settings);
        let opens = settings().any(|settings| settings.fails_open);
        let receives = settings().all(|settings| settings.receives.iter().any(|name| name == "envoy.lb"));
        for cluster in follow {
            let name = &cluster.name;
            let by = match cluster.destination {
                Destination::Header => "an address in the header",
                Destination::Metadata => "an address in metadata",
                Destination::List { .. } => "a list of hosts",
                Destination::Balanced => continue,
            };
            let words = format!("{name} follows {by}");
            if ways.contains(&words) {
                continue;
            }
            ways.push(words);
            let by_metadata = matches!(
                cluster.destination,
                Destination::Metadata | Destination::List { header: false, .. }
            );
            if by_metadata && !receives {
                let what =
                    format!("cluster {name} looks at envoy.lb, and the filter receives no such namespace");
                findings.push(Finding::new(&rules::METADATA_NOT_RECEIVED, what));
            }
            let is_single = matches!(cluster.destination, Destination::Header | Destination::Metadata);
            if let Some(endpoints) = list.filter(|_| is_single) {
                let what = format!("the picker names {endpoints}, and cluster {name} takes one endpoint");
                findings.push(Finding::new(&rules::LIST_FOR_ORIGINAL_DST, what));
            }
            let by_header =
                matches!(cluster.destination, Destination::Header | Destination::List { header: true, .. });
            let is_removed = manager.removed.iter().any(|name| name == DESTINATION);
            if by_header && opens && !is_removed {
                let what = format!(
                    "listener {} keeps a client's {DESTINATION}, and cluster {name} follows it",
                    manager.listener
                );
                findings.push(Finding::new(&rules::CLIENT_DESTINATION_TRUSTED, what));
            }
        }
        if settings().any(|settings| settings.keeps_route)
            && routes.iter().any(|route| route.needs_destination)
        {
            let what = format!("filter {} keeps the route that was found before it", processor.name);
            findings.push(Finding::new(&rules::ROUTE_CACHE_KEPT, what));
        }
        for route in routes {
            let repeats: Vec<&str> =
                route.retry_on.iter().map(String::as_str).filter(|word| REPEATS.contains(word)).collect();
            if !repeats.is_empty() {
                let what = format!("route {} retries on {}", route.name, repeats.join(", "));
                findings.push(Finding::new(&rules::RETRIES_REPEAT_WORK, what));
            }
        }
    }
    Outcome::looked(ways.join(", "), findings)
}
