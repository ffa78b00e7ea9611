//! Without numbers nothing changes: what is missing is no reason to add a pod, nor to take one away.

use proptest::prelude::*;
use serde_json::{Value, json};
use usher::capacity::{Condition, Reason};

use crate::capacity::support::{Group, desired};

/// Two roles whose load is their queue.
fn pair(mode: &str) -> String {
    format!(
        "roles: {{d: {{min: 1, max: 16}}, p: {{min: 1, max: 16}}}}\n\
         total: {{metrics: [{{name: queue_depth, target: 4}}]}}\n\
         coordination: {{mode: \"{mode}\", pressure: {{d: [{{metric: q, target: 1}}], p: [{{metric: q, target: 1}}]}}}}"
    )
}

fn counts(d: u32, p: u32) -> Value {
    json!({"d": d, "p": p})
}

#[test]
fn without_any_number_no_role_moves() {
    for mode in ["Preferred", "Off"] {
        let mut group = Group::new(&pair(mode));
        let none = json!({"queue_depth": null, "q": null});
        let pods = [("d", 2, true, none.clone()), ("p", 5, true, none)];
        let mut sizes = vec![2, 5];
        for tick in 0..40 {
            let plan = group.tick(tick * 15, &counts(sizes[0], sizes[1]), &pods, &json!({}));
            sizes = desired(&plan);
            assert_eq!((sizes.as_slice(), plan.total), (&[2, 5][..], 7), "{mode}: {plan:?}");
            assert_eq!(plan.conditions, [Condition::StaleData], "{mode}");
        }
    }
}

#[test]
fn without_the_pressure_of_all_roles_the_shares_stay() {
    let mut group = Group::new(&pair("Preferred"));
    // What sizes is known: 36 wait, for nine pods; how pressed p is isn't known.
    let pods =
        [("d", 2, true, json!({"queue_depth": 9, "q": 9})), ("p", 4, true, json!({"queue_depth": 4.5}))];
    let plan = group.tick(0, &counts(2, 4), &pods, &json!({}));
    assert_eq!((desired(&plan), plan.roles[0].reasons[1]), (vec![3, 6], Reason::LastShares));
    // At its size nothing moves, however long it takes.
    for tick in 1..100 {
        let pods =
            [("d", 3, true, json!({"queue_depth": 4, "q": 9})), ("p", 6, true, json!({"queue_depth": 4}))];
        let plan = group.tick(tick * 15, &counts(3, 6), &pods, &json!({}));
        assert_eq!(desired(&plan), [3, 6], "{plan:?}");
    }
    // On the way down nobody grows.
    let pods = [("d", 3, true, json!({"queue_depth": 1, "q": 9})), ("p", 6, true, json!({"queue_depth": 1}))];
    let plan = group.tick(1_800, &counts(3, 6), &pods, &json!({}));
    assert_eq!(desired(&plan), [1, 2]);
}

#[test]
fn total_stays_while_shares_follow_known_pressure() {
    let mut group = Group::new(&pair("Preferred"));
    let pods = [("d", 4, true, json!({"q": 1})), ("p", 4, true, json!({"q": 9}))];
    let plan = group.tick(0, &counts(4, 4), &pods, &json!({}));
    let goals: u32 = plan.roles.iter().map(|role| role.goal).sum();
    assert_eq!((goals, plan.conditions.as_slice()), (8, &[Condition::StaleData][..]));
}

#[test]
fn missing_metric_allows_growth_only() {
    let spec = "roles: {a: {min: 1, max: 20}}\n\
        total: {metrics: [{name: queue_depth, target: 4}, {name: kv, target: 0.5}]}\n\
        behavior: {scaleDown: {stabilization: 0s}}";
    let tick = |metrics: Value| {
        let plan = Group::new(spec).tick(0, &json!({"a": 8}), &[("a", 8, true, metrics)], &json!({}));
        (desired(&plan), plan.conditions)
    };
    assert_eq!(tick(json!({"kv": 0.1})), (vec![8], vec![Condition::StaleData]));
    assert_eq!(tick(json!({"kv": 0.1, "queue_depth": 1})).0, [2]);
    assert_eq!(tick(json!({"kv": 1})), (vec![16], vec![]), "one is enough to grow");
}

/// Bounds are the user's own numbers: pods that are missing can't have any, those that are too many can.
#[test]
fn without_numbers_only_a_minimum_holds() {
    let total = "total: {metrics: [{name: queue_depth, target: 4}]}";
    let rules =
        "rules: [{name: up, role: a, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 1}]";
    for sizing in [total, rules] {
        let spec = format!("roles: {{a: {{min: 3, max: 6}}}}\n{sizing}");
        let tick = |current: u32, metrics: Value| {
            Group::new(&spec).tick(0, &json!({"a": current}), &[("a", current, true, metrics)], &json!({}))
        };
        assert_eq!(desired(&tick(1, json!({}))), [3], "{sizing}");
        let plan = tick(9, json!({}));
        assert_eq!((desired(&plan), plan.conditions), (vec![9], vec![Condition::StaleData]), "{sizing}");
        assert_eq!(desired(&tick(9, json!({"queue_depth": 5}))), [6], "{sizing}");
    }
}

#[test]
fn missing_numbers_keep_sizes_despite_a_ratio() {
    let spec = "roles: {d: {min: 1, max: 16}, p: {min: 1, max: 16}}\n\
        total: {metrics: [{name: queue_depth, target: 4}]}\n\
        coordination: {ratio: {numerator: p, denominator: d, min: \"1:2\", max: \"1:1\"}}";
    let of = |spec: &str, d, p, more: Value| desired(&Group::new(spec).tick(0, &counts(d, p), &[], &more));
    let tick = |d, p, more: Value| of(spec, d, p, more);
    assert_eq!(tick(8, 1, json!({})), [8, 1]);
    // A minimum that is raised doesn't break a ratio that holds.
    let raised = spec.replace("p: {min: 1", "p: {min: 6");
    assert_eq!(of(&raised, 4, 4, json!({})), [6, 6]);
    assert_eq!(tick(8, 0, json!({})), [8, 1], "p is below its minimum, and the ratio did not hold before");
    assert_eq!(tick(0, 0, json!({})), [1, 1], "both are");
    // With a number it is kept as always.
    let known = tick(8, 1, json!({"external": {"queue_depth": 36}}));
    assert!(known[1] <= known[0] && known[0] <= 2 * known[1], "{known:?}");
}

/// A rule of one role knows its number, that of the other doesn't.
#[test]
fn ratio_holds_beside_a_role_without_numbers() {
    let rule = |role: &str, step: i32| {
        format!(
            "{{name: {role}, role: {role}, metric: {role}, comparator: GREATER_THAN, threshold: 5, step: {step}}}"
        )
    };
    let tick_of = |most: u32, (d, p): (u32, u32), steps: (i32, i32), known: &str| {
        let spec = format!(
            "roles: {{d: {{min: 1, max: 16}}, p: {{min: 1, max: {most}}}}}\n\
             coordination: {{ratio: {{numerator: p, denominator: d, min: \"1:2\", max: \"1:1\"}}}}\n\
             rules: [{}, {}]",
            rule("d", steps.0),
            rule("p", steps.1)
        );
        let pods = [("d", d, true, json!({known: 9})), ("p", p, true, json!({known: 9}))];
        desired(&Group::new(&spec).tick(0, &counts(d, p), &pods, &json!({})))
    };
    let tick = |pods, steps, known| tick_of(16, pods, steps, known);
    assert_eq!(tick((8, 4), (4, 1), "d"), [12, 6]);
    assert_eq!(tick((8, 3), (4, 1), "d"), [12, 6], "also where it didn't hold before");
    assert_eq!(tick((8, 4), (1, -2), "p"), [8, 4], "what shrinks keeps what the other needs");
    assert_eq!(tick((8, 6), (1, -3), "p"), [8, 4]);
    assert_eq!(tick((8, 3), (1, -2), "p"), [8, 3], "it doesn't hold, and gets no worse");
    assert_eq!(tick((4, 10), (1, -2), "p"), [4, 8], "it doesn't hold, and gets better");
    assert_eq!(tick((4, 20), (1, -2), "p"), [4, 14], "from its maximum");
    assert_eq!(tick((14, 8), (2, 1), "d"), [16, 8]);
    assert_eq!(tick_of(4, (8, 4), (4, 1), "d"), [8, 4], "the other can't come along");
    assert_eq!(tick_of(5, (8, 4), (4, 1), "d"), [10, 5], "or not all the way");
    assert_eq!(tick_of(3, (8, 2), (4, 1), "p"), [8, 3], "what lacks pods gets them, though not enough");
    assert_eq!(tick_of(3, (8, 2), (4, 1), "d"), [8, 2], "what has too many gets no more");
}

/// Steps that take too long, of a group whose numbers are missing.
#[test]
fn outage_removes_no_pod() {
    for (success, ready) in [("Serving", [8, 4]), ("Ready", [7, 4]), ("Ready", [6, 3])] {
        let spec = format!(
            "roles: {{d: {{min: 1, max: 16}}, p: {{min: 1, max: 8}}}}\n\
             total: {{metrics: [{{name: queue_depth, target: 4}}]}}\n\
             deploy: {{steps: {{d: 4, p: 2}}, success: {success}, batchTimeout: 60s, onTimeout: Trim}}"
        );
        let mut group = Group::new(&spec);
        let known = [("d", 4, true, json!({"queue_depth": 6})), ("p", 2, true, json!({"queue_depth": 6}))];
        group.tick(0, &counts(4, 2), &known, &json!({}));
        let none = || json!({"queue_depth": null});
        for tick in 1..60 {
            let pods = [
                ("d", ready[0], true, none()),
                ("d", 8 - ready[0], false, none()),
                ("p", ready[1], true, none()),
                ("p", 4 - ready[1], false, none()),
            ];
            let plan = group.tick(tick * 15, &counts(8, 4), &pods, &json!({}));
            let kept: Vec<u32> = plan.roles.iter().map(|role| role.write.min(role.admitted)).collect();
            assert_eq!(kept, [8, 4], "{success} {ready:?}: {plan:?}");
        }
    }
    // A role without a ready pod has no number, and its part of the step isn't whole: the rest is given back.
    let spec = "roles: {d: {min: 1, max: 8}, p: {min: 1, max: 4}}\n\
        rules: [{name: d, role: d, metric: queue_depth, comparator: GREATER_THAN, threshold: 90, step: 1}, \
        {name: p, role: p, metric: queue_depth, comparator: GREATER_THAN, threshold: 90, step: 1}]\n\
        deploy: {steps: {d: 4, p: 2}, batchTimeout: 60s, onTimeout: Trim}";
    let mut group = Group::new(spec);
    let idle = json!({"queue_depth": 0});
    let pods = [("d", 4, true, idle.clone()), ("p", 2, false, idle)];
    let ticks = (0..20).map(|tick| group.tick(tick * 15, &counts(4, 2), &pods, &json!({})));
    assert_eq!(ticks.map(|plan| plan.roles[0].write).min(), Some(0));
    // A group without numbers has none that could be missing: what is ready stays, whatever isn't heard of it.
    let spec = "roles: {d: {min: 8, max: 8}, p: {min: 4, max: 4}}\n\
        deploy: {steps: {d: 4, p: 2}, success: Serving, batchTimeout: 60s, onTimeout: Trim}";
    let mut group = Group::new(spec);
    for tick in 0..60 {
        let pods = [("d", 8, true, json!({})), ("p", 3, true, json!({})), ("p", 1, false, json!({}))];
        let plan = group.tick(tick * 15, &counts(8, 4), &pods, &json!({}));
        assert!(plan.roles[0].write >= 4 && plan.roles[1].write >= 2, "{plan:?}");
    }
}

/// A policy at random, and how its roles stand.
#[derive(Clone, Debug)]
struct Case {
    spec: String,
    mins: Vec<u32>,
    counts: Vec<u32>,
    ready: Vec<u32>,
    before: Vec<u32>,
    /// Roles that a rule is about, where there are rules.
    ruled: Vec<bool>,
    /// Roles a and b have a ratio between 1:3 and 3:1.
    has_ratio: bool,
}

impl Case {
    /// Returns `true` if the ratio holds of so many pods.
    fn is_kept(&self, counts: &[u32]) -> bool {
        counts[0] <= 3 * counts[1] && counts[1] <= 3 * counts[0]
    }
}

fn case() -> impl Strategy<Value = Case> {
    let roles = prop::collection::vec((0u32..4, 0u32..12, 0u32..14, 0u32..14, 1u32..4), 1..4);
    (roles, 0usize..4, 0usize..3, 0usize..3, 0usize..3, any::<bool>(), prop::collection::vec(0u32..40, 0..6))
        .prop_map(|(roles, sizing, mode, ratio, pace, panics, before)| {
            let name = |place: usize| ["a", "b", "c"][place];
            let each = |of: &dyn Fn(usize) -> String| {
                (0..roles.len()).map(of).collect::<Vec<_>>().join(", ")
            };
            let bounds = each(&|place| {
                let (min, more, ..) = roles[place];
                format!("{}: {{min: {min}, max: {}, cost: {}}}", name(place), (min + more).max(1), roles[place].4)
            });
            // Some roles have no rule, and change with their partner alone.
            let ruled = |place: &usize| before.len() % 3 != 0 || *place != before.len() % 2;
            let ruled: Vec<bool> = (0..roles.len()).map(|place| ruled(&place)).collect();
            let rules: Vec<String> = (0..roles.len()).filter(|place| ruled[*place]).map(|place| {
                format!(
                    "{{name: up-{0}, role: {0}, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 2, cooldown: 1s}}, \
                     {{name: down-{0}, role: {0}, source: prometheus, metric: idle, comparator: LESS_THAN, threshold: 1, step: -1, cooldown: 1s}}",
                    name(place)
                )
            }).collect();
            let rules = rules.join(", ");
            let sizing = match sizing {
                0 if !rules.is_empty() => format!("rules: [{rules}]"),
                1 => "total: {metrics: [{name: queue_depth, target: 4}, {name: load, source: prometheus, target: 2}]}".to_owned(),
                _ => "total: {metrics: [{name: queue_depth, target: 4}]}".to_owned(),
            };
            let pressure = each(&|place| format!("{}: [{{metric: q, target: 1}}]", name(place)));
            let has_ratio = ratio == 0 && roles.len() > 1;
            let ratio = match ratio {
                0 if roles.len() > 1 => ", ratio: {numerator: a, denominator: b, min: \"1:3\", max: \"3:1\"}",
                1 if roles.len() > 1 => ", preferredRatio: {a: {min: 20, max: 60}}",
                _ => "",
            };
            let mode = ["Preferred", "Preferred", "Off"][mode];
            let pace = match pace {
                0 => format!(
                    "deploy: {{steps: {{{}}}, batchTimeout: 60s, onTimeout: {}, success: {}}}\n",
                    each(&|place| format!("{}: 2", name(place))),
                    ["Hold", "Trim"][usize::from(panics)],
                    ["Serving", "Ready"][before.len() % 2]
                ),
                1 => "scaling: {maxSkewPercent: 20}\n".to_owned(),
                _ => String::new(),
            };
            let panic = if panics { "{panic: {percent: 1000, period: 60s, hold: 30m}}" } else { "{instances: 9}" };
            Case {
                spec: format!(
                    "roles: {{{bounds}}}\n{sizing}\nbehavior: {{scaleUp: {panic}, scaleDown: {{stabilization: 0s}}}}\n\
                     {pace}coordination: {{mode: \"{mode}\", pressure: {{{pressure}}}{ratio}}}"
                ),
                mins: roles.iter().map(|role| role.0).collect(),
                counts: roles.iter().map(|role| role.2).collect(),
                ready: roles.iter().map(|role| role.3.min(role.2)).collect(),
                ruled,
                before,
                has_ratio,
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// Holds for any policy, replicas and earlier numbers.
    #[test]
    fn missing_numbers_change_no_replicas(case in case()) {
        let mut group = Group::new(&case.spec);
        let mut counts = case.counts.clone();
        let names = ["a", "b", "c"];
        let replicas = |counts: &[u32]| names.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), json!(count))).collect::<Value>();
        let mut now = 0;
        for queue in &case.before {
            let pods: Vec<_> = names.iter().zip(&counts).map(|(name, count)| (*name, *count, true, json!({"queue_depth": queue, "q": queue}))).collect();
            let more = json!({"external": {"idle": queue, "load": queue}});
            let plan = group.tick(now, &replicas(&counts), &pods, &more);
            counts = plan.roles.iter().map(|role| role.write).collect();
            now += 15;
        }
        // Where those rest at zero that rules are about, no number can be known, and bounds hold for the others.
        let rests = case.ruled.iter().zip(&counts).all(|(ruled, count)| !ruled || *count == 0);
        prop_assume!(!rests || case.ruled.iter().all(|ruled| *ruled) || counts.iter().all(|count| *count == 0));
        let (asked, mut was_trimmed) = (counts.clone(), false);
        for _ in 0..60 {
            let has_minima = counts.iter().zip(&case.mins).all(|(count, min)| count >= min);
            let pods: Vec<_> = names.iter().zip(&counts).zip(&case.ready).flat_map(|((name, count), ready)| {
                let ready = (*ready).min(*count);
                let lost = json!({"queue_depth": null});
                [(*name, ready, true, lost.clone()), (*name, count - ready, false, lost)]
            }).collect();
            let plan = group.tick(now, &replicas(&counts), &pods, &json!({"external": {"idle": null}}));
            let next = desired(&plan);
            let written: Vec<u32> = plan.roles.iter().map(|role| role.write).collect();
            // Where no pod is ready, none that could have numbers is given back.
            let trims = plan.roles.iter().any(|role| role.reasons.contains(&Reason::Trimmed));
            prop_assert!(!trims || plan.roles.iter().all(|role| role.ready == 0), "{plan:?}");
            was_trimmed |= trims;
            if was_trimmed {
                // What was given back is wanted still, and no more than that.
                for (place, next) in next.iter().enumerate() {
                    let least = asked[place].max(case.mins[place]);
                    let most = if case.has_ratio && place < 2 { least.max(case.mins[1 - place] * 3) } else { least };
                    prop_assert!(*next <= most, "{next} > {most}: {plan:?}");
                }
            } else if has_minima {
                prop_assert_eq!(&next, &counts, "{:?}", plan);
                prop_assert_eq!(&written, &counts, "{:?}", plan);
                prop_assert!(plan.conditions.contains(&Condition::StaleData) || counts.iter().all(|count| *count == 0), "{plan:?}");
            } else {
                let ratio = case.has_ratio && case.is_kept(&counts);
                for (place, (next, count)) in next.iter().zip(&counts).enumerate() {
                    let least = (*count).max(case.mins[place]);
                    prop_assert!(next >= count, "{plan:?}");
                    // A ratio that held, and that a minimum would break, brings the other role along.
                    let most = if ratio && place < 2 { least.max(case.mins[1 - place] * 3) } else { least };
                    prop_assert!(*next <= most, "{next} > {most}: {plan:?}");
                }
            }
            counts = written;
            now += 15;
        }
    }
}
