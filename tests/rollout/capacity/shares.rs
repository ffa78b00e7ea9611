//! Shares of a group's size, and the ratio that always holds.

use crate::capacity::support::{Group, desired};
use serde_json::{Value, json};
use usher::capacity::{Condition, Plan, Reason, State};

/// Two roles that are shared by pressure, whose size stays at what it is: the number that sizes is
/// at its target.
fn pair(more: &str) -> String {
    format!(
        "roles: {{d: {{min: 1, max: 8, cost: 100}}, p: {{min: 1, max: 8, cost: 100}}}}\n\
         total: {{metrics: [{{name: load, target: 1}}], costExpansionPercent: 100}}\n\
         coordination: {{mode: Preferred, pressure: {{d: [{{metric: q, target: 1}}], p: [{{metric: q, target: 1}}]}}{more}}}"
    )
}

fn pods(d: (u32, Value), p: (u32, Value)) -> [(&'static str, u32, bool, Value); 2] {
    [("d", d.0, true, d.1), ("p", p.0, true, p.1)]
}

fn tick(group: &mut Group, t: u64, d: u32, p: u32, pressure: (Value, Value)) -> Plan {
    let metrics = |q: Value| json!({"load": 1, "q": q});
    group.tick(
        t,
        &json!({"d": d, "p": p}),
        &pods((d, metrics(pressure.0)), (p, metrics(pressure.1))),
        &json!({}),
    )
}

/// Policies with preferred ratios, end to end.
#[test]
fn pressure_moves_shares() {
    let mut group = Group::new(&pair(", preferredRatio: {d: {min: 25, max: 60}, p: {min: 40, max: 75}}"));
    let plan = tick(&mut group, 0, 7, 1, (json!(9), json!(1)));
    let goals: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
    let base: Vec<u32> = plan.roles.iter().map(|role| role.base).collect();
    assert_eq!((base, goals), (vec![7, 1], vec![4, 4]));
    assert_eq!(plan.roles[0].reasons, [Reason::Tolerance, Reason::Pressure, Reason::Band, Reason::GrowFirst]);
    let mut group = Group::new(&pair(""));
    let plan = tick(&mut group, 0, 4, 4, (json!(1), json!(1)));
    assert_eq!(plan.roles.iter().map(|role| role.goal).collect::<Vec<_>>(), [6, 2]);
    let mut group = Group::new(&pair(", preferredRatio: {d: {min: 45, max: 55}, p: {min: 45, max: 55}}"));
    let plan = tick(&mut group, 0, 2, 1, (json!(1), json!(1)));
    assert_eq!((desired(&plan), plan.conditions), (vec![2, 1], vec![Condition::BandUnsatisfied]));
}

/// The sum may exceed the size by what grows, and nothing is taken away that serves in place of it.
#[test]
fn a_role_shrinks_as_the_other_gets_ready() {
    let mut group = Group::new(&pair(", preferredRatio: {d: {max: 50}, p: {max: 50}}"));
    let plan = tick(&mut group, 0, 7, 1, (json!(9), json!(1)));
    assert_eq!((desired(&plan), plan.total, plan.state), (vec![7, 4], 11, State::Scale));
    let started = |group: &mut Group, t, ready: u32| {
        let metrics = json!({"load": 1, "q": 1});
        let pods = [
            ("d", 7, true, metrics.clone()),
            ("p", ready, true, metrics.clone()),
            ("p", 4 - ready, false, metrics),
        ];
        // The load of 8 is spread over those that are ready.
        let external = json!({"external": {"load": 8}});
        group.tick(t, &json!({"d": 7, "p": 4}), &pods, &external)
    };
    let mut group_outside = Group::new(&pair(", preferredRatio: {d: {max: 50}, p: {max: 50}}"));
    let plan = group_outside.tick(
        0,
        &json!({"d": 7, "p": 1}),
        &pods((7, json!({"q": 1})), (1, json!({"q": 1}))),
        &json!({"external": {"load": 8}}),
    );
    assert_eq!(desired(&plan), [7, 4]);
    for (t, ready, expected) in [(300, 1, [7, 4]), (600, 3, [5, 4]), (900, 4, [4, 4])] {
        let plan = started(&mut group_outside, t, ready);
        assert_eq!(desired(&plan), expected, "{ready} ready: {:?}", plan.roles);
    }
}

/// A group whose size nothing sets keeps it while one role stands in for the other, and when it no longer has to.
#[test]
fn group_size_is_kept_after_shares_moved() {
    let shares = "roles: {d: {min: 1, max: 9}, p: {min: 1, max: 9}}\n\
        coordination: {mode: Preferred, preferredRatio: {d: {max: 50}, p: {max: 50}}}";
    let mut group = Group::new(shares);
    let plan = tick(&mut group, 0, 7, 1, (json!(1), json!(1)));
    let goals: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
    assert_eq!((desired(&plan), goals), (vec![7, 3], vec![5, 3]));
    let at = |group: &mut Group, t, ready: u32| {
        let metrics = json!({"q": 1});
        let pods = [
            ("d", 7, true, metrics.clone()),
            ("p", ready, true, metrics.clone()),
            ("p", 3 - ready, false, metrics),
        ];
        group.tick(t, &json!({"d": 7, "p": 3}), &pods, &json!({}))
    };
    for (t, ready, expected) in [(15, 1, [7, 3]), (30, 2, [6, 3]), (45, 3, [5, 3])] {
        let plan = at(&mut group, t, ready);
        assert_eq!(desired(&plan), expected, "{ready} ready: {:?}", plan.roles);
    }
}

#[test]
fn a_lost_scrape_does_not_make_the_plan_jump() {
    let mut group = Group::new(&pair(""));
    let known = (json!(1), json!(9));
    let plan = tick(&mut group, 0, 4, 4, known.clone());
    let shares: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
    assert_eq!(shares, [4, 4], "(7/8 + 1/10) ÷ 2 of 8");
    for t in [15, 30, 45, 60, 6_000] {
        let plan = tick(&mut group, t, 4, 4, (json!(1), json!(null)));
        assert_eq!((desired(&plan), plan.roles[0].reasons[1]), (vec![4, 4], Reason::LastShares), "{t}");
        assert_eq!(plan.roles[1].pressure, None);
    }
    let plan = tick(&mut group, 6_015, 4, 4, known);
    assert_eq!(plan.roles[0].reasons[1], Reason::Pressure, "back as soon as it is known");
    // Nobody pressed: cost alone.
    let plan = tick(&mut group, 6_030, 4, 4, (json!(0), json!(0)));
    assert_eq!(plan.roles[0].reasons[1], Reason::Cost);
}

#[test]
fn unresponsive_pod_costs_its_role_no_share() {
    let total = "total: {metrics: [{name: load, source: prometheus, target: 1}]}\n";
    for (size, state) in [("", "StaleData"), (total, "")] {
        let mut group = Group::new(&format!(
            "roles: {{d: {{min: 1, max: 12, cost: 100}}, p: {{min: 1, max: 12, cost: 100}}}}\n{size}\
             coordination: {{mode: Preferred, pressure: {{d: [{{metric: q, target: 1}}], p: [{{metric: q, target: 1}}]}}}}"
        ));
        let pods = |responding: u32| {
            [
                ("d", responding, true, json!({"q": 0.1})),
                ("d", 8 - responding, true, json!({})),
                ("p", 4, true, json!({"q": 0.9})),
            ]
        };
        let replicas = json!({"d": 8, "p": 4});
        let more = json!({"external": {"load": 12}});
        let plan = group.tick(0, &replicas, &pods(7), &more);
        let goals: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
        assert_eq!(goals, [8, 4], "{plan:?}");
        let is_said = plan.conditions.iter().any(|condition| format!("{condition:?}") == state)
            || plan.roles[0].reasons.contains(&Reason::LastShares);
        assert!(is_said, "{plan:?}");
        // Once all of them respond, it does.
        assert!(group.tick(15, &replicas, &pods(8), &more).roles[0].goal < 8);
    }
}

#[test]
fn move_of_one_pod_is_within_the_dead_band() {
    let mut group = Group::new(&pair(", alpha: 1"));
    for (current, pressure, expected) in
        [((5, 3), (6, 2), [5, 3]), ((4, 4), (6, 2), [6, 2]), ((6, 2), (6, 2), [6, 2])]
    {
        let plan = tick(&mut group, 0, current.0, current.1, (json!(pressure.0), json!(pressure.1)));
        let goals: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
        assert_eq!(goals, expected, "{current:?}");
        let rests = plan.roles[0].reasons.contains(&Reason::DeadBand);
        assert_eq!(rests, current == (5, 3));
    }
}

#[test]
fn ratio_holds_with_any_coordination() {
    for mode in ["Off", "Preferred"] {
        let spec = format!(
            "roles: {{d: {{min: 1, max: 16}}, p: {{min: 1, max: 8}}}}\n\
             coordination: {{mode: {mode}, ratio: {{numerator: p, denominator: d, min: \"1:4\", max: \"1:1\"}}}}"
        );
        let mut group = Group::new(&spec);
        let plan = group.tick(0, &json!({"d": 12, "p": 1}), &[], &json!({}));
        let goals: Vec<u32> = plan.roles.iter().map(|role| role.goal).collect();
        let (d, p) = (goals[0], goals[1]);
        assert!(p * 4 >= d && p <= d, "{mode}: {goals:?}");
        let holds = group.tick(15, &json!({"d": 8, "p": 2}), &[], &json!({}));
        assert!(!holds.roles[0].reasons.contains(&Reason::Ratio), "{mode}");
    }
}

/// Bounds go before the ratio: where no numbers keep it while requests wait, pods start all the same.
#[test]
fn unsatisfiable_ratio_does_not_keep_a_group_at_zero() {
    let spec = "roles: {d: {max: 2}, p: {max: 8}}\n\
        total: {metrics: [{name: queue_depth, target: 4}]}\n\
        coordination: {ratio: {numerator: d, denominator: p, max: \"1:9\"}}";
    let mut group = Group::new(spec);
    let plan = group.tick(0, &json!({}), &[], &json!({"waiting": 1}));
    assert_eq!((desired(&plan), plan.conditions), (vec![1, 1], vec![Condition::RatioConstraintViolated]));
    assert!(plan.roles[0].reasons.contains(&Reason::RatioUnsatisfied), "{:?}", plan.roles);
    // What there is stays otherwise.
    let plan = group.tick(15, &json!({"d": 2, "p": 5}), &[], &json!({"waiting": 1}));
    assert_eq!(desired(&plan), [2, 5]);
}
