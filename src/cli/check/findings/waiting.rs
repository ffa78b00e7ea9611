//! Saturation without numbers, queues without bounds, and what another picker needs.

use super::finding::Finding;
use crate::cli::check::view::View;
use crate::registry::Origin;

type Rule = fn(View<'_>) -> Option<Finding>;

pub(super) const RULES: [Rule; 4] = [blind_detector, unbounded, weightless, missing_elsewhere];

/// The detector takes endpoints for full whose numbers were never read.
fn blind_detector(view: View<'_>) -> Option<Finding> {
    let detector = &view.0.saturation_detector.plugin;
    let is_blind = view.has_type(detector, &["utilization-detector"])
        && !view.0.sources.iter().any(|source| {
            source.extractors.iter().any(|name| view.has_type(name, &["core-metrics-extractor"]))
        });
    let effect = match view.0.flow_control {
        Some(_) => "no request that waits is ever let through",
        None => "requests of a priority below 0 are always refused",
    };
    is_blind.then(|| Finding {
        rule: "saturation-without-metrics",
        message: format!(
            "no data source feeds core-metrics-extractor, and '{detector}' takes unread endpoints for full: \
             {effect}. Add metrics-data-source, or use concurrency-detector, which needs no metrics"
        ),
        docs: "docs/guide/flow-control.md#how-requests-wait",
    })
}

fn unbounded(view: View<'_>) -> Option<Finding> {
    let flow = view.0.flow_control.as_ref()?;
    flow.max_bytes.is_none().then(|| Finding {
        rule: "waiting-bytes-unbounded",
        message: "flow control has no maxBytes, so each priority alone may hold as many bytes of waiting bodies as \
                  its band allows: 5,000 requests of 100 KB are 500 MB"
            .to_owned(),
        docs: "docs/guide/flow-control.md",
    })
}

fn weightless(view: View<'_>) -> Option<Finding> {
    let profiles = view.0.profiles.iter();
    let all = profiles.flat_map(|profile| profile.scorers.iter().map(move |scorer| (profile, scorer)));
    let none: Vec<String> = all
        .filter(|(_, scorer)| scorer.weight == 0.0)
        .map(|(profile, scorer)| format!("'{}' of profile '{}'", scorer.plugin, profile.name))
        .collect();
    (!none.is_empty()).then(|| Finding {
        rule: "weight-zero",
        message: format!("the weight 0 takes all effect from {}", none.join(", ")),
        docs: "docs/guide/configuration.md#keys",
    })
}

/// Usher adds the producer, llm-d-router doesn't.
fn missing_elsewhere(view: View<'_>) -> Option<Finding> {
    let mut plugins = view.0.plugins.iter();
    let scorer = plugins.find(|plugin| plugin.plugin_type == "token-load-scorer")?;
    let producer = &scorer.reads.iter().find_map(|read| view.plugin(&read.producer))?;
    let is_added = producer.plugin_type == "inflight-load-producer" && producer.origin == Origin::Defaulted;
    is_added.then(|| Finding {
        rule: "producer-undeclared",
        message: format!(
            "'{}' reads '{}', which only Usher adds by itself; declare it if the file is to go back to llm-d-router",
            scorer.name, producer.name
        ),
        docs: "docs/guide/migrate-from-llm-d.md#plugins",
    })
}
