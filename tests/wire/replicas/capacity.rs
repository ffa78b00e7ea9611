//! Capacity policies, which act on one replica and are for the requests of all.

use std::time::Duration;

use serde_json::json;

use super::redis::Redis;
use super::usher::Usher;
use crate::capacity::{Group, WAITS, from_zero, model_server, object, policy, pushed};
use crate::support::*;

#[tokio::test]
async fn request_that_waits_at_another_replica_scales_from_zero() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let store = redis.flag();
    let planning = Group::start(&[], &from_zero(), &[WAITS, &store]).await;
    planning.plan("a plan", |plan| plan["plan"]["total"] == 0 && plan["waiting"] == 0).await;
    let mut keda = planning.keda().await;
    let metadata = [("policy", "llama"), ("role", "decode")];
    let mut push = keda.stream_is_active(object(&metadata)).await.unwrap().into_inner();
    assert!(!pushed(&mut push).await);

    let other = Usher::start(&[], &["--secure-serving=false", WAITS, &store]).await;
    let mut request = Connection::to(other.address).await.stream().await;
    request.send(headers(&[(":path", "/v1/completions")], false));
    request.send(body(PROMPT, true));
    // The policy's interval is half an hour, so only the request can have brought this about.
    assert!(pushed(&mut push).await);
    let plan = planning.page("/capacity/v1/plans")["plans"][0].clone();
    assert_eq!((&plan["waiting"], &plan["plan"]["roles"][0]["desired"]), (&json!(1), &json!(1)));

    other.set_endpoints(&["127.0.0.1:4242".parse().unwrap()]).await;
    assert_eq!(request.request_headers().await.destination(), "127.0.0.1:4242");
}

#[tokio::test]
async fn short_requests_at_another_replica_keep_the_last_pod() {
    let Some(redis) = Redis::start(&[]).await else { return };
    let (port, _) = model_server([0, 0], "0");
    let policy = policy(
        "llama",
        "interval: 1s, roles: {decode: {min: 0, max: 8}}, total: {metrics: [{name: queue_depth, target: 4}]}, behavior: {scaleDown: {stabilization: 5s}}",
    );
    let (store, staleness) = (redis.flag(), "--metrics-staleness-threshold=30s");
    let (pods, flags) = ([("d-1", "decode", port)], [store.as_str(), staleness]);
    let other = Group::start(&pods, &policy, &flags).await;
    let is_up = |of: &Group| of.picker.metric("usher_state_store_connected").filter(|up| *up == 1.0);
    other.until("the store", is_up).await;
    let address = other.picker.extproc;
    let (answered, mut is_answered) = tokio::sync::mpsc::channel(1);
    let sending = tokio::spawn(async move {
        let connection = Connection::to(address).await;
        loop {
            let mut stream = connection.stream().await;
            stream.send(headers(&[(":path", "/v1/completions")], false));
            stream.send(body(PROMPT, true));
            stream.request_headers().await;
            drop(stream);
            // Full once the first is known.
            let _ = answered.try_send(());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    is_answered.recv().await;
    // Only now: it has no time without requests.
    let planning = Group::start(&pods, &policy, &flags).await;
    planning.until("the store", is_up).await;
    // Ticks at which nothing but the requests keeps the pod: longer than it may idle.
    let kept = "usher_capacity_decisions_total{policy=\"llama\",reason=\"Serving\"}";
    let is_kept = |planning: &Group| {
        let plan = planning.page("/capacity/v1/plans")["plans"][0].clone();
        assert!(plan["plan"].is_null() || plan["plan"]["total"] == 1, "{plan:#}");
        planning.picker.metric(kept).filter(|ticks| *ticks >= 8.0)
    };
    planning.until("ticks", is_kept).await;
    sending.abort();
    planning.plan("no pod", |plan| plan["plan"]["total"] == 0).await;
}
