//! `GET /endpoints` on the admin port: what the picker knows of every endpoint, and how old
//! that is.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::endpoints::{AttributeId, Clock, Endpoint, Gauge, Store};

/// Attributes that the configuration added, with their names.
pub type Attributes = Vec<(AttributeId, String)>;

#[derive(Debug, Serialize)]
struct Page<'a> {
    generation: u64,
    endpoints: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    id: &'a str,
    address: &'a str,
    slot: u32,
    in_flight: i64,
    in_flight_of_others: i64,
    waiting: Option<Value>,
    running: Option<Value>,
    kv_usage: Option<Value>,
    block_size: Option<Value>,
    num_blocks: Option<Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapters: Option<Adapters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Models>,
    scrapes: Scrapes,
    health: Health,
}

/// A number and how long ago it was read; nothing before the first reading.
#[derive(Debug, Serialize)]
struct Value {
    value: f64,
    age_ms: u64,
}

#[derive(Debug, Serialize)]
struct Adapters {
    running: Vec<String>,
    waiting: Vec<String>,
    max: u32,
    age_ms: u64,
}

#[derive(Debug, Serialize)]
struct Models {
    ids: Vec<String>,
    age_ms: u64,
}

#[derive(Debug, Serialize)]
struct Scrapes {
    failures_in_a_row: u32,
    unreachable_in_a_row: u32,
    failures_total: u64,
    failing_for_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Health {
    ejected: bool,
    failures_in_a_row: u32,
    #[serde(flatten)]
    ejection: Option<Ejection>,
}

/// Ejection of an endpoint: its cause and its progress towards recovery.
#[derive(Debug, Serialize)]
struct Ejection {
    reason: String,
    ejected_for_ms: u64,
    successes_in_a_row: u32,
    probing: bool,
    next_probe_in_ms: u64,
}

/// The page as JSON.
pub fn page(store: &Store, clock: &Clock, attributes: &Attributes) -> String {
    let now_ms = clock.now_ms();
    let snapshot = store.snapshot();
    let rows = snapshot.endpoints().iter().map(|endpoint| row(endpoint, attributes, now_ms));
    let page = Page { generation: snapshot.generation(), endpoints: rows.collect() };
    // Text and finite numbers always serialise; a gauge refuses anything else.
    serde_json::to_string_pretty(&page).unwrap_or_default()
}

fn row<'a>(endpoint: &'a Endpoint, attributes: &'a Attributes, now_ms: u64) -> Row<'a> {
    let load = endpoint.load();
    let age = |gauge: &Gauge| gauge.read_at_ms().map(|at| now_ms.saturating_sub(at));
    let value = |gauge: &Gauge| age(gauge).map(|age_ms| Value { value: gauge.last(), age_ms });
    let named = |(id, name): &'a (AttributeId, String)| Some((name.as_str(), value(load.attribute(*id))?));
    let adapters = load.adapters.load_full().zip(age(&load.adapters_read));
    let models = load.models.load_full().zip(age(&load.models_read));
    let condition = endpoint.health().condition();
    Row {
        id: endpoint.id(),
        address: endpoint.authority(),
        slot: endpoint.slot().number(),
        in_flight: load.in_flight(),
        in_flight_of_others: load.others(),
        waiting: value(&load.waiting),
        running: value(&load.running),
        kv_usage: value(&load.kv_usage),
        block_size: value(&load.block_size),
        num_blocks: value(&load.num_blocks),
        attributes: attributes.iter().filter_map(named).collect(),
        adapters: adapters.map(|(adapters, age_ms)| Adapters {
            running: adapters.running.clone(),
            waiting: adapters.waiting.clone(),
            max: adapters.max,
            age_ms,
        }),
        models: models.map(|(models, age_ms)| Models {
            ids: models.iter().map(|model| model.id.clone()).collect(),
            age_ms,
        }),
        scrapes: Scrapes {
            failures_in_a_row: load.scrapes.failures_in_a_row(),
            unreachable_in_a_row: load.scrapes.unreachable_in_a_row(),
            failures_total: load.scrapes.failures_total(),
            failing_for_ms: load.scrapes.failing_since_ms().map(|since| now_ms.saturating_sub(since)),
        },
        health: Health {
            ejected: condition.ejection.is_some(),
            failures_in_a_row: condition.failures,
            ejection: condition.ejection.map(|ejection| Ejection {
                reason: ejection.cause.to_string(),
                ejected_for_ms: now_ms.saturating_sub(ejection.since_ms),
                successes_in_a_row: ejection.successes,
                probing: ejection.probing,
                next_probe_in_ms: ejection.next_probe_ms.saturating_sub(now_ms),
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::endpoints::{Adapters, EndpointSpec, Model};

    #[test]
    fn every_field_shows_its_age() {
        let store = Store::default();
        store.replace(vec![
            EndpointSpec::new("a", ([10, 0, 0, 1], 8000)),
            EndpointSpec::new("b", ([10, 0, 0, 2], 1)),
        ]);
        let clock = Clock::stopped();
        clock.set(Duration::from_millis(999));
        let snapshot = store.snapshot();
        let load = snapshot.endpoints()[0].load();
        load.waiting.set(3.0, 990);
        load.num_blocks.set(70.0, 1000);
        let id = AttributeId::new(2).unwrap();
        load.attribute(id).set(0.5, 400);
        load.adapters.store(Some(Arc::new(Adapters {
            running: vec!["sql".into()],
            waiting: vec![],
            max: 2,
        })));
        load.adapters_read.set(1.0, 950);
        load.models.store(Some(Arc::new(vec![Model { id: "llama".into(), parent: None }])));
        load.models_read.set(1.0, 1);
        load.scrapes.failed(false, 900);
        load.scrapes.failed(false, 950);
        let page: serde_json::Value =
            serde_json::from_str(&page(&store, &clock, &vec![(id, "hot".to_owned())])).unwrap();
        let never = json!({"failures_in_a_row": 0, "unreachable_in_a_row": 0, "failures_total": 0, "failing_for_ms": null});
        let [a, b] = [0, 1].map(|index| page["endpoints"][index].clone());
        assert_eq!(a["waiting"], json!({"value": 3.0, "age_ms": 10}));
        assert_eq!(a["num_blocks"], json!({"value": 70.0, "age_ms": 0}));
        assert_eq!((&a["running"], &b["waiting"]), (&json!(null), &json!(null)));
        assert_eq!(a["attributes"], json!({"hot": {"value": 0.5, "age_ms": 600}}));
        assert_eq!(a["adapters"], json!({"running": ["sql"], "waiting": [], "max": 2, "age_ms": 50}));
        assert_eq!(a["models"], json!({"ids": ["llama"], "age_ms": 999}));
        assert_eq!(
            a["scrapes"],
            json!({"failures_in_a_row": 2, "unreachable_in_a_row": 2, "failures_total": 2, "failing_for_ms": 100})
        );
        assert_eq!(b["scrapes"], never);
        assert!(b.get("models").is_none() && b.get("adapters").is_none() && b.get("attributes").is_none());
    }
}
