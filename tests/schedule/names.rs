//! Names of producers that a configuration gives: how many there can be at once, and
//! that those of earlier configurations make room.

use std::sync::Arc;

use usher::endpoints::AttributeId;
use usher::schedule::State;

use crate::pool::{Pool, asking, at, pipeline};
use crate::support::pool;

/// A scorer for each of these producers, which are declared if `declared`.
fn in_flight(names: &[&str], declared: bool) -> String {
    let mut text = "plugins:\n".to_owned();
    for name in names {
        text += &format!(
            "- {{name: 's-{name}', type: active-request-scorer, parameters: {{inFlightLoadProducerName: {name}}}}}\n"
        );
    }
    for name in names.iter().filter(|_| declared) {
        text += &format!("- {{name: {name}, type: inflight-load-producer}}\n");
    }
    text
}

fn attributes(prefix: &str, count: usize) -> String {
    let metric = |number| format!("{{attributeKey: {prefix}{number}, metricSpec: m}}");
    let list = (0..count).map(metric).collect::<Vec<_>>().join(", ");
    format!(
        "plugins:\n- {{type: core-metrics-extractor, parameters: {{engineConfigs: [{{name: a, customMetrics: [{list}]}}]}}}}\n"
    )
}

#[test]
fn many_missing_producers_are_all_named() {
    let state = State::default();
    let error = pipeline(&in_flight(&["a", "b", "c", "d", "e"], false), &state).unwrap_err();
    let message = "plugin 's-a': it reads InFlightLoad from the plugin 'a', which is not declared";
    assert_eq!(error.message(), message);
    // The default producer exists, but no other.
    let some = in_flight(&["a", "b", "c", "d"], false) + "- type: inflight-load-producer\n";
    let error = pipeline(&some, &state).unwrap_err();
    assert_eq!(error.message(), message);
    // What failed has left nothing behind.
    assert!(pipeline(&in_flight(&["f", "g", "h", "i"], true), &state).is_ok());
}

#[test]
fn many_missing_attributes_are_all_named() {
    let scorer = |number: usize| {
        format!(
            "- {{name: s{number}, type: endpoint-attribute-scorer, parameters: {{attributeKey: a{number}, algorithm: {{type: linear_lower_is_better}}}}}}\n"
        )
    };
    let scorers: String = (0..=AttributeId::MAX).map(scorer).collect();
    let state = State::default();
    let error = pipeline(&format!("plugins:\n{scorers}"), &state).unwrap_err();
    let message = "plugin 's0': it reads the attribute 'a0' of the plugin 'core-metrics-extractor', which doesn't have it";
    assert_eq!(error.message(), message);
    assert!(pipeline(&attributes("other", AttributeId::MAX), &state).is_ok());
}

#[test]
fn number_of_producers_is_bounded() {
    let state = State::default();
    let error = pipeline(&in_flight(&["a", "b", "c", "d", "e"], true), &state).unwrap_err();
    assert_eq!(error.message(), "plugin 's-e': there can be 4 in-flight load producers at most");
    assert_eq!(error.position().map(|at| at.line), Some(6));
    let error = pipeline(&attributes("a", AttributeId::MAX + 1), &state).unwrap_err();
    assert!(error.message().ends_with("there can be 16 attributes at most"), "{error}");
}

#[test]
fn names_of_earlier_configurations_are_freed() {
    let state = State::default();
    for round in 0..10 {
        let names = ["a", "b", "c", "d"].map(|name| format!("{name}{round}"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let first = pipeline(&in_flight(&names, true), &state).unwrap();
        let second = pipeline(&in_flight(&names, true), &state).expect("the same ones again");
        assert!(pipeline(&in_flight(&["other"], true), &state).is_err(), "both are in use");
        drop(first);
        assert!(pipeline(&in_flight(&["other"], true), &state).is_err(), "one is in use");
        drop(second);
        pipeline(&attributes(&format!("r{round}-"), AttributeId::MAX), &state).unwrap();
    }
}

#[test]
fn a_request_under_way_keeps_its_counters() {
    let state = Arc::new(State::default());
    let pool =
        Pool::with_state(&in_flight(&["a", "b", "c", "d"], true), at(&["10.0.0.1:80"]), Arc::clone(&state));
    let routed = pool.route(&asking(&[])).unwrap();
    drop(pool);
    assert!(pipeline(&in_flight(&["e"], true), &state).is_err(), "it would count in somebody's counters");
    drop(routed);
    assert!(pipeline(&in_flight(&["e"], true), &state).is_ok());
}

#[test]
fn readings_of_removed_names_are_dropped() {
    let state = State::default();
    let all = pool(1, |_, _| ());
    let load = all.view().get(0).load();
    let (counters, gauge) = (state.in_flight("p").unwrap(), state.attribute("p", "a").unwrap());
    let (id, attribute) = (counters.id(), gauge.id());
    load.in_flight_of(id).report(5, 50);
    load.attribute(attribute).set(7.0, 1);
    state.sweep(all.snapshot(), 1);
    assert_eq!(load.in_flight_of(id).requests(), 5, "somebody holds it");
    assert_eq!(load.attribute(attribute).read_at_ms(), Some(1));
    drop((counters, gauge));
    state.sweep(all.snapshot(), 1);
    assert_eq!(load.in_flight_of(id).requests(), 0);
    assert_eq!(load.attribute(attribute).read_at_ms(), None);
}
