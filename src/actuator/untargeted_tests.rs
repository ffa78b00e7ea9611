//! Gates of a role without a target, with paused time.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::fake::Fake;
use super::tests::S;
use super::{Actuator, SENT};
use crate::capacity::policy::file;
use crate::endpoints::Clock;
use crate::leader::Term;

#[tokio::test(start_paused = true)]
async fn only_replacements_join_the_domain_of_their_siblings() {
    let spec = "{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {name: p}, spec: {mode: Apply, interval: 1s, roles: {decode: {min: 1, max: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}, prefill: {min: 1, max: 9}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}}";
    let policy = Arc::new(file::parse(spec).unwrap().remove(0).policy);
    let fake = Fake::default();
    fake.deployment("d", 1, &json!({}));
    fake.pod("d-0", "decode", false);
    for name in ["p-0", "p-1"] {
        fake.pod(name, "prefill", false);
        fake.annotate(name, &json!({SENT: "rack=r1"}));
    }
    let clock = Clock::stopped();
    clock.set(S(1));
    let (_labels, pool) = watch::channel(Some("app=m".to_owned()));
    let term = Arc::new(Term::endless(clock.clone()));
    let mut actuator = Actuator::new(fake.cluster(), "ns".to_owned(), clock, pool, term);
    actuator.set_policies(std::iter::once(&policy), &[]);
    let sent = |name: &str| (fake.is_gated(name), fake.annotation(name, SENT));
    tokio::time::sleep(S(1)).await;
    actuator.open_replacement_gates(&policy).await;
    // Somebody scales it, and r1 may have no room for more.
    for name in ["p-2", "p-3"] {
        fake.pod(name, "prefill", true);
    }
    tokio::time::sleep(S(1)).await;
    actuator.open_all_replacement_gates().await;
    for name in ["p-2", "p-3"] {
        assert_eq!(sent(name), (false, Value::Null), "{name} may go anywhere");
    }
    // One is lost, and made again.
    tokio::time::sleep(S(1)).await;
    actuator.open_replacement_gates(&policy).await;
    fake.delete("p-0");
    fake.pod("p-4", "prefill", true);
    tokio::time::sleep(S(1)).await;
    actuator.open_all_replacement_gates().await;
    assert_eq!(sent("p-4"), (false, json!("rack=r1")));
}
