//! Desired replicas for KEDA while metrics are missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::prior_state::PriorState;
use super::running::Running;
use super::tests::{S, driver_of, live};
use super::{Driver, Live};
use crate::capacity::Reason;
use crate::capacity::resource::status::{PolicyStatus, RoleStatus};
use crate::endpoints::{EndpointSpec, StartingPod};
use crate::scaling::plan_store::Latest;

/// Roles without ratio and steps.
const ROLES: &str = "roles: {d: {min: 1, max: 16}, p: {min: 1, max: 16}}";
const RATIO: &str = "coordination: {ratio: {numerator: p, denominator: d, min: \"1:2\", max: \"1:1\"}}";

/// Pods of roles `d` and `p`.
#[derive(Clone, Copy)]
struct Pods {
    ready: [u8; 2],
    starting: [u8; 2],
    /// Waiting requests at each pod; `None`: unknown.
    waiting: [Option<f64>; 2],
}

fn ready(d: u8, p: u8, waiting: [Option<f64>; 2]) -> Pods {
    Pods { ready: [d, p], starting: [0, 0], waiting }
}

/// Policy whose desired replicas are asked for, and its pods.
struct Asked {
    driver: Driver,
    left: PolicyStatus,
    generation: i64,
}

impl Asked {
    fn new(spec: &str) -> Self {
        let driver = driver_of(&policy(spec), live(0));
        // Nothing fired before.
        let left = PolicyStatus { observed_generation: Some(1), ..PolicyStatus::default() };
        Self { driver, left, generation: 1 }
    }

    fn live(&self) -> &Live {
        &self.driver.live
    }

    /// Replaces the policy by another version.
    fn edit(&mut self, spec: &str) {
        let now = self.live().clock.elapsed();
        let group = driver_of(&policy(spec), live(0)).running.remove(0).group;
        let before = self.driver.running.remove(0);
        self.driver.running.push(before.after(group, now));
        self.generation += 1;
    }

    /// Restarts as another leader, which knows the status.
    fn restart(&mut self) {
        let (now, running) = (self.live().clock.elapsed(), self.driver.running.remove(0));
        let latest = running.latest.as_ref().unwrap();
        let role =
            |(own, plan): (&crate::capacity::policy::Role, &crate::capacity::plan::RolePlan)| RoleStatus {
                name: own.name.clone(),
                selector: Some(own.label_selector()),
                target: own.target_name(),
                current: plan.current,
                desired: plan.desired,
                goal: plan.counts_as,
                admitted: plan.admitted,
                ..RoleStatus::default()
            };
        let roles = running.group.policy.roles.iter().zip(&latest.plan.roles).map(role).collect();
        self.left = PolicyStatus {
            observed_generation: Some(self.generation),
            state: Some(latest.plan.state.to_string()),
            roles,
            ..PolicyStatus::default()
        };
        self.driver.running.push(Running::new(running.group, now));
    }

    fn tick(&mut self, at: u64, pods: Pods) -> Arc<Latest> {
        let live = &self.driver.live;
        live.clock.set(S(at));
        let labels = |role: &str| BTreeMap::from([("llm-d.ai/role".to_owned(), role.to_owned())]);
        let endpoint = |(place, role): (u8, &str), number: u8| EndpointSpec {
            labels: labels(role),
            ..EndpointSpec::new(format!("{role}-{number}"), ([10, 0, place, number], 8000))
        };
        let roles = || [(0, "d"), (1, "p")].into_iter();
        let all =
            roles().zip(pods.ready).flat_map(|(role, count)| (1..=count).map(move |n| endpoint(role, n)));
        live.store.replace(all.collect());
        let starts = |role: &str, number: u8| StartingPod {
            namespace: "default".to_owned(),
            name: format!("{role}-s{number}"),
            labels: labels(role),
        };
        let all = roles()
            .zip(pods.starting)
            .flat_map(|((_, role), count)| (1..=count).map(move |n| starts(role, n)));
        live.store.note_starting(all.collect());
        for endpoint in live.store.snapshot().endpoints() {
            let place = usize::from(endpoint.spec().pod.starts_with('p'));
            if let Some(waiting) = pods.waiting[place] {
                endpoint.load().waiting.set(waiting, live.clock.now_ms());
            }
        }
        let running = &mut self.driver.running[0];
        let policy = Arc::clone(&running.group.policy);
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        let left = PriorState::of(&policy, Some(self.generation), &self.left, now);
        let latest = Arc::new(running.tick(&self.driver.live, S(1), None, None, left));
        running.latest = Some(Arc::clone(&latest));
        latest
    }

    /// Desired pods of each role, as KEDA reads them.
    fn desired(&mut self, at: u64, pods: Pods) -> Vec<u32> {
        self.tick(at, pods).plan.roles.iter().map(|role| role.write).collect()
    }
}

fn policy(spec: &str) -> String {
    format!("apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {{{spec}}}\n")
}

fn rule(name: &str, role: &str, comparator: &str, threshold: u32, step: i32) -> String {
    format!(
        "{{name: {name}, role: {role}, metric: queue_depth, comparator: {comparator}, threshold: {threshold}, step: {step}, cooldown: 1h}}"
    )
}

/// Rules of two roles; the one of `d` never fires.
fn rules(of_p: &str) -> String {
    format!("rules: [{}, {of_p}]", rule("d-up", "d", "GREATER_THAN", 50, 1))
}

const KNOWN: [Option<f64>; 2] = [Some(4.0), Some(4.0)];
const NONE: [Option<f64>; 2] = [None, None];

#[test]
fn desired_replicas_survive_lost_pods_without_metrics() {
    let mut asked =
        Asked::new("roles: {d: {min: 1, max: 20}}, total: {metrics: [{name: queue_depth, target: 4}]}");
    assert_eq!(asked.desired(0, ready(4, 0, KNOWN)), [4]);
    // Nodes are lost, and with them what would be read.
    for (at, pods) in [(15, 3), (30, 2), (45, 0), (60, 1), (3_600, 1)] {
        let latest = asked.tick(at, ready(pods, 0, NONE));
        let role = &latest.plan.roles[0];
        assert_eq!((role.write, role.desired, role.current), (4, 4, pods.into()), "{at}");
        assert!(role.reasons.contains(&Reason::StaleData), "{at}: {role:?}");
    }
    // They are known again, and one pod would do: that is asked for when the window has passed.
    assert_eq!(asked.desired(3_615, ready(1, 0, KNOWN)), [4]);
    assert_eq!(asked.desired(5_000, ready(1, 0, KNOWN)), [1]);
}

#[test]
fn desired_replicas_survive_ten_minutes_without_pods() {
    for sizing in [
        format!("rules: [{}]", rule("up", "d", "GREATER_THAN", 50, 1)),
        "total: {metrics: [{name: queue_depth, target: 4}]}".to_owned(),
        "total: {metrics: [{name: kv_cache_utilization, target: 0.5}]}".to_owned(),
    ] {
        let mut asked = Asked::new(&format!("roles: {{d: {{min: 1, max: 20}}}}, {sizing}"));
        asked.tick(0, ready(4, 0, KNOWN));
        for at in (15..600).step_by(15) {
            assert_eq!(asked.desired(at, ready(0, 0, NONE)), [4], "{at}: {sizing}");
        }
        // They don't come.
        for at in (630..1_500).step_by(15) {
            assert_eq!(asked.desired(at, ready(0, 0, NONE)), [1], "{at}: {sizing}");
        }
    }
}

#[test]
fn ratio_counts_pods_that_a_stale_role_was_asked_for() {
    let down = rule("p-down", "p", "LESS_THAN", 2, -1);
    for (ratio, expected) in [(format!(", {RATIO}"), [8, 4]), (String::new(), [8, 3])] {
        let mut asked = Asked::new(&format!("{ROLES}, {}{ratio}", rules(&down)));
        assert_eq!(asked.desired(0, ready(8, 4, KNOWN)), [8, 4]);
        assert_eq!(asked.desired(15, ready(6, 4, [None, Some(1.0)])), expected);
        // And what follows of its numbers later.
        assert_eq!(asked.desired(30, ready(8, 4, KNOWN))[0], 8);
    }
}

#[test]
fn one_stale_tick_takes_no_pod_of_a_stepped_group() {
    let steps = "deploy: {steps: {d: 1}}";
    let rules = format!("rules: [{}]", rule("up", "d", "GREATER_THAN", 50, 1));
    let mut asked = Asked::new(&format!("roles: {{d: {{min: 1, max: 16}}}}, {rules}, {steps}"));
    for at in [0, 15] {
        assert_eq!(asked.desired(at, ready(4, 0, KNOWN)), [4]);
    }
    assert_eq!(asked.desired(30, ready(3, 0, NONE)), [4]);
    assert_eq!(asked.desired(45, ready(4, 0, KNOWN)), [4], "they are all there again");
    assert_eq!(asked.desired(60, ready(4, 0, KNOWN)), [4]);
}

/// A group of unknown size whose first role has far more pressure; another writer follows its plans.
fn pressed(batch: &str) -> Asked {
    let pressure = "pressure: {d: [{metric: queue_depth, target: 1}], p: [{metric: queue_depth, target: 1}]}";
    let total = "total: {metrics: [{name: kv_cache_utilization, target: 0.5}]}";
    Asked::new(&format!("{ROLES}, {total}, coordination: {{mode: Preferred, {pressure}}}{batch}"))
}

#[test]
fn unknown_size_stays_while_shares_follow_pressure() {
    let mut asked = pressed("");
    let (mut ready_pods, mut there) = ([4u8, 4u8], [4u8, 4u8]);
    let waiting = [Some(9.0), Some(1.0)];
    for tick in 0..40u64 {
        let starting = [there[0] - ready_pods[0], there[1] - ready_pods[1]];
        let desired = asked.desired(tick * 15, Pods { ready: ready_pods, starting, waiting });
        let sum: u32 = desired.iter().sum();
        assert!(sum <= 8 + 4, "{tick}: {desired:?} of {there:?}");
        // One more pod is ready at every other tick, and those that are too many go at once.
        for place in 0..2 {
            let more = u8::from(tick % 2 == 0 && ready_pods[place] < there[place]);
            there[place] = desired[place] as u8;
            ready_pods[place] = (ready_pods[place] + more).min(there[place]);
        }
    }
    assert_eq!(there.iter().sum::<u8>(), 8, "{there:?}");
    assert!(there[0] > 4, "{there:?}");
}

#[test]
fn role_shrinks_for_one_without_room_at_unknown_size() {
    let mut asked = pressed("");
    let mut there = [4u8, 4u8];
    let waiting = [Some(9.0), Some(1.0)];
    for tick in 0..120u64 {
        // There is room for eight.
        let (d, p) = (there[0].min(8 - there[1]), there[1]);
        let desired = asked.desired(tick * 15, Pods { ready: [d, p], starting: [there[0] - d, 0], waiting });
        there = [desired[0] as u8, desired[1] as u8];
    }
    assert!(there[1] < 4 && there.iter().sum::<u8>() == 8, "{there:?}");
}

#[test]
fn desired_replicas_survive_edit_and_leader_change() {
    let rules = rules(&rule("p-up", "p", "GREATER_THAN", 50, 1));
    let spec = format!("{ROLES}, {rules}");
    for is_edit in [true, false] {
        let mut asked = Asked::new(&spec);
        assert_eq!(asked.desired(0, ready(4, 2, KNOWN)), [4, 2]);
        if is_edit {
            // Twice, before there is a tick.
            asked.edit(&format!("{spec}, interval: 20s"));
            asked.edit(&format!("{spec}, interval: 25s"));
        } else {
            asked.restart();
        }
        assert_eq!(asked.desired(15, ready(3, 1, NONE)), [4, 2], "{is_edit}");
        // A role of other pods is asked for what there is of them.
        asked.edit(&format!(
            "{}, {rules}",
            ROLES.replace(
                "p: {",
                "p: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: other}, "
            )
        ));
        assert_eq!(asked.desired(30, ready(3, 1, NONE)), [4, 1], "{is_edit}");
    }
}

#[test]
fn growth_continues_after_an_unrelated_edit() {
    let pods = |d: u8, starting: u8| Pods {
        ready: [d, 4],
        starting: [starting, 0],
        waiting: [Some(9.0), Some(1.0)],
    };
    let mut asked = pressed("");
    let desired = asked.desired(0, pods(4, 0));
    let grows = desired[0] as u8 - 4;
    assert!(grows > 0 && desired[1] == 4, "{desired:?}");
    assert_eq!(asked.desired(15, pods(4, grows)), desired);
    let spec = asked.driver.running[0].group.policy.as_ref().clone();
    for interval in [20, 25] {
        let now = asked.live().clock.elapsed();
        let policy = crate::capacity::Policy { interval: S(interval), ..spec.clone() };
        let running = asked.driver.running.remove(0);
        let group = crate::scaling::groups::Group { policy: Arc::new(policy), ..running.group.clone() };
        asked.driver.running.push(running.after(group, now));
    }
    assert_eq!(asked.desired(30, pods(4, grows)), desired);
    // Those that stood in for others go once these are ready, and no other does.
    let desired = asked.desired(45, pods(4 + grows, 0));
    assert_eq!(desired.iter().sum::<u32>(), 8, "{desired:?}");
}

#[test]
fn pods_removed_by_a_trim_are_not_requested_again() {
    let rules = format!("rules: [{}]", rule("up", "d", "GREATER_THAN", 50, 1));
    let steps = |then: &str| {
        format!(
            "roles: {{d: {{min: 1, max: 16}}}}, {rules}, deploy: {{steps: {{d: 4}}, batchTimeout: 60s, onTimeout: {then}}}"
        )
    };
    let start =
        |ready: u8, starting: u8, waiting| Pods { ready: [ready, 0], starting: [starting, 0], waiting };
    for (then, left) in [("Trim", 4), ("Fail", 5)] {
        let mut asked = Asked::new(&steps(then));
        // Five of eight are up, and no other comes.
        for at in [0, 15, 30, 45] {
            assert_eq!(asked.desired(at, start(5, 3, KNOWN)), [8], "{then} {at}");
        }
        let desired = asked.desired(90, start(5, 3, KNOWN));
        assert_eq!(desired[0], if then == "Trim" { left } else { 8 }, "{then}");
        let there = desired[0] as u8;
        // Numbers are missing from then on, and a pod is lost.
        for (at, lost) in [(105, 0), (110, 1), (115, 1)] {
            let pods = start(there.min(5) - lost, there - there.min(5), NONE);
            assert_eq!(asked.desired(at, pods), desired, "{then} {at}");
        }
    }
}
