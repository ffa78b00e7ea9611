//! The driver before an API server, while time is paused.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use super::tests::{S, driver};
use super::*;
use crate::actuator::fake::Fake;
use crate::leader::Term;

/// A role of four pods that come up at once, looked at every half hour.
const SPEC: &str = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {mode: Apply, interval: 30m, roles: {decode: {min: 4, max: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}}, deploy: {steps: {decode: 4}}}\n";

/// A server with four pods of a Deployment.
fn server() -> Fake {
    let fake = Fake::default();
    fake.deployment("d", 4, &json!({}));
    for number in 0..4 {
        fake.pod(&format!("d-{number}"), "decode", false);
    }
    fake
}

/// A driver that acts there. Its clock goes with the runtime's as long as the future that is returned is polled.
fn acting(fake: &Fake, policies: &str) -> (Driver, Arc<Term>, impl Future<Output = ()>) {
    let mut driver = driver(policies);
    let clock = driver.live.clock.clone();
    let (_, pool) = watch::channel(Some("app=m".to_owned()));
    let term = Arc::new(Term::endless(clock.clone()));
    let lasts = Arc::clone(&term);
    driver.live.may_act = Box::new(move || lasts.lasts());
    let hands = Hands::new(fake.cluster(), "ns".to_owned(), clock.clone(), pool, Arc::clone(&term));
    driver.live.hands = Some(hands);
    let start = Instant::now();
    let goes = async move {
        let mut steps = tokio::time::interval(Duration::from_millis(100));
        loop {
            steps.tick().await;
            clock.set(start.elapsed());
        }
    };
    (driver, term, goes)
}

/// Runs a driver of a file of policies while a test does something.
async fn beside(
    driver: Driver,
    goes: impl Future<Output = ()>,
    policies: &str,
    test: impl Future<Output = ()>,
) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(policies.as_bytes()).unwrap();
    let feed = Feed::File(PolicyFile::new(file.path()));
    tokio::select! {
        () = driver.run(feed) => {}
        () = goes => {}
        () = test => {}
    }
}

/// Lets time pass until something is so, for as long as that.
async fn within(limit: Duration, what: &str, is_so: impl Fn() -> bool) {
    let ends = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < ends, "{what} takes longer than {limit:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_replacement_passes_its_gate_long_before_the_next_tick() {
    let fake = server();
    let (driver, _, goes) = acting(&fake, SPEC);
    let board = Arc::clone(driver.board());
    let test = async {
        within(S(10), "the first tick", || board.plans().policies.iter().any(|of| of.latest.is_some())).await;
        fake.pod("d-9", "decode", true);
        tokio::time::sleep(S(30)).await;
        assert!(fake.is_gated("d-9"), "it is one more");
        fake.delete("d-0");
        within(S(3), "the gate", || !fake.is_gated("d-9")).await;
        // The API server is down for a while, and says nothing more after that.
        fake.refuse(http::Method::PATCH, "/pods/", 503);
        fake.delete("d-1");
        fake.pod("d-10", "decode", true);
        tokio::time::sleep(S(30)).await;
        assert!(fake.is_gated("d-10"));
        fake.accept();
        within(S(6), "the gate", || !fake.is_gated("d-10")).await;
    };
    beside(driver, goes, SPEC, test).await;
}
