//! Everything beside profiles and parameters: handler, stages, flow control, sources of numbers.

use std::collections::BTreeSet;

use usher_plugin::Kind;

use super::change::Change;
use super::pairs::Pairs;
use crate::cli::check::view::View;
use crate::registry::{Origin, ResolvedBand, ResolvedFlow, Use};

/// Changes of all settings.
pub(super) fn changes(pairs: &Pairs<'_>) -> Vec<Change> {
    let (old, new) = (pairs.old.0, pairs.new.0);
    let request = "requests";
    let mut changes: Vec<Change> = Vec::new();
    changes.extend(pairs.one(
        "profiles",
        "profile handler",
        &old.profile_handler.plugin,
        &new.profile_handler.plugin,
    ));
    changes.extend(pairs.list(request, "parser", &names(&old.parsers), &names(&new.parsers), true));
    let (before, now) = (&old.stages, &new.stages);
    for (what, before, now) in [
        ("header processor", &before.header_processors, &now.header_processors),
        ("gatherer", &before.gatherers, &now.gatherers),
        ("screener", &before.screeners, &now.screeners),
        ("admitter", &before.admitters, &now.admitters),
    ] {
        changes.extend(pairs.list(request, what, before, now, true));
    }
    // Producers that the defaults add follow from others' changes.
    let (before, now) = (declared(pairs.old, &before.producers), declared(pairs.new, &now.producers));
    changes.extend(producers(pairs, &before, &now));
    changes.extend(pairs.list(
        "responses",
        "plugin",
        &only(pairs.old, Kind::Response),
        &only(pairs.new, Kind::Response),
        false,
    ));
    let decided = (only(pairs.old, Kind::PreRequest), only(pairs.new, Kind::PreRequest));
    changes.extend(pairs.list(request, "plugin after the decision", &decided.0, &decided.1, false));
    changes.extend(discovery(pairs, old.discovery.as_ref(), new.discovery.as_ref()));
    changes.extend(sources(pairs));
    changes.extend(pairs.one(
        "saturation",
        "detector",
        &old.saturation_detector.plugin,
        &new.saturation_detector.plugin,
    ));
    changes.extend(flow(pairs, old.flow_control.as_ref(), new.flow_control.as_ref()));
    let gate = |on: bool| if on { "on" } else { "off" };
    let (before, now) = (
        old.feature_gates.ha_populate_non_leader_datastore,
        new.feature_gates.ha_populate_non_leader_datastore,
    );
    if before != now {
        let what = "haPopulateNonLeaderDatastore";
        changes.push(Change::changed("feature gates", what, gate(before), gate(now)));
    }
    changes
}

fn names(uses: &[Use]) -> Vec<String> {
    uses.iter().map(|used| used.plugin.clone()).collect()
}

fn declared(view: View<'_>, names: &[String]) -> Vec<String> {
    let is_declared =
        |name: &&String| view.plugin(name).is_some_and(|plugin| matches!(plugin.origin, Origin::Declared(_)));
    names.iter().filter(is_declared).cloned().collect()
}

/// Declared producers that the other configuration has not got, not even by default.
fn producers(pairs: &Pairs<'_>, old: &[String], new: &[String]) -> Vec<Change> {
    let list = pairs.list("requests", "producer", old, new, false);
    let is_there = |view: View<'_>, name: &str| view.0.stages.producers.iter().any(|other| other == name);
    let name = |change: &Change| change.what.trim_start_matches("producer ").to_owned();
    list.into_iter()
        .filter(|change| match change.old {
            Some(_) => !is_there(pairs.new, &name(change)),
            None => !is_there(pairs.old, &name(change)),
        })
        .collect()
}

/// Plugins that only read responses.
/// Plugins that are of this kind alone, and so in no other list.
fn only(view: View<'_>, kind: Kind) -> Vec<String> {
    let only = view.0.plugins.iter().filter(|plugin| plugin.kinds == [kind]);
    only.map(|plugin| plugin.name.clone()).collect()
}

fn discovery(pairs: &Pairs<'_>, old: Option<&Use>, new: Option<&Use>) -> Option<Change> {
    let place = "endpoints";
    match (old, new) {
        (Some(old), Some(new)) => pairs.one(place, "discovery", &old.plugin, &new.plugin),
        (None, Some(new)) => {
            Some(Change::added(place, format!("discovery {}", new.plugin), pairs.new.summary(&new.plugin)))
        }
        (Some(old), None) => {
            Some(Change::removed(place, format!("discovery {}", old.plugin), pairs.old.summary(&old.plugin)))
        }
        (None, None) => None,
    }
}

fn sources(pairs: &Pairs<'_>) -> Vec<Change> {
    let (old, new) = (&pairs.old.0.sources, &pairs.new.0.sources);
    let place = "endpoints";
    let listed = |sources: &[crate::registry::ResolvedSource]| -> Vec<String> {
        sources.iter().map(|source| source.source.plugin.clone()).collect()
    };
    let mut changes = pairs.list(place, "data source", &listed(old), &listed(new), false);
    for source in new {
        let same = old.iter().find(|other| pairs.is_same(&other.source.plugin, &source.source.plugin));
        if let Some(before) = same {
            let what = format!("extractor of {}:", source.source.plugin);
            changes.extend(pairs.list(place, &what, &before.extractors, &source.extractors, false));
        }
    }
    changes
}

fn flow(pairs: &Pairs<'_>, old: Option<&ResolvedFlow>, new: Option<&ResolvedFlow>) -> Vec<Change> {
    let place = "flow control";
    let (old, new) = match (old, new) {
        (None, None) => return Vec::new(),
        (Some(_), None) => return vec![Change::removed(place, "waiting", "requests wait in Usher")],
        (None, Some(_)) => return vec![Change::added(place, "waiting", "requests wait in Usher")],
        (Some(old), Some(new)) => (old, new),
    };
    let number = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |limit| limit.to_string());
    let time = |ttl: &Option<String>| ttl.clone().unwrap_or_else(|| "no limit".to_owned());
    let settings = [
        ("maxRequests", number(old.max_requests), number(new.max_requests)),
        ("maxBytes", number(old.max_bytes), number(new.max_bytes)),
        ("defaultRequestTTL", time(&old.default_request_ttl), time(&new.default_request_ttl)),
        ("noEndpointRequestTTL", time(&old.no_endpoint_request_ttl), time(&new.no_endpoint_request_ttl)),
        ("enableEviction", old.enable_eviction.to_string(), new.enable_eviction.to_string()),
    ];
    let mut changes: Vec<Change> = settings
        .into_iter()
        .filter(|(_, old, new)| old != new)
        .map(|(what, old, new)| Change::changed(place, what, old, new))
        .collect();
    changes.extend(pairs.one(
        place,
        "usageLimitPolicy",
        &old.usage_limit_policy.plugin,
        &new.usage_limit_policy.plugin,
    ));
    changes.extend(bands(pairs, old, new));
    changes
}

/// Changes of the bands. A priority without a band has that of the others.
fn bands(pairs: &Pairs<'_>, old: &ResolvedFlow, new: &ResolvedFlow) -> Vec<Change> {
    let all: BTreeSet<&str> = old.bands.iter().chain(&new.bands).map(|band| band.priority.as_str()).collect();
    let mut changes = Vec::new();
    for priority in all {
        let (Some(before), Some(now)) = (band(old, priority), band(new, priority)) else { continue };
        let place = format!("flow control, priority {priority}");
        for (what, before, now) in [
            ("maxRequests", before.max_requests, now.max_requests),
            ("maxBytes", before.max_bytes, now.max_bytes),
        ] {
            if before != now {
                changes.push(Change::changed(&place, what, before.to_string(), now.to_string()));
            }
        }
        for (what, before, now) in [
            ("fairnessPolicy", &before.fairness_policy, &now.fairness_policy),
            ("orderingPolicy", &before.ordering_policy, &now.ordering_policy),
        ] {
            changes.extend(pairs.one(&place, what, &before.plugin, &now.plugin));
        }
    }
    changes
}

fn band<'a>(flow: &'a ResolvedFlow, priority: &str) -> Option<&'a ResolvedBand> {
    let find = |name: &str| flow.bands.iter().find(|band| band.priority == name);
    let others = if priority.starts_with('-') { "others below 0" } else { "others" };
    find(priority).or_else(|| find(others))
}
