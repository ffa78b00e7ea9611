use super::prior_state::PriorState;
use super::running::fired;
use super::*;
use crate::capacity::policy::file;
use crate::capacity::resource::status::{PolicyStatus, RoleStatus, RuleStatus};
use crate::capacity::{Condition, Inputs, Plan, Pod, PodState, Reason, State, Values, tick};
use crate::endpoints::{EndpointSpec, StartingPod, Store};
use crate::scaling::Signal;
use crate::scaling::groups::Group;
use crate::scaling::plan_store::Latest;
use crate::scrape::ScrapeMetrics;
use k8s_openapi::jiff::Timestamp;
use lines::Lines;

#[allow(clippy::unwrap_used, reason = "the exception for tests does not reach their helpers")]
#[path = "../../../tests/support/lines.rs"]
mod lines;

pub(super) const S: fn(u64) -> Duration = Duration::from_secs;

fn group(spec: &str) -> Group {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {{roles: {{decode: {{min: 1, max: 20}}}}, {spec}}}\n"
    );
    let policy = file::parse(&text).unwrap().remove(0).policy;
    Group { policy: Arc::new(policy), signals: vec![Signal::Waiting], frozen: None }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("llm-d.ai/role".to_owned(), "decode".to_owned())])
}

fn pods_of(count: u8) -> Vec<EndpointSpec> {
    let spec = |number: u8| EndpointSpec {
        labels: labels(),
        ..EndpointSpec::new(format!("d-{number}"), ([10, 0, 0, number], 8000))
    };
    (1..=count).map(spec).collect()
}

/// Live state with this number of ready pods.
pub(super) fn live(pods: u8) -> Live {
    let store = Arc::new(Store::default());
    store.replace(pods_of(pods));
    Live {
        store,
        clock: Clock::stopped(),
        staleness: S(1),
        waiting: Box::new(|| 0),
        demanded: None,
        may_plan: Box::new(|| true),
        may_act: Box::new(|| true),
        is_shared: false,
        servers: None,
        gpus: None,
        scrapes: ScrapeMetrics::register(&prometheus::Registry::new()).unwrap(),
        actuator: None,
    }
}

/// Desired pods and reasons of a tick at that time, with that queue at every pod.
fn desired(running: &mut Running, live: &Live, at: Duration, queue: f64) -> (u32, Vec<Reason>) {
    live.clock.set(at);
    for endpoint in live.store.snapshot().endpoints() {
        endpoint.load().waiting.set(queue, live.clock.now_ms());
    }
    let role = running.tick(live, S(1), None, None, PriorState::default()).plan.roles[0].clone();
    (role.desired, role.reasons)
}

#[test]
fn scale_down_waits_for_the_window_after_restart_and_election() {
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
fn starting_pods_count_as_current_and_not_ready() {
    let live = live(2);
    let pod =
        |name: &str| StartingPod { namespace: "default".to_owned(), name: name.to_owned(), labels: labels() };
    let mut running = Running::new(group("total: {metrics: [{name: queue_depth, target: 4}]}"), S(0));
    assert_eq!(desired(&mut running, &live, S(0), 6.0).0, 3);
    // One of them is on its way: it will take its part, so no fourth one is asked for.
    live.store.note_starting(vec![pod("d-3")]);
    assert_eq!(desired(&mut running, &live, S(15), 6.0).0, 3);
    let role = running.tick(&live, S(1), None, None, PriorState::default()).plan.roles[0].clone();
    assert_eq!((role.current, role.ready), (3, 2));
    assert_eq!(desired(&mut running, &live, S(30), 9.0).0, 5, "more than it will take");
    live.store.note_starting(Vec::new());
    assert_eq!(running.tick(&live, S(1), None, None, PriorState::default()).plan.roles[0].current, 2);
}

/// A group with steps of four pods.
fn stepped(more: &str) -> Group {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {{roles: {{decode: {{min: 8, max: 8}}}}, deploy: {{steps: {{decode: 4}}, batchTimeout: 60s{more}}}}}\n"
    );
    Group {
        policy: Arc::new(file::parse(&text).unwrap().remove(0).policy),
        signals: Vec::new(),
        frozen: None,
    }
}

fn status(state: &str, desired: u32) -> PolicyStatus {
    let role = RoleStatus { name: "decode".to_owned(), desired, ..RoleStatus::default() };
    PolicyStatus {
        observed_generation: Some(3),
        state: Some(state.to_owned()),
        roles: vec![role],
        ..PolicyStatus::default()
    }
}

/// Driver of a policy file, without pods.
pub(super) fn driver(policies: &str) -> Driver {
    driver_of(policies, live(0))
}

/// The same, with this live state.
pub(super) fn driver_of(policies: &str, live: Live) -> Driver {
    let sources = Sources {
        lease: Box::new(|_| None),
        configured: Vec::new(),
        has_servers: true,
        has_gpus: false,
        has_queue: true,
        has_queries: false,
        can_act: live.actuator.is_some(),
        is_only: true,
    };
    let groups = Groups::read(policies, &sources).unwrap();
    Driver::new(groups, sources, live, None, &prometheus::Registry::new()).unwrap()
}

/// State and admitted pods after this number of seconds, with these ready pods and one starting, from the
/// status of an earlier leader.
fn after(seconds: u64, group: &Group, ready: u8, status: &PolicyStatus) -> (State, u32) {
    let live = live(ready);
    let starts = StartingPod { namespace: "default".to_owned(), name: "d-x".to_owned(), labels: labels() };
    live.store.note_starting(vec![starts]);
    let mut running = Running::new(group.clone(), S(0));
    let left = || PriorState::of(&group.policy, Some(3), status, Timestamp::UNIX_EPOCH);
    running.tick(&live, S(1), None, None, left());
    live.clock.set(S(seconds));
    let plan = running.tick(&live, S(1), None, None, left()).plan;
    (plan.state, plan.roles[0].admitted)
}

#[test]
fn next_leader_resumes_from_the_policy_status() {
    let trims = stepped(", onTimeout: Trim");
    // One of eight pods is not ready. Who doesn't know that the group was up takes it for its last step.
    assert_eq!(after(61, &trims, 7, &PolicyStatus::default()), (State::Blocked, 4));
    assert_eq!(after(61, &trims, 7, &status("Idle", 8)), (State::Idle, 8));
    assert_eq!(after(61, &trims, 7, &status("Idle", 4)).0, State::Blocked, "of other goals");
    let older = PolicyStatus { observed_generation: Some(2), ..status("Idle", 8) };
    assert_eq!(after(61, &trims, 7, &older).0, State::Blocked, "of another policy");
    assert_eq!(after(1, &trims, 2, &status("Scale", 8)).0, State::Scale);
    assert_eq!(after(1, &trims, 2, &status("Deploy", 8)).0, State::Deploy);
    let fails = stepped(", onTimeout: Fail");
    assert_eq!(after(1, &fails, 4, &status("Deploy", 8)), (State::Deploy, 8));
    assert_eq!(after(1, &fails, 4, &status("Failed", 8)), (State::Failed, 5), "it was given up");
    assert_eq!(after(1, &fails, 4, &status("Failed", 4)), (State::Deploy, 8), "with other goals");
}

/// A group with a rule that removes a pod while each has less than that in flight.
fn idle_rule(metric: &str) -> Group {
    let mut group = group(&format!(
        "rules: [{{name: down, role: decode, metric: {metric}, comparator: LESS_THAN, threshold: 1, step: -1, cooldown: 1h}}]"
    ));
    group.signals = vec![Signal::named(metric).unwrap()];
    group
}

#[test]
fn rule_cooldowns_survive_a_restart() {
    let group = idle_rule("queue_depth");
    let status = |at: &str| PolicyStatus {
        observed_generation: Some(3),
        rules: vec![RuleStatus {
            name: "down".to_owned(),
            last_trigger_time: Some(at.to_owned()),
            ..RuleStatus::default()
        }],
        ..PolicyStatus::default()
    };
    let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let fires_at = |left: &dyn Fn() -> PriorState| first_fired(&mut Running::new(group.clone(), S(0)), left);
    let of = |status: &PolicyStatus| fires_at(&|| PriorState::of(&group.policy, None, status, now));
    assert_eq!(of(&status("2026-01-01T11:30:00Z")), Some(30));
    assert_eq!(of(&status("2026-01-01T10:59:00Z")), Some(0));
    assert_eq!(of(&status("2026-01-01T12:05:00Z")), Some(60), "of a clock that is ahead");
    assert_eq!(of(&status("yesterday")), Some(0));
    assert_eq!(of(&PolicyStatus::default()), Some(60), "one that nobody has written");
    assert_eq!(fires_at(&PriorState::default), Some(60), "of a file");
}

/// Minute at which the rule of an idle group first fires, after the first observation at 5 s.
fn first_fired(running: &mut Running, left: &dyn Fn() -> PriorState) -> Option<u64> {
    let live = live(3);
    (0..=60).find(|minute| {
        live.clock.set(S(5 + minute * 60));
        for endpoint in live.store.snapshot().endpoints() {
            endpoint.load().waiting.set(0.0, live.clock.now_ms());
        }
        !running.tick(&live, S(1), None, None, left()).plan.fired.is_empty()
    })
}

#[test]
fn rules_add_pods_without_a_record() {
    let mut group = idle_rule("queue_depth");
    let text = "rules: [{name: up, role: decode, metric: queue_depth, comparator: LESS_THAN, threshold: 1, step: 1, cooldown: 1h}]";
    group.policy = self::group(text).policy;
    assert_eq!(first_fired(&mut Running::new(group, S(0)), &PriorState::default), Some(0));
}

#[test]
fn cooldowns_outlast_an_edit() {
    let group = idle_rule("queue_depth");
    let mut running = Running::new(group.clone(), S(0));
    assert_eq!(first_fired(&mut running, &PriorState::none), Some(0));
    let mut edited = running.after(group.clone(), S(65));
    assert_eq!(edited.before.as_ref().unwrap().fired, [(0, S(60))]);
    assert_eq!(first_fired(&mut edited, &PriorState::default), Some(59));
    // Of a file, half an hour after a restart; and twice in a row, before it was ticked.
    let restarted = || {
        let live = live(3);
        let mut running = Running::new(group.clone(), S(0));
        assert!(ticked(&mut running, &live, 5, None, PriorState::default()).fired.is_empty());
        running.after(group.clone(), S(5 + 1_800))
    };
    assert_eq!(first_fired(&mut restarted(), &PriorState::default), Some(30));
    assert_eq!(first_fired(&mut restarted().after(group.clone(), S(1_805)), &PriorState::default), Some(30));
}

#[test]
fn failed_write_starts_no_cooldown_after_an_edit() {
    let group = idle_rule("queue_depth");
    for (unwritten, fires) in [(&[0][..], 0), (&[], 59)] {
        let mut running = Running::new(group.clone(), S(0));
        assert_eq!(first_fired(&mut running, &PriorState::none), Some(0));
        let mut edited = running.after(group.clone(), S(65));
        edited.take_back_before(&group.policy, &["down".to_owned()], unwritten);
        assert_eq!(first_fired(&mut edited, &PriorState::none), Some(fires));
    }
}

#[test]
fn rules_keep_busy_pods_after_a_restart() {
    for metric in ["in_flight", "ttft"] {
        let live = live(3);
        let mut running = Running::new(idle_rule(metric), S(0));
        let mut fires = |at: u64, runs: f64| {
            let plan = ticked(&mut running, &live, at, Some(runs), PriorState::none());
            (!plan.fired.is_empty(), plan.conditions.contains(&Condition::StaleData))
        };
        // The process before sent them; this one knows of none.
        assert_eq!([fires(0, 40.0), fires(15, 9.0)], [(false, true); 2], "{metric}");
        assert_eq!(fires(30, 0.0), (true, false), "{metric}: they have ended");
    }
}

/// A tick at that second, with this number of running requests at each model server, or none reported.
fn ticked(running: &mut Running, live: &Live, at: u64, runs: Option<f64>, left: PriorState) -> Plan {
    live.clock.set(S(at));
    for endpoint in live.store.snapshot().endpoints() {
        if let Some(runs) = runs {
            endpoint.load().running.set(runs, live.clock.now_ms());
            endpoint.load().waiting.set(0.0, live.clock.now_ms());
        }
    }
    running.tick(live, S(1), None, None, left).plan
}

#[test]
fn requests_of_other_pickers_keep_pods() {
    for metric in ["in_flight", "ttft"] {
        let live = live(3);
        let mut running = Running::new(idle_rule(metric), S(0));
        for at in [0, 299, 300, 301, 3_600] {
            let plan = ticked(&mut running, &live, at, Some(40.0), PriorState::none());
            assert!(plan.fired.is_empty(), "{metric} at {at}");
            let value = plan.stages.rules[0].value;
            // Who sends them is known after five minutes; how long their first tokens take never is.
            assert_eq!(value, (metric == "in_flight" && at >= 300).then_some(40.0), "{metric} at {at}");
        }
        // An outage says nothing of them.
        let plan = ticked(&mut running, &live, 3_660, None, PriorState::none());
        assert!(plan.fired.is_empty() && plan.conditions.contains(&Condition::StaleData), "{metric}");
        assert!(
            !ticked(&mut running, &live, 3_720, Some(0.0), PriorState::none()).fired.is_empty(),
            "{metric}: they have ended"
        );
    }
}

#[test]
fn unscraped_model_servers_count_as_busy() {
    let live = live(3);
    let mut running = Running::new(idle_rule("in_flight"), S(0));
    for at in [0, 300, 3_600] {
        assert!(
            ticked(&mut running, &live, at, None, PriorState::none()).fired.is_empty(),
            "at {at}: no page was read"
        );
    }
    live.clock.set(S(3_660));
    for endpoint in live.store.snapshot().endpoints() {
        endpoint.load().scraped(live.clock.now_ms());
    }
    let plan = ticked(&mut running, &live, 3_660, None, PriorState::none());
    assert!(!plan.fired.is_empty(), "their pages have no such number: {plan:?}");
}

#[tokio::test]
async fn stuck_step_is_logged_once_and_so_is_its_end() {
    let (log, _guard) = Lines::start();
    let mut driver = driver(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {roles: {decode: {min: 8, max: 8}}, deploy: {steps: {decode: 8}, batchTimeout: 60s}}\n",
    );
    let spec = |number: u8| EndpointSpec {
        labels: labels(),
        ..EndpointSpec::new(format!("d-{number}"), ([10, 0, 0, number], 8000))
    };
    for (at, ready, stuck, goes_on) in
        [(0, 3, 0, 0), (30, 3, 0, 0), (61, 3, 1, 0), (75, 3, 1, 0), (90, 8, 1, 1), (105, 8, 1, 1)]
    {
        driver.live.store.replace((1..=ready).map(spec).collect());
        driver.live.clock.set(S(at));
        driver.tick(0, None).await;
        let counts = [
            log.count(&["WARN", "rollout step blocked", "policy=\"p\"", "state=Blocked", "BatchTimeout"]),
            log.count(&["INFO", "rollout step no longer blocked", "policy=\"p\"", "state=Idle"]),
        ];
        assert_eq!(counts, [stuck, goes_on], "at {at}: {}", log.text());
    }
}

/// Two groups that hold half of the nodes each, and wait for the other half.
#[tokio::test]
async fn younger_of_deadlocked_groups_gives_way() {
    let text = |name: &str| {
        format!(
            "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: {name}}}\nspec: {{roles: {{{name}: {{min: 8, max: 8}}}}, deploy: {{steps: {{{name}: 4}}, batchTimeout: 60s}}}}\n"
        )
    };
    let mut driver = driver(&[text("old"), text("young")].join("---\n"));
    // Six of the first eight pods of each run, and two find no node.
    let pods = |role: usize, ready: u32, refused: u32| {
        let pod = |is_ready: bool| Pod {
            role,
            is_ready,
            state: PodState { is_unschedulable: !is_ready, ..PodState::default() },
            values: Values::default(),
        };
        let all = (0..ready).map(|_| pod(true)).chain((0..refused).map(|_| pod(false)));
        Inputs { replicas: vec![ready + refused], pods: all.collect(), ..Inputs::default() }
    };
    let look = |driver: &mut Driver, at: u64| -> Vec<(State, u32, bool)> {
        let said = driver.running.iter_mut().map(|running| {
            let history = running.history.get_or_insert_default();
            let plan = tick(&pods(0, 6, 2), &running.group.policy, history, S(at));
            let found = (plan.state, plan.roles[0].admitted, plan.conditions.contains(&Condition::Deadlock));
            running.latest = Some(Arc::new(Latest { plan, waiting: 0, at: S(at), fired: Vec::new() }));
            found
        });
        let said = said.collect();
        driver.resolve_deadlocks();
        said
    };
    let held = (State::Blocked, 8, false);
    assert_eq!(look(&mut driver, 0), [(State::Deploy, 8, false); 2]);
    assert_eq!(look(&mut driver, 60), [held, held]);
    assert_eq!(look(&mut driver, 75), [held, (State::Blocked, 4, true)], "the younger gives way");
    assert_eq!(look(&mut driver, 90), [held, (State::Blocked, 4, true)], "and one can see why");
}

#[test]
fn rules_without_a_write_start_no_cooldown() {
    let (group, live) = (idle_rule("queue_depth"), live(3));
    let mut running = Running::new(group.clone(), S(0));
    live.clock.set(S(5));
    for endpoint in live.store.snapshot().endpoints() {
        endpoint.load().waiting.set(0.0, live.clock.now_ms());
    }
    let mut latest = running.tick(&live, S(1), None, None, PriorState::none());
    assert_eq!(
        (latest.plan.fired.as_slice(), latest.fired.as_slice()),
        (&["down".to_owned()][..], &[Some(S(5))][..])
    );
    let history = running.history.as_mut().unwrap();
    history.take_back(&group.policy, &mut latest.plan, &[0]);
    assert!(latest.plan.fired.is_empty() && fired(&group.policy, history) == [None]);
}
