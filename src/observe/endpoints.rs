//! `GET /endpoints` on the admin port: what the picker knows of every endpoint.

use serde::Serialize;

use crate::endpoints::{Clock, Gauge, Store};

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
    waiting: Option<Value>,
    running: Option<Value>,
    kv_usage: Option<Value>,
}

/// A number and how long ago it was read; nothing before the first reading.
#[derive(Debug, Serialize)]
struct Value {
    value: f64,
    age_ms: u64,
}

/// The page as JSON.
pub fn page(store: &Store, clock: &Clock) -> String {
    let now_ms = clock.now_ms();
    let value = |gauge: &Gauge| {
        gauge.read_at_ms().map(|at| Value { value: gauge.last(), age_ms: now_ms.saturating_sub(at) })
    };
    let snapshot = store.snapshot();
    let rows = snapshot.endpoints().iter().map(|endpoint| {
        let load = endpoint.load();
        Row {
            id: endpoint.id(),
            address: endpoint.authority(),
            slot: endpoint.slot().number(),
            in_flight: load.in_flight(),
            waiting: value(&load.waiting),
            running: value(&load.running),
            kv_usage: value(&load.kv_usage),
        }
    });
    let page = Page { generation: snapshot.generation(), endpoints: rows.collect() };
    // Text and finite numbers always serialise; a gauge refuses anything else.
    serde_json::to_string_pretty(&page).unwrap_or_default()
}
