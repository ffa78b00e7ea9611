//! Policies whose numbers are queries: what the server of the queries does, and what becomes of the plans.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::capacity::{Group, policy};
use crate::server::{Server, Step, ok};

/// A server of queries that can be told what to answer.
struct Prometheus {
    server: Server,
    response: Arc<Mutex<Vec<Step>>>,
}

impl Prometheus {
    async fn start() -> Self {
        let response = Arc::new(Mutex::new(samples(&[])));
        let said = Arc::clone(&response);
        Self { server: Server::start(move |_| said.lock().unwrap().clone()).await, response }
    }

    fn says(&self, response: Vec<Step>) {
        *self.response.lock().unwrap() = response;
    }

    fn flag(&self) -> String {
        format!("--prometheus-address=http://{}", self.server.address)
    }
}

fn samples(values: &[&str]) -> Vec<Step> {
    let result: Vec<Value> =
        values.iter().map(|value| json!({"metric": {}, "value": [1700000000.5, value]})).collect();
    let data = json!({"resultType": "vector", "result": result});
    ok(&json!({"status": "success", "data": data}).to_string())
}

fn fails() -> Vec<Step> {
    vec![Step::Send(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_vec())]
}

fn asked(result: &str) -> String {
    format!("usher_capacity_queries_total{{result=\"{result}\"}}")
}

const QUERY: &str = "sum(rate(http_requests_total[1m]))";

fn by_rule() -> String {
    let rule = format!(
        "{{name: up, role: decode, source: prometheus, metric: '{QUERY}', comparator: GREATER_THAN, threshold: 10, step: 1, cooldown: 1s}}"
    );
    policy("r", &format!("interval: 1s, roles: {{decode: {{min: 1, max: 100}}}}, rules: [{rule}]"))
}

const FIRED: &str = "usher_capacity_rules_fired_total{policy=\"r\",rule=\"up\"}";

impl Group {
    async fn outcome(&self, outcome: &str) -> Value {
        let is_it = |group: &Self| {
            let row = group.page("/capacity/v1/rules")["rules"][0].clone();
            (row["outcome"] == outcome).then_some(row)
        };
        self.until(outcome, is_it).await
    }

    /// Waits until so many more ticks were made.
    async fn ticks(&self, more: f64) {
        let ticks =
            |group: &Self| group.picker.metric("usher_capacity_ticks_total{policy=\"r\"}").unwrap_or(0.0);
        let want = ticks(self) + more;
        self.until("ticks", |group| (ticks(group) >= want).then_some(())).await;
    }
}

#[tokio::test]
async fn a_rule_fires_by_a_query_and_by_nothing_else() {
    let prometheus = Prometheus::start().await;
    let group = Group::start(&[("d-1", "decode", 1)], &by_rule(), &[&prometheus.flag()]).await;
    // No sample, several, or none that is a number: it could not be read.
    for (response, result) in
        [(samples(&[]), "no_sample"), (samples(&["20", "20"]), "several"), (samples(&["NaN"]), "no_number")]
    {
        prometheus.says(response);
        group.until(result, |group| group.picker.metric(&asked(result)).map(drop)).await;
        group.ticks(1.0).await;
        assert_eq!(group.outcome("NoData").await["value"], Value::Null, "{result}");
    }
    assert_eq!(group.picker.metric(FIRED), None);
    prometheus.says(samples(&["5"]));
    assert_eq!(group.outcome("Quiet").await["value"], 5.0);
    prometheus.says(samples(&["20"]));
    let fired = group.until("a firing", |group| group.picker.metric(FIRED)).await;
    assert!(fired >= 1.0);

    // The last number counts for three intervals, no longer.
    for (response, result) in
        [(fails(), "status"), (ok("<html>"), "malformed"), (vec![Step::Close], "connection")]
    {
        prometheus.says(response);
        group.until(result, |group| group.picker.metric(&asked(result)).map(drop)).await;
    }
    group.outcome("NoData").await;
    let fired = group.picker.metric(FIRED);
    group.ticks(2.0).await;
    assert_eq!(group.outcome("NoData").await["value"], Value::Null);
    assert_eq!(group.picker.metric(FIRED), fired, "nothing is known");

    prometheus.says(samples(&["21"]));
    group.until("a firing", |group| (group.picker.metric(FIRED) > fired).then_some(())).await;
    let signals = &group.page("/capacity/v1/plans")["plans"][0]["signals"];
    assert_eq!(signals, &json!([{"name": QUERY, "source": "query"}]));
    let heard = prometheus.server.requests.borrow()[0].clone();
    assert!(heard.starts_with("GET /api/v1/query?query=sum%28rate%28"), "{heard}");
}

#[tokio::test]
async fn a_group_starts_from_no_pods_by_a_query() {
    let prometheus = Prometheus::start().await;
    prometheus.says(samples(&["25"]));
    // Half an hour between two ticks: the first one that counts comes soon after the response all the same.
    let spec = format!(
        "interval: 30m, roles: {{decode: {{min: 0, max: 8}}}}, total: {{metrics: [{{name: '{QUERY}', source: prometheus, target: 10}}]}}"
    );
    let group = Group::start(&[], &policy("t", &spec), &[&prometheus.flag()]).await;
    let plan = group.plan("three pods", |plan| plan["plan"]["total"] == 3).await;
    let metric = json!([{"name": QUERY, "value": 25.0, "asks": 3}]);
    assert_eq!(plan["plan"]["stages"]["metrics"], metric);
    assert_eq!(plan["plan"]["conditions"], json!([]));
    assert!(group.picker.metric(&asked("number")) >= Some(1.0));
}

#[tokio::test]
async fn query_rule_never_fires_without_prometheus() {
    let group = Group::start(&[("d-1", "decode", 1)], &by_rule(), &[]).await;
    group.ticks(2.0).await;
    let row = group.outcome("NoData").await;
    assert_eq!((&row["value"], &row["lastFiredMs"]), (&Value::Null, &Value::Null));
}
