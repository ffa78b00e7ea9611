//! A real Redis, for whoever shares load through it.

#[path = "../wire/replicas/redis.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod redis;

pub(crate) use self::redis::Redis;

/// Waits until something is so.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    crate::support::eventually(what, async || is_so().await.then_some(())).await;
}
