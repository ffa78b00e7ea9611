//! Capacity policies, which act on one replica and are for the requests of all.

use serde_json::json;

use super::redis::Redis;
use super::usher::Usher;
use crate::capacity::{Group, WAITS, from_zero, object, pushed};
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
