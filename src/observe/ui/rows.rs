//! Endpoints for the page: their names once, and their numbers when they change.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::endpoints::{Endpoint, Gauge, ROLE_LABEL, Snapshot};
use crate::kv_subscriber::Followed;
use crate::prefix::EngineStatus;
use crate::schedule::latency::{Model, Table};

/// Steps of the ages of readings that aren't stale.
const STEPS: u64 = 4;

/// Inputs of rows besides the endpoints.
pub(super) struct Known<'a> {
    /// Age from which on a reading doesn't count.
    pub(super) max_age: Duration,
    /// Latency model, if there is one.
    pub(super) model: Option<&'a Model>,
    /// KV events, if a plugin follows them.
    pub(super) events: Option<Followed>,
}

/// Numbers of all endpoints, as they were shown last.
#[derive(Default)]
pub(super) struct Rows {
    snapshot: Option<Arc<Snapshot>>,
    /// JSON of each endpoint's names.
    names: Vec<String>,
    /// JSON of each endpoint's numbers.
    rows: Vec<String>,
}

impl Rows {
    /// Takes in what the endpoints are like now. Returns the numbers that changed; `None`: the endpoints are others.
    pub(super) fn update(
        &mut self,
        snapshot: &Arc<Snapshot>,
        now_ms: u64,
        known: &Known<'_>,
    ) -> Option<String> {
        let table = known.model.map(Model::read);
        let endpoints = snapshot.endpoints();
        let rows: Vec<String> =
            endpoints.iter().map(|endpoint| numbers(endpoint, now_ms, known, table.as_ref())).collect();
        let is_same = self.snapshot.as_ref().is_some_and(|known| Arc::ptr_eq(known, snapshot));
        if !is_same {
            self.names = endpoints.iter().map(|endpoint| names(endpoint)).collect();
            self.snapshot = Some(Arc::clone(snapshot));
            self.rows = rows;
            return None;
        }
        let both = rows.iter().zip(&self.rows).enumerate();
        let changed = both.filter(|(_, (new, old))| new != old);
        let changed: Vec<String> = changed.map(|(place, (new, _))| format!("[{place},{new}]")).collect();
        self.rows = rows;
        Some(format!("{{\"changed\":[{}]}}", changed.join(",")))
    }

    /// All endpoints.
    pub(super) fn all(&self) -> String {
        format!("{{\"names\":[{}],\"rows\":[{}]}}", self.names.join(","), self.rows.join(","))
    }
}

/// Id, address, role, and the parts of a request's work that the role does.
fn names(endpoint: &Endpoint) -> String {
    let role = endpoint.role();
    let parts = [(role.encode, "encode"), (role.prefill, "prefill"), (role.decode, "decode")];
    let parts: Vec<_> = parts.iter().filter(|(does, _)| *does).map(|(_, part)| part).collect();
    json!([&**endpoint.id(), &**endpoint.authority(), endpoint.label(ROLE_LABEL), parts]).to_string()
}

/// In flight, waiting, running, share of the KV cache; milliseconds since the oldest of those was read, in steps;
/// scrapes that failed in a row; learned prompt tokens per second and seconds per output token; ejection; KV
/// events. What isn't known is null.
fn numbers(endpoint: &Endpoint, now_ms: u64, known: &Known<'_>, table: Option<&Table<'_>>) -> String {
    let load = endpoint.load();
    let gauges = [&load.waiting, &load.running, &load.kv_usage];
    let value = |gauge: &Gauge| gauge.read_at_ms().map(|_| rounded(gauge.last()));
    let oldest = gauges.iter().filter_map(|gauge| gauge.read_at_ms()).min();
    let age = oldest.map(|at| in_steps(now_ms.saturating_sub(at), known.max_age));
    let speed = table.and_then(|table| table.learned(endpoint));
    let prefill = speed.map(|speed| (1.0 / speed.per_token).round());
    let per_token = speed.map(|speed| rounded(speed.per_output.base));
    let [waiting, running, kv] = gauges.map(value);
    let failures = load.scrapes.failures_in_a_row();
    let (ejection, events) = (ejection(endpoint), events(endpoint, known.events.as_ref()));
    json!([load.in_flight(), waiting, running, kv, age, failures, prefill, per_token, ejection, events])
        .to_string()
}

/// An age in milliseconds, rounded up to a quarter of the age at which readings are stale, and to seconds above that:
/// exact ages change all the time, and would all be sent.
fn in_steps(age: u64, max_age: Duration) -> u64 {
    let most = u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX);
    let step = if age <= most { (most / STEPS).max(1) } else { 1000 };
    age.max(1).div_ceil(step).saturating_mul(step)
}

/// Cause, time of the ejection on the clock of the endpoints, successes in a row since and whether a probe is under
/// way.
fn ejection(endpoint: &Endpoint) -> Value {
    endpoint.health().condition().ejection.map_or(Value::Null, |ejection| {
        json!([ejection.cause.to_string(), ejection.since_ms, ejection.successes, ejection.probing])
    })
}

/// State, gaps, restarts, and the time of the newest batch in milliseconds since 1970.
fn events(endpoint: &Endpoint, followed: Option<&Followed>) -> Value {
    let Some(followed) = followed else { return Value::Null };
    let Some(known) = followed.endpoints.get(endpoint.id()) else {
        return json!([EngineStatus::Unknown.name(), 0, 0, null]);
    };
    json!([known.status.name(), known.gaps, known.restarts, known.newest_ms])
}

/// With four digits behind the point.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, Store};
    use crate::kv_subscriber::EndpointState;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn only_changes_are_sent_for_the_same_endpoints() {
        const MAX_AGE: Duration = Duration::from_secs(2);
        let mut known = Known { max_age: MAX_AGE, model: None, events: None };
        let store = Store::default();
        let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
        store.replace(vec![spec(1), spec(2)]);
        let (mut rows, snapshot) = (Rows::default(), store.snapshot());
        assert_eq!(rows.update(&snapshot, 1000, &known), None);
        let all = parsed(&rows.all());
        assert_eq!(all["names"][1], json!(["default/pod-2", "10.0.0.2:8000", null, ["decode"]]));
        assert_eq!(all["rows"][0], json!([0, null, null, null, null, 0, null, null, null, null]));
        assert_eq!(rows.update(&snapshot, 1100, &known).unwrap(), "{\"changed\":[]}");
        let load = snapshot.endpoints()[1].load();
        load.waiting.set(3.0, 1200);
        load.kv_usage.set(0.123_456, 1300);
        let changed = parsed(&rows.update(&snapshot, 1400, &known).unwrap());
        assert_eq!(changed["changed"], json!([[1, [0, 3.0, null, 0.1235, 500, 0, null, null, null, null]]]));
        assert_eq!(rows.update(&snapshot, 1700, &known).unwrap(), "{\"changed\":[]}", "in the same step");
        let changed = parsed(&rows.update(&snapshot, 5300, &known).unwrap());
        assert_eq!(changed["changed"][0][1][4], 5000);
        assert_eq!([0, 500, 501, 2000, 2001].map(|age| in_steps(age, MAX_AGE)), [500, 500, 1000, 2000, 3000]);
        let state =
            EndpointState { status: EngineStatus::Partial, gaps: 2, restarts: 1, newest_ms: Some(5000) };
        known.events = Some(Followed {
            queued: 0,
            endpoints: [(Arc::clone(snapshot.endpoints()[1].id()), state)].into(),
        });
        let changed = parsed(&rows.update(&snapshot, 5300, &known).unwrap());
        assert_eq!(changed["changed"][0][1][9], json!(["not heard", 0, 0, null]));
        assert_eq!(changed["changed"][1][1][9], json!(["partial", 2, 1, 5000]));
        store.replace(vec![spec(2)]);
        assert_eq!(rows.update(&store.snapshot(), 5300, &known), None);
        assert_eq!(parsed(&rows.all())["rows"].as_array().unwrap().len(), 1);
    }
}
