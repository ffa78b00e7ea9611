use super::*;
use crate::capacity::Reason;
use crate::capacity::policy::file;
use crate::endpoints::{EndpointSpec, StartingPod};
use crate::scaling::Signal;

const S: fn(u64) -> Duration = Duration::from_secs;

fn group(spec: &str) -> Group {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {{roles: {{decode: {{min: 1, max: 20}}}}, {spec}}}\n"
    );
    let policy = file::parse(&text).unwrap().remove(0).policy;
    Group { policy: Arc::new(policy), signals: vec![Signal::Waiting] }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("llm-d.ai/role".to_owned(), "decode".to_owned())])
}

/// What a driver looks at: so many pods that are ready.
fn live(pods: u8) -> Live {
    let store = Arc::new(Store::default());
    let spec = |number: u8| EndpointSpec {
        labels: labels(),
        ..EndpointSpec::new(format!("d-{number}"), ([10, 0, 0, number], 8000))
    };
    store.replace((1..=pods).map(spec).collect());
    Live {
        store,
        clock: Clock::stopped(),
        staleness: S(1),
        waiting: Box::new(|| 0),
        demanded: None,
        may_plan: Box::new(|| true),
        servers: None,
        gpus: None,
        scrapes: ScrapeMetrics::register(&prometheus::Registry::new()).unwrap(),
        hands: None,
    }
}

/// A tick at that time, with that queue at every pod: what is desired, and why.
fn desired(running: &mut Running, live: &Live, at: Duration, queue: f64) -> (u32, Vec<Reason>) {
    live.clock.set(at);
    for endpoint in live.store.snapshot().endpoints() {
        endpoint.load().waiting.set(queue, live.clock.now_ms());
    }
    let role = running.tick(live, S(1), None, None).plan.roles[0].clone();
    (role.desired, role.reasons)
}

#[test]
fn a_restart_and_a_new_leader_wait_for_the_window_before_they_remove_pods() {
    let live = live(8);
    let group = group("total: {metrics: [{name: queue_depth, target: 4}]}");
    let mut now = S(7);
    for start in 0..3 {
        // Nothing of the one before is known here.
        let mut running = Running::new(group.clone(), now);
        for (after, size) in [(S(0), 8), (S(15), 8), (Duration::from_millis(299_999), 8), (S(300), 1)] {
            let (desired, reasons) = desired(&mut running, &live, now + after, 0.0);
            assert_eq!(desired, size, "{start}: {after:?} {reasons:?}");
            assert_eq!(reasons.contains(&Reason::DownWindow), size == 8, "{reasons:?}");
        }
        now += S(301);
    }
    // What is missing is added at once.
    let mut running = Running::new(group, now);
    assert_eq!(desired(&mut running, &live, now, 8.0).0, 16);
}

#[test]
fn pods_that_start_are_there_and_serve_nobody() {
    let live = live(2);
    let pod =
        |name: &str| StartingPod { namespace: "default".to_owned(), name: name.to_owned(), labels: labels() };
    let mut running = Running::new(group("total: {metrics: [{name: queue_depth, target: 4}]}"), S(0));
    assert_eq!(desired(&mut running, &live, S(0), 6.0).0, 3);
    // One of them is on its way: it will take its part, so no fourth one is asked for.
    live.store.note_starting(vec![pod("d-3")]);
    assert_eq!(desired(&mut running, &live, S(15), 6.0).0, 3);
    let role = running.tick(&live, S(1), None, None).plan.roles[0].clone();
    assert_eq!((role.current, role.ready), (3, 2));
    assert_eq!(desired(&mut running, &live, S(30), 9.0).0, 5, "more than it will take");
    live.store.note_starting(Vec::new());
    assert_eq!(running.tick(&live, S(1), None, None).plan.roles[0].current, 2);
}
