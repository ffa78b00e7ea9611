//! Scheduling gates between ticks, with a fake API server and paused time.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use super::tests::{S, driver};
use super::*;
use crate::actuator::fake::Fake;
use crate::capacity::resource::status::Verdict;
use crate::capacity::{Condition, Reason};
use crate::leader::Term;

/// A role of four pods in one step, with a tick every half hour.
const SPEC: &str = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {mode: Apply, interval: 30m, roles: {decode: {min: 4, max: 4, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}}, deploy: {steps: {decode: 4}}}\n";

/// Server with four pods of a Deployment.
fn server() -> Fake {
    let fake = Fake::default();
    fake.deployment("d", 4, &json!({}));
    for number in 0..4 {
        fake.pod(&format!("d-{number}"), "decode", false);
    }
    fake
}

/// Driver for this server, and a future that keeps its clock equal to the runtime's while it is polled.
pub(super) fn acting(fake: &Fake, policies: &str) -> (Driver, Arc<Term>, impl Future<Output = ()>) {
    let mut driver = driver(policies);
    let clock = driver.live.clock.clone();
    let (_, pool) = watch::channel(Some("app=m".to_owned()));
    let term = Arc::new(Term::endless(clock.clone()));
    let lasts = Arc::clone(&term);
    driver.live.may_act = Box::new(move || lasts.lasts());
    let actuator = Actuator::new(fake.cluster(), "ns".to_owned(), clock.clone(), pool, Arc::clone(&term));
    driver.live.actuator = Some(actuator);
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

/// Runs a driver of a policy file beside a test.
pub(super) async fn beside(
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

/// Waits until a condition holds, up to a limit.
pub(super) async fn within(limit: Duration, what: &str, is_so: impl Fn() -> bool) {
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
    let plan_store = Arc::clone(driver.plan_store());
    let test = async {
        within(S(10), "the first tick", || plan_store.plans().policies.iter().any(|of| of.latest.is_some()))
            .await;
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

/// Policy object with the status of an earlier leader.
fn left(generation: i64, role: &serde_json::Value) -> Known {
    let status = json!({"observedGeneration": 1, "state": "Idle", "roles": [role]});
    Known {
        name: "p".to_owned(),
        uid: "u".to_owned(),
        generation: Some(generation),
        verdict: Verdict { is_accepted: true, reason: "Accepted", message: String::new() },
        status: serde_json::from_value(status).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn new_leader_takes_over_only_admitted_pods() {
    let hpa = json!({"items": [{"metadata": {"name": "h"}, "spec": {"scaleTargetRef":
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}]});
    let role = |selector: &str, target: &str| {
        let role = json!({"name": "decode", "selector": selector, "target": target});
        let more = json!({"desired": 4, "admitted": 4, "letThrough": 4});
        let all = [role, more].map(|part| part.as_object().cloned().unwrap_or_default());
        serde_json::Value::Object(all.into_iter().flatten().collect())
    };
    let through = role("llm-d.ai/role=decode", "Deployment.apps/d");
    let mut planned = through.clone();
    planned["letThrough"].take();
    for (left, opens) in [
        (left(1, &through), true),
        // The policy was edited, and its roles have the same pods.
        (left(2, &through), true),
        (left(1, &planned), false),
        (left(2, &role("llm-d.ai/role=both", "Deployment.apps/d")), false),
        (left(2, &role("llm-d.ai/role=decode", "Deployment.apps/other")), false),
        (left(1, &json!({"name": "decode", "desired": 4, "admitted": 4, "letThrough": 4})), false),
    ] {
        let fake = server();
        fake.has("/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers", hpa.clone());
        fake.delete("d-0");
        fake.pod("d-9", "decode", true);
        let (mut driver, _, goes) = acting(&fake, SPEC);
        driver.objects = vec![left].into();
        let plan_store = Arc::clone(driver.plan_store());
        let plan = || plan_store.plans().policies.first().and_then(|of| of.latest.clone());
        let test = async {
            within(S(10), "the first tick", || plan().is_some()).await;
            let held = plan().unwrap();
            assert!(held.plan.conditions.contains(&Condition::OtherScaler), "{:?}", held.plan.conditions);
            tokio::time::sleep(S(30)).await;
            assert_eq!(!fake.is_gated("d-9"), opens);
        };
        beside(driver, goes, SPEC, test).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_lease_is_shown_at_once_and_written_on_renewal() {
    let spec = SPEC.replace("30m", "10s");
    let fake = server();
    let (driver, term, goes) = acting(&fake, &spec);
    let (plan_store, clock) = (Arc::clone(driver.plan_store()), driver.live.clock.clone());
    let first = || plan_store.plans().policies.first().cloned();
    let conditions =
        || first().and_then(|of| of.latest).map(|of| of.plan.conditions.clone()).unwrap_or_default();
    let held = || first().and_then(|of| of.held).map(|held| held.condition);
    let lost = Condition::LeaseNotRenewed;
    let test = async {
        within(S(10), "the first tick", || first().is_some_and(|of| of.latest.is_some())).await;
        assert_eq!((held(), conditions().contains(&lost)), (None, false));
        term.set(None);
        within(S(11), "the page", || held() == Some(lost)).await;
        let page = crate::scaling::pages::plans(&plan_store, &clock);
        assert!(
            page.contains("\"condition\": \"LeaseNotRenewed\"") && page.contains("not renewed in time"),
            "{page}"
        );
        term.set(Some(S(9000)));
        within(S(2), "the next tick", || held().is_none()).await;
        assert!(conditions().contains(&lost), "the lost condition is reported now: {:?}", conditions());
        within(S(11), "the one after that", || !conditions().contains(&lost)).await;
    };
    beside(driver, goes, &spec, test).await;
}

#[tokio::test(start_paused = true)]
async fn unfinished_writes_resume_soon_and_do_not_count_as_failed() {
    let fake = Fake::default();
    fake.deployment("d", 80, &json!({}));
    for number in 0..80 {
        fake.pod(&format!("d-{number}"), "decode", true);
    }
    fake.takes(Duration::from_millis(100));
    let spec = SPEC
        .replace("min: 4, max: 4", "min: 80, max: 80")
        .replace("steps: {decode: 4}", "steps: {decode: 80}");
    let (driver, _, goes) = acting(&fake, &spec);
    let plan_store = Arc::clone(driver.plan_store());
    let latest = || plan_store.plans().policies.first().and_then(|of| of.latest.clone());
    let open = || (0..80).filter(|number| !fake.is_gated(&format!("d-{number}"))).count();
    let test = async {
        within(S(10), "the first tick", || latest().is_some()).await;
        let (first, opened) = (latest().unwrap(), open());
        assert!((40..60).contains(&opened), "five seconds are enough for fifty: {opened}");
        assert!(!first.plan.conditions.contains(&Condition::WriteFailed), "{:?}", first.plan.conditions);
        assert!(first.plan.roles[0].reasons.contains(&Reason::Unfinished));
        within(S(8), "the rest", || open() == 80).await;
        let is_over = || !latest().unwrap().plan.roles[0].reasons.contains(&Reason::Unfinished);
        within(S(2), "the second tick", is_over).await;
    };
    beside(driver, goes, &spec, test).await;
}

#[tokio::test(start_paused = true)]
async fn refused_policies_admit_replacements() {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let role = json!({"min": 4, "max": 4, "scaleTargetRef": target});
    let spec = |more: serde_json::Value| {
        let whole = json!({"mode": "Apply", "poolRef": {"name": "m"}, "roles": {"decode": role}});
        let all = [whole, more].map(|part| part.as_object().cloned().unwrap_or_default());
        serde_json::Value::Object(all.into_iter().flatten().collect())
    };
    let topology = json!({"clusterTopology": "gone", "constraint": "Required"});
    let signal = json!([{"name": "no-such-number", "target": 4}]);
    for (reason, spec) in [
        ("TopologyUnknown", spec(json!({"deploy": {"steps": {"decode": 4}, "topology": topology}}))),
        ("Invalid", spec(json!({"total": {"metrics": signal}}))),
        ("Invalid", spec(json!({"interval": "soon", "behavior": 7}))),
        ("TargetUnknown", spec(json!({"poolRef": null}))),
        ("TargetConflict", spec(json!({"roles": {"decode": role, "other": role}}))),
    ] {
        let fake = server();
        fake.delete("d-0");
        for name in ["d-8", "d-9"] {
            fake.pod(name, "decode", true);
        }
        let (mut driver, _, goes) = acting(&fake, SPEC);
        driver.policy_store = PolicyStore::new("m".to_owned());
        let object = json!({
            "metadata": {"name": "q", "uid": "u", "generation": 1},
            "spec": spec,
            "status": {"observedGeneration": 1, "roles": [{
                "name": "decode", "selector": "llm-d.ai/role=decode", "target": "Deployment.apps/d",
                "letThrough": 4,
            }]},
        });
        let object: objects::PolicyObject = serde_json::from_value(object).unwrap();
        let policies = crate::cluster::Change::All(vec![object]);
        let lookups = Lookups::default();
        driver.apply_objects(objects::ObjectUpdate::Policies(policies), &lookups).await;
        let unknown = Owner::Unknown("there is no such Deployment".to_owned());
        let owned = (serde_json::from_value(target.clone()).unwrap(), unknown);
        driver.apply_owners(vec![owned]).await;
        assert_eq!(driver.objects[0].verdict.reason, reason);
        assert!(driver.running.is_empty(), "{reason}");
        let (_say, mut updates) = mpsc::channel(1);
        let test = async {
            let waiting = || ["d-8", "d-9"].into_iter().filter(|name| fake.is_gated(name)).count();
            within(S(7), reason, || waiting() == 1).await;
            tokio::time::sleep(S(30)).await;
            assert_eq!(waiting(), 1, "{reason}: one replaces another");
        };
        tokio::select! {
            () = driver.drive(&mut updates, &lookups, "") => {}
            () = goes => {}
            () = test => {}
        }
    }
}

/// States in which nothing can be written, each brought about at the API server.
#[tokio::test(start_paused = true)]
async fn policies_unable_to_write_admit_replacements() {
    let hpas = "/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers";
    let hpa = json!({"items": [{"metadata": {"name": "h"}, "spec": {"scaleTargetRef":
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}]});
    let spec = SPEC.replace("30m", "1s");
    let grows = spec.replace("min: 4, max: 4", "min: 5, max: 5");
    let refuses = |method: http::Method, path: &'static str, code: u16| {
        move |fake: &Fake| fake.refuse(method.clone(), path, code)
    };
    type Fault<'a> = &'a dyn Fn(&Fake);
    let cases: [(&str, &str, Fault<'_>); 6] = [
        ("Unobserved", &spec, &refuses(http::Method::GET, "/deployments/d", 403)),
        ("Unobserved", &spec, &refuses(http::Method::GET, "/deployments/d", 404)),
        ("Unobserved", &spec, &refuses(http::Method::GET, "/deployments/d", 503)),
        ("OtherScaler", &spec, &|fake| fake.has(hpas, hpa.clone())),
        ("OtherScaler", &spec, &refuses(http::Method::GET, "/horizontalpodautoscalers", 403)),
        ("WriteFailed", &grows, &refuses(http::Method::PATCH, "/scale", 500)),
    ];
    for (condition, spec, fault) in cases {
        let fake = server();
        let (driver, _, goes) = acting(&fake, spec);
        let plan_store = Arc::clone(driver.plan_store());
        let first = || plan_store.plans().policies.first().cloned();
        let says = |condition: &str| {
            let of = first().unwrap();
            let held = of.held.map(|held| held.condition);
            let plan = of.latest.map(|latest| latest.plan.conditions.clone()).unwrap_or_default();
            plan.into_iter().chain(held).any(|of| format!("{of:?}") == condition)
        };
        let test = async {
            within(S(10), "the first tick", || first().is_some_and(|of| of.latest.is_some())).await;
            fault(&fake);
            within(S(60), condition, || says(condition)).await;
            fake.delete("d-0");
            for name in ["d-8", "d-9"] {
                fake.pod(name, "decode", true);
            }
            let waiting = || ["d-8", "d-9"].into_iter().filter(|name| fake.is_gated(name)).count();
            within(S(3), condition, || waiting() == 1).await;
            tokio::time::sleep(S(30)).await;
            assert_eq!(waiting(), 1, "{condition}: one replaces another");
            assert!(says(condition), "{condition}");
        };
        beside(driver, goes, spec, test).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reads_of_targets_and_autoscalers_follow_retry_after() {
    let spec = SPEC.replace("30m", "1s");
    // Path, seconds to wait, and how often it is asked within two minutes at least and at most.
    for (path, retry_after, asked) in [
        ("/deployments/d/scale", 30, 3..=5),
        ("/horizontalpodautoscalers", 30, 3..=5),
        ("/horizontalpodautoscalers", 0, 5..=9),
    ] {
        let fake = server();
        let (driver, _, goes) = acting(&fake, &spec);
        let plan_store = Arc::clone(driver.plan_store());
        let is_ticked = || plan_store.plans().policies.iter().any(|of| of.latest.is_some());
        let test = async {
            within(S(10), "the first tick", is_ticked).await;
            fake.retry_after(retry_after);
            fake.refuse(http::Method::GET, path, 429);
            tokio::time::sleep(S(120)).await;
            let times = fake.refused(path);
            assert!(asked.contains(&times), "{path}, after {retry_after} s: {times}");
        };
        beside(driver, goes, &spec, test).await;
    }
}
