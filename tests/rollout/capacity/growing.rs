//! Roles that grow come first, and those that shrink follow, also in a cluster that is full.

use proptest::prelude::*;
use serde_json::{Value, json};
use usher::capacity::{Condition, Plan, Reason};

use crate::capacity::support::Group;

/// Two roles of a group whose size is a query's, and that share it by pressure alone.
fn spec(more: &str) -> String {
    format!(
        "roles: {{d: {{min: 1, max: 40}}, p: {{min: 1, max: 40}}}}\n\
         total: {{metrics: [{{name: load, source: prometheus, target: 1}}]}}\n\
         behavior: {{scaleDown: {{stabilization: 0s}}}}\n{more}\
         coordination: {{mode: \"Preferred\", alpha: 0.75, pressure: {{d: [{{metric: q, target: 1}}], p: [{{metric: q, target: 1}}]}}}}"
    )
}

/// A cluster with nodes for so many pods of two roles; who has none yet is not ready.
struct Full {
    group: Group,
    room: u32,
    replicas: [u32; 2],
    placed: [u32; 2],
    now: u64,
    /// Pods need room in a domain before they may start: at a gate (`true`), or before they are created.
    /// `None`: pods start anywhere.
    gates: Option<bool>,
    admitted: [u32; 2],
}

impl Full {
    fn new(spec: &str, room: u32, replicas: [u32; 2]) -> Self {
        Self {
            group: Group::new(spec),
            room,
            replicas,
            placed: replicas,
            now: 0,
            gates: None,
            admitted: replicas,
        }
    }

    /// One tick, with that load and that pressure, and what it writes.
    fn tick(&mut self, load: u32, pressure: [f64; 2]) -> Plan {
        let names = ["d", "p"];
        let mut pods = Vec::new();
        for place in 0..2 {
            let waits = self.replicas[place] - self.placed[place];
            pods.push((names[place], self.placed[place], true, json!({"q": pressure[place]})));
            pods.push((names[place], waits, false, json!({})));
        }
        let replicas: Value = json!({"d": self.replicas[0], "p": self.replicas[1]});
        let mut more = json!({"external": {"load": load}});
        if self.gates.is_some() {
            let free = self.room - self.ready();
            more["domains"] = json!({"rack": {"r": {"d": free, "p": free}}});
        }
        let plan = self.group.tick_gated(self.now, &replicas, &pods, self.gates == Some(true), &more);
        for place in 0..2 {
            self.replicas[place] = plan.roles[place].write;
            self.admitted[place] = plan.roles[place].admitted;
            // Those without a node go first.
            self.placed[place] = self.placed[place].min(self.replicas[place]);
        }
        for place in 0..2 {
            let free = self.room.saturating_sub(self.placed.iter().sum());
            let may = if self.gates.is_some() { self.admitted[place] } else { u32::MAX };
            let waits = self.replicas[place].min(may).saturating_sub(self.placed[place]);
            self.placed[place] += free.min(waits);
        }
        self.now += 15;
        plan
    }

    fn ready(&self) -> u32 {
        self.placed.iter().sum()
    }

    fn written(&self) -> u32 {
        self.replicas.iter().sum()
    }
}

#[test]
fn roles_shrink_for_roles_without_room_in_the_cluster() {
    let mut cluster = Full::new(&spec(""), 20, [10, 10]);
    let first = cluster.tick(20, [1.0, 3.0]);
    let goals: Vec<u32> = first.roles.iter().map(|role| role.goal).collect();
    assert!(goals[0] < 9 && goals.iter().sum::<u32>() == 20, "{first:?}");
    assert!(first.roles[0].reasons.contains(&Reason::GrowFirst));
    let mut least = 20;
    let mut says = false;
    for _ in 0..240 {
        let plan = cluster.tick(20, [1.0, 3.0]);
        assert!(cluster.written() <= 20 + (goals[1] - 10), "{plan:?}");
        least = least.min(cluster.ready());
        says |= plan.conditions.contains(&Condition::BatchTimeout);
        assert!(!says || cluster.now > 600, "not before the time is up");
    }
    assert!(says);
    assert_eq!(cluster.placed.as_slice(), goals.as_slice());
    assert!(least >= 19, "one at a time: {least}");
}

#[test]
fn roles_shrink_for_roles_without_room_in_a_domain() {
    let topology = "topology: {layers: [rack], constraint: Required}";
    let steps = format!("deploy: {{steps: {{d: 2, p: 2}}, {topology}}}\n");
    for has_gates in [false, true] {
        let mut cluster = Full::new(&spec(&steps), 20, [10, 10]);
        cluster.gates = Some(has_gates);
        let goals: Vec<u32> = cluster.tick(20, [1.0, 3.0]).roles.iter().map(|role| role.goal).collect();
        assert!(goals[1] > 12 && goals.iter().sum::<u32>() == 20, "{goals:?}");
        let (mut least, mut goals) = (20, goals);
        for _ in 0..480 {
            let plan = cluster.tick(20, [1.0, 3.0]);
            least = least.min(cluster.ready());
            goals = plan.roles.iter().map(|role| role.goal).collect();
            // Pods at their gate take no room, and all of them are written.
            let asked = if has_gates { cluster.admitted.iter().sum() } else { cluster.written() };
            assert!(asked <= 22, "one step: {plan:?}");
        }
        assert_eq!(cluster.placed.as_slice(), goals.as_slice(), "gates: {has_gates}");
        assert!(goals[1] >= 12, "{goals:?}");
        assert!(least >= 18, "one step at a time: {least}");
    }
}

#[test]
fn group_larger_than_its_cluster_shares_the_room() {
    let mut cluster = Full::new(&spec(""), 20, [18, 2]);
    let mut least = 20;
    for _ in 0..480 {
        // 24 are needed, and most of them of the small role.
        cluster.tick(24, [1.0, 3.0]);
        least = least.min(cluster.ready());
    }
    assert!(cluster.placed[1] > 10 && cluster.ready() == 20, "{:?}", cluster.placed);
    assert!(least >= 19, "one at a time: {least}");
}

#[test]
fn pods_waiting_for_growth_do_not_count_for_the_size() {
    // 20 are within the tolerance of 22: counted as the group's size they would be kept, and grown upon.
    let mut cluster = Full::new(&spec(""), 20, [10, 10]);
    for tick in 0..38 {
        // Pressure turns around, and each role in its turn is the one that grows.
        let pressure = if tick / 4 % 2 == 0 { [1.0, 1.4] } else { [1.4, 1.0] };
        let plan = cluster.tick(20, pressure);
        let goals: u32 = plan.roles.iter().map(|role| role.goal).sum();
        assert_eq!(goals, 20, "{tick}: {plan:?}");
    }
}

#[test]
fn restart_keeps_growing_and_waiting_roles() {
    let kept = "roles: {d: {min: 1, max: 40}, p: {min: 1, max: 40}}\n\
        coordination: {mode: \"Preferred\", alpha: 0.75, pressure: {d: [{metric: q, target: 1}], p: [{metric: q, target: 1}]}}";
    for (spec, pressure) in [
        (kept.to_owned(), [1.0, 3.0]),
        (spec(""), [1.0, 3.0]),
        (spec("deploy: {steps: {d: 1, p: 1}}\n"), [1.0, 3.0]),
    ] {
        // Nothing that is new comes up.
        let mut cluster = Full::new(&spec, 20, [10, 10]);
        let mut last = cluster.tick(20, pressure);
        let goals = [last.roles[0].goal, last.roles[1].goal];
        assert!(goals[0] < 9 && goals[1] > 11, "{last:?}");
        let mut most = cluster.written();
        for tick in 0..30 {
            if tick % 3 == 0 {
                cluster.group.restart(cluster.now, &last);
            }
            last = cluster.tick(20, pressure);
            assert_eq!(cluster.ready(), 20, "{tick}: {last:?}");
            assert!(last.roles[0].goal + last.roles[1].goal <= 20, "{tick}: {last:?}");
            most = most.max(cluster.written());
        }
        assert!(most <= 20 + goals[1] - 10, "{most} {last:?}");
    }
}

#[test]
fn pod_that_never_starts_blocks_no_role_after_a_restart() {
    let mut cluster = Full::new(&spec(""), 40, [10, 10]);
    let last = cluster.tick(20, [1.0, 1.0]);
    // Its node is gone, and nobody has asked for more.
    cluster.placed[1] = 9;
    cluster.room = 19;
    cluster.group.restart(cluster.now, &last);
    cluster.now += 15;
    for _ in 0..4 {
        cluster.tick(10, [1.0, 1.0]);
    }
    assert_eq!(cluster.written(), 10, "{:?}", cluster.replicas);
}

#[test]
fn roles_shrink_as_others_grow_step_by_step() {
    let steps = "deploy: {steps: {d: 2, p: 2}}\n";
    let mut cluster = Full::new(&spec(steps), 100, [16, 4]);
    for _ in 0..40 {
        let before = cluster.written();
        let plan = cluster.tick(20, [1.0, 9.0]);
        let total: u32 = plan.roles.iter().map(|role| role.goal).sum();
        assert!(total <= 22, "the tolerance: {plan:?}");
        assert!(cluster.written() <= before.max(total + 2), "one step: {plan:?}");
    }
    assert!(cluster.replicas[1] > 8, "{:?}", cluster.replicas);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// For any goals and any room the written sum is never more than the plan's and one step of both roles,
    /// or without steps the growth that isn't ready, and no pod that serves goes for more than one that was
    /// to come, also where other processes go on.
    #[test]
    fn total_is_bounded_in_a_full_cluster(
        from in (1u32..20, 1u32..20),
        room in 1u32..50,
        step in 1u32..4,
        pace in 0usize..3,
        asks in prop::collection::vec((1u32..40, 0.1f64..4.0, 0.1f64..4.0, 1usize..60), 1..6),
        restarts in prop::option::of(1usize..9),
    ) {
        let steps = format!("deploy: {{steps: {{d: {step}, p: {step}}}}}\n");
        let pace = [steps.as_str(), "scaling: {maxSkewPercent: 20}\n", ""][pace];
        let mut cluster = Full::new(&spec(pace), room, [from.0, from.1]);
        cluster.placed = [from.0.min(room), from.1.min(room.saturating_sub(from.0))];
        let mut last: Option<Plan> = None;
        for (load, d, p, ticks) in asks {
            for tick in 0..ticks {
                let (ready, before) = (cluster.ready(), cluster.written());
                if let Some(last) = last.as_ref().filter(|_| restarts.is_some_and(|every| tick % every == 0)) {
                    cluster.group.restart(cluster.now, last);
                }
                let plan = cluster.tick(load, [d, p]);
                last = Some(plan.clone());
                let total: u32 = plan.roles.iter().map(|role| role.goal).sum();
                let grows: u32 = plan.roles.iter().map(|role| role.goal.saturating_sub(role.ready)).sum();
                let one = if pace == steps { 2 * step } else { grows };
                // What was there before is on its way down, and grows no more.
                prop_assert!(cluster.written() <= before.max(total + one), "{} {plan:?}", cluster.written());
                let goes = match pace {
                    "" => 1,
                    pace if pace == steps => 2 * step,
                    _ => 2 * (total / 5).max(1),
                };
                prop_assert!(cluster.ready() + goes >= ready.min(total), "{ready} {plan:?}");
            }
        }
    }
}
