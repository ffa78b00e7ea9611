//! States and steps of the state machine, tick by tick.

use serde_json::json;
use usher::capacity::{Condition, Plan, State};

use crate::cluster::{Cluster, admitted};
use crate::group::Group;

const STEPS: &str = "steps: {decode: 4, prefill: 2}";

fn deploy(more: &str) -> String {
    format!(
        "{{roles: {{decode: {{min: 8, max: 8}}, prefill: {{min: 4, max: 4}}}}, deploy: {{{STEPS}{more}}}}}"
    )
}

fn says(plan: &Plan) -> (State, Vec<u32>) {
    (plan.state, admitted(plan))
}

/// Open part of a step that is stuck, of each role: its pods, how many are up, whether it is an update.
/// `None`: the role has no open part.
fn open(plan: &Plan) -> Vec<Option<(u32, u32, bool)>> {
    let each = plan.roles.iter().map(|role| role.open);
    each.map(|open| open.map(|open| (open.pods, open.up, open.is_update))).collect()
}

#[test]
fn a_group_comes_up_in_steps_and_then_scales() {
    let spec = "{roles: {decode: {min: 4, max: 8}, prefill: {min: 2, max: 4}}, deploy: {steps: {decode: 4, prefill: 2}}, rules: [{name: up, role: decode, source: prometheus, metric: q, comparator: GREATER_THAN, threshold: 5, step: 4, cooldown: 1s}]}";
    let mut group = Group::new(spec);
    let none = json!({});
    assert_eq!(says(&group.tick(0, [0, 0], &[], &none)), (State::Deploy, vec![4, 2]));
    assert_eq!(says(&group.tick(15, [4, 2], &[("decode", 3, "ready")], &none)), (State::Deploy, vec![4, 2]));
    let up = [("decode", 4, "ready"), ("prefill", 2, "ready")];
    assert_eq!(says(&group.tick(30, [4, 2], &up, &none)), (State::Idle, vec![4, 2]));
    // A pod that isn't ready for a moment is no reason to do anything.
    assert_eq!(says(&group.tick(45, [4, 2], &up[..1], &none)), (State::Idle, vec![4, 2]));
    let asks = json!({"external": {"q": 9}});
    let plan = group.tick(60, [4, 2], &up, &asks);
    assert_eq!(says(&plan), (State::Scale, vec![8, 2]));
    assert_eq!(plan.roles[0].desired, 8);
    // What the rule asked for is on its way.
    let plan = group.tick(75, [8, 2], &up, &none);
    assert_eq!((says(&plan), plan.roles[0].desired), ((State::Scale, vec![8, 2]), 8));
    let all = [("decode", 8, "ready"), ("prefill", 2, "ready")];
    assert_eq!(says(&group.tick(90, [8, 2], &all, &none)), (State::Idle, vec![8, 2]));
}

#[test]
fn pods_at_gates_are_let_through_in_steps() {
    let mut group = Group::new(&deploy(""));
    let none = json!({});
    let plan = group.tick(0, [8, 4], &[("decode", 8, "gated"), ("prefill", 4, "gated")], &none);
    assert_eq!(says(&plan), (State::Deploy, vec![4, 2]));
    let written: Vec<u32> = plan.roles.iter().map(|role| role.write).collect();
    assert_eq!(written, [8, 4], "they are there, and wait");
    let pods =
        [("decode", 4, "gated"), ("decode", 4, "ready"), ("prefill", 2, "gated"), ("prefill", 2, "ready")];
    assert_eq!(says(&group.tick(15, [8, 4], &pods, &none)), (State::Deploy, vec![8, 4]));
    let up = [("decode", 8, "ready"), ("prefill", 4, "ready")];
    assert_eq!(says(&group.tick(30, [8, 4], &up, &none)), (State::Idle, vec![8, 4]));
    // Lost pods come back at once, all of them.
    let lost = [("decode", 7, "gated"), ("decode", 1, "ready"), ("prefill", 4, "ready")];
    assert_eq!(says(&group.tick(45, [8, 4], &lost, &none)), (State::Scale, vec![8, 4]));
}

#[test]
fn update_begins_despite_an_unready_pod() {
    let none = json!({});
    let update = "update: {maxSkewPercent: 50}}";
    for pace in [format!("deploy: {{{STEPS}}}, {update}"), update.to_owned()] {
        let mut group = Group::new(&format!(
            "{{roles: {{decode: {{min: 8, max: 8}}, prefill: {{min: 4, max: 4}}}}, {pace}"
        ));
        let up = [("decode", 8, "ready"), ("prefill", 4, "ready")];
        for at in [0, 15] {
            group.tick(at, [8, 4], &up, &none);
        }
        let broken = [("decode", 7, "ready"), ("decode", 1, ""), ("prefill", 4, "ready")];
        group.tick(30, [8, 4], &broken, &none);
        let old =
            [("decode", 7, "ready outdated"), ("decode", 1, "outdated"), ("prefill", 4, "ready outdated")];
        let plan = group.tick(45, [8, 4], &old, &none);
        assert_eq!(plan.state, State::Update, "{plan:?}");
        assert!(plan.conditions.contains(&Condition::Paused), "{plan:?}");
        assert!(plan.roles[0].partition < Some(8), "{plan:?}");
    }
}

#[test]
fn gated_pods_of_a_step_need_room_again() {
    let spec = "{roles: {decode: {min: 8, max: 12}, prefill: {min: 4, max: 4}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}";
    let mut group = Group::new(spec);
    let room = |pods: u32| json!({"domains": {"rack": {"r": {"decode": pods, "prefill": pods}}}});
    let gated = [("decode", 8, "gated"), ("prefill", 4, "gated")];
    assert_eq!(admitted(&group.tick(0, [8, 4], &gated, &room(8))), [4, 2]);
    // Another group has passed first.
    let plan = group.tick(15, [8, 4], &gated, &room(0));
    assert_eq!(admitted(&plan), [0, 0], "{plan:?}");
    assert!(plan.conditions.contains(&Condition::TopologyUnsatisfied), "{plan:?}");
}

#[test]
fn replacement_pod_needs_no_room_after_a_restart() {
    let spec = "{roles: {decode: {min: 8, max: 12}, prefill: {min: 4, max: 4}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}";
    let full = json!({"domains": {"rack": {"r": {"decode": 0, "prefill": 0}}}});
    let pods = [("decode", 7, "ready"), ("decode", 1, "gated"), ("prefill", 4, "ready")];
    let up = [("decode", 8, "ready"), ("prefill", 4, "ready")];
    for is_lost_at_once in [true, false] {
        let mut group = Group::new(spec);
        group.history.rollout.resume_admitted(vec![8, 4]);
        if !is_lost_at_once {
            group.tick(0, [8, 4], &up, &full);
        }
        let plan = group.tick(15, [8, 4], &pods, &full);
        assert_eq!(admitted(&plan), [8, 4], "{is_lost_at_once}: {plan:?}");
    }
}

#[test]
fn formerly_larger_group_finds_domains_for_its_steps() {
    let spec = "{roles: {decode: {min: 4, max: 12}, prefill: {min: 2, max: 6}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}, rules: [{name: up, role: decode, source: prometheus, metric: q, comparator: GREATER_THAN, threshold: 5, step: 4, cooldown: 1h}, {name: more, role: prefill, source: prometheus, metric: q, comparator: GREATER_THAN, threshold: 5, step: 2, cooldown: 1h}]}";
    let mut group = Group::new(spec);
    let domains = |pods: u32| json!({"rack": {"r": {"decode": pods, "prefill": pods}}});
    let calm = |pods: u32| json!({"domains": domains(pods), "external": {"q": 1}});
    let large = [("decode", 8, "ready"), ("prefill", 4, "ready")];
    group.tick(0, [8, 4], &large, &calm(8));
    let small = [("decode", 4, "ready"), ("prefill", 2, "ready")];
    group.tick(15, [4, 2], &small, &calm(8));
    let asks = json!({"domains": domains(8), "external": {"q": 9}});
    group.tick(30, [4, 2], &small, &asks);
    // Its pods begin at gates, and the room is taken by then.
    let gated = [("decode", 4, "gated"), ("prefill", 2, "gated")];
    let plan = group.tick(45, [8, 4], &[&small[..], &gated].concat(), &calm(0));
    assert_eq!(admitted(&plan), [4, 2], "{plan:?}");
    assert!(plan.conditions.contains(&Condition::TopologyUnsatisfied), "{plan:?}");
}

#[test]
fn replacement_pod_passes_its_gate_after_a_restart() {
    let spec =
        "{roles: {decode: {min: 12, max: 12}, prefill: {min: 4, max: 4}}, scaling: {maxSkewPercent: 20}}";
    let none = json!({});
    for is_remembered in [true, false] {
        let mut group = Group::new(spec);
        if is_remembered {
            group.history.rollout.resume_admitted(vec![12, 4]);
        }
        // One never gets ready, and another is lost.
        let ready = [("decode", 10, "ready"), ("decode", 1, ""), ("prefill", 4, "ready")];
        group.tick(0, [12, 4], &ready, &none);
        let pods = [&ready[..], &[("decode", 1, "gated")]].concat();
        let plan = group.tick(15, [12, 4], &pods, &none);
        assert_eq!(admitted(&plan), [if is_remembered { 12 } else { 11 }, 4], "{plan:?}");
    }
}

#[test]
fn missing_pods_are_not_past_the_gate() {
    let none = json!({});
    let mut group = Group::new(&deploy(""));
    // A StatefulSet makes one at a time, and whoever makes many takes its time.
    let plan = group.tick(0, [8, 4], &[("decode", 1, "gated"), ("prefill", 4, "gated")], &none);
    assert_eq!(says(&plan), (State::Deploy, vec![4, 2]));
    let some = [("decode", 1, ""), ("decode", 1, "gated"), ("prefill", 2, ""), ("prefill", 2, "gated")];
    assert_eq!(says(&group.tick(15, [8, 4], &some, &none)), (State::Deploy, vec![4, 2]));
    let up = [("decode", 4, "ready"), ("prefill", 2, "ready"), ("prefill", 2, "gated")];
    assert_eq!(says(&group.tick(30, [8, 4], &up, &none)), (State::Deploy, vec![8, 4]));
}

#[test]
fn rules_start_from_externally_written_replicas() {
    let rule = "{name: up, role: decode, source: prometheus, metric: q, comparator: GREATER_THAN, threshold: 5, step: 8, cooldown: 1h}";
    let spec = |mode: &str| {
        format!(
            "{{mode: {mode}, roles: {{decode: {{min: 4, max: 16}}, prefill: {{min: 2, max: 2}}}}, deploy: {{steps: {{decode: 4, prefill: 2}}}}, rules: [{rule}]}}"
        )
    };
    let none = json!({});
    let up = |decode: u32| [("decode", decode, "ready"), ("prefill", 2, "ready")];
    let mut group = Group::new(&spec("Apply"));
    assert_eq!(says(&group.tick(0, [4, 2], &up(4), &none)), (State::Idle, vec![4, 2]));
    // `kubectl scale --replicas=6`
    assert_eq!(says(&group.tick(15, [6, 2], &up(6), &none)), (State::Idle, vec![6, 2]));
    // What a rule asked for is on its way until then.
    let (asks, calm) = (json!({"external": {"q": 9}}), json!({"external": {"q": 1}}));
    let plan = group.tick(30, [6, 2], &up(6), &asks);
    assert_eq!((plan.roles[0].desired, plan.roles[0].write), (14, 8));
    assert_eq!(group.tick(45, [6, 2], &up(6), &calm).roles[0].desired, 14, "the write failed");
    assert_eq!(group.tick(60, [8, 2], &up(6), &calm).roles[0].desired, 14);
    assert_eq!(
        group.tick(65, [8, 2], &up(6), &none).roles[0].desired,
        8,
        "without numbers it goes no further"
    );
    assert_eq!(group.tick(75, [5, 2], &up(5), &calm).roles[0].desired, 5, "somebody thinks otherwise");
    // Where others carry it out, they may take their time.
    let mut group = Group::new(&spec("Recommend"));
    group.tick(0, [4, 2], &up(4), &asks);
    assert_eq!(group.tick(15, [5, 2], &up(5), &calm).roles[0].desired, 12);
}

#[test]
fn success_setting_decides_which_pods_are_up() {
    let none = json!({});
    for (success, states) in
        [("Scheduled", "scheduled"), ("Running", "running"), ("Ready", "ready"), ("Serving", "serving")]
    {
        let order = ["scheduled", "running", "ready", "serving"];
        for state in order {
            let mut group = Group::new(&deploy(&format!(", success: {success}")));
            let pods = [("decode", 4, state), ("prefill", 2, state)];
            let plan = group.tick(0, [4, 2], &pods, &none);
            let place = |name: &str| order.iter().position(|state| *state == name);
            // Serving is a word of its own: a pod can be in the pool and not ready for a moment.
            let is_up = if state == "serving" { success == "Serving" } else { place(state) >= place(states) };
            assert_eq!(admitted(&plan), if is_up { [8, 4] } else { [4, 2] }, "{success}: {state}");
        }
    }
}

#[test]
fn overdue_step_is_held() {
    let mut group = Group::new(&deploy(", batchTimeout: 60s, provisioningTimeout: 100s"));
    let none = json!({});
    let pods = [("decode", 4, "ready"), ("prefill", 1, "ready"), ("prefill", 1, "unschedulable")];
    group.tick(0, [0, 0], &[], &none);
    assert_eq!(group.tick(10, [4, 2], &pods, &none).conditions, [Condition::Unschedulable]);
    assert_eq!(group.tick(69, [4, 2], &pods, &none).state, State::Deploy);
    let plan = group.tick(70, [4, 2], &pods, &none);
    assert_eq!(says(&plan), (State::Blocked, vec![4, 2]));
    assert_eq!(plan.conditions, [Condition::BatchTimeout, Condition::Unschedulable]);
    assert_eq!(open(&plan), [None, Some((2, 1, false))]);
    assert_eq!(plan.stuck.map(|stuck| (stuck.asks, stuck.spare)), Some((1, 6)));
    // It goes on by itself.
    let up = [("decode", 4, "ready"), ("prefill", 2, "ready")];
    assert_eq!(says(&group.tick(80, [4, 2], &up, &none)), (State::Deploy, vec![8, 4]));
    // Nodes are being added: that doesn't count, for a while.
    let adds = json!({"provisioning": true});
    assert_eq!(group.tick(180, [8, 4], &up, &adds).state, State::Deploy);
    assert_eq!(group.tick(230, [8, 4], &up, &adds).state, State::Deploy);
    assert_eq!(group.tick(240, [8, 4], &up, &adds).state, State::Blocked);
}

#[test]
fn stuck_step_reports_its_missing_pods() {
    let update = "update: {maxSkewPercent: 10, maxUnavailablePercent: 20}";
    let spec = |decode: u32, more: &str| {
        format!(
            "{{roles: {{decode: {{min: {decode}, max: {decode}}}, prefill: {{min: 4, max: 4}}}}, deploy: {{{STEPS}, batchTimeout: 60s{more}}}, {update}}}"
        )
    };
    let none = json!({});
    let serving = ", success: Serving";
    let prefill = ("prefill", 4, "ready serving");
    let (two, up) = (("decode", 2, "ready"), "ready serving outdated");
    let table = [
        // Their metrics are not fresh.
        (spec(8, serving), vec![("decode", 6, "ready serving"), two, prefill], [Some((8, 6, false)), None]),
        // Load wants fewer, and the one new pod doesn't come up.
        (spec(4, ""), vec![("decode", 7, up), ("decode", 1, ""), prefill], [Some((1, 0, true)), None]),
        // New pods are ready, and serve nobody.
        (
            spec(8, serving),
            vec![("decode", 7, up), ("decode", 1, "ready"), prefill],
            [Some((1, 0, true)), None],
        ),
    ];
    for (spec, pods, expected) in table {
        let mut group = Group::new(&spec);
        // All of them were up before.
        let before = [("decode", 8, up), ("prefill", 4, "ready serving")];
        let is_update = expected[0].is_some_and(|(_, _, is_update)| is_update);
        if is_update {
            group.tick(0, [8, 4], &before, &none);
        }
        let plan = group.tick(1, [8, 4], &pods, &none);
        assert_eq!(open(&plan), [None; 2], "{pods:?}");
        let plan = group.tick(62, [8, 4], &pods, &none);
        assert_eq!((plan.state, open(&plan)), (State::Blocked, expected.to_vec()), "{pods:?}");
        assert!(plan.roles.iter().all(|role| role.ready >= role.desired), "{pods:?}");
    }
}

#[test]
fn trimmed_step_is_retried_a_limited_number_of_times() {
    let mut group = Group::new(&deploy(", batchTimeout: 60s, onTimeout: Trim"));
    let none = json!({});
    let four = [("decode", 4, "ready"), ("prefill", 2, "ready")];
    let stuck =
        [&four[..], &[("decode", 1, "ready"), ("decode", 3, "unschedulable"), ("prefill", 2, "")]].concat();
    let mut now = 0;
    group.tick(now, [4, 2], &four, &none);
    for _ in 0..3 {
        assert_eq!(says(&group.tick(now + 1, [8, 4], &stuck, &none)).0, State::Scale);
        let plan = group.tick(now + 61, [8, 4], &stuck, &none);
        assert_eq!(says(&plan), (State::Blocked, vec![4, 2]), "at {now}");
        assert_eq!(says(&group.tick(now + 120, [4, 2], &four, &none)), (State::Blocked, vec![4, 2]));
        now += 121;
        assert_eq!(says(&group.tick(now, [4, 2], &four, &none)), (State::Scale, vec![8, 4]), "at {now}");
    }
    // Three times without growth is enough.
    group.tick(now + 1, [8, 4], &stuck, &none);
    assert_eq!(says(&group.tick(now + 61, [8, 4], &stuck, &none)), (State::Blocked, vec![8, 4]));
    let up = [("decode", 8, "ready"), ("prefill", 4, "ready")];
    assert_eq!(says(&group.tick(now + 70, [8, 4], &up, &none)), (State::Idle, vec![8, 4]));
}

#[test]
fn failed_group_resumes_only_with_a_new_goal() {
    let spec = deploy(", batchTimeout: 60s, onTimeout: Fail");
    let mut group = Group::new(&spec);
    let none = json!({});
    let pods = [("decode", 4, "ready"), ("prefill", 1, "ready")];
    group.tick(0, [4, 2], &pods, &none);
    let plan = group.tick(60, [4, 2], &pods, &none);
    assert_eq!((says(&plan), plan.conditions), ((State::Failed, vec![4, 2]), vec![Condition::BatchTimeout]));
    let up = [("decode", 4, "ready"), ("prefill", 2, "ready")];
    assert_eq!(says(&group.tick(70, [4, 2], &up, &none)), (State::Failed, vec![4, 2]), "it was given up");
    group.policy.roles[0].range.min = 7;
    group.policy.roles[0].range.max = 7;
    assert_eq!(says(&group.tick(80, [4, 2], &up, &none)).1, [7, 4]);
}

#[test]
fn blocked_group_gives_way_on_a_deadlock() {
    let mut group = Group::new(&deploy(", batchTimeout: 60s"));
    let none = json!({});
    let stuck = [("decode", 6, "ready"), ("prefill", 2, "ready"), ("prefill", 2, "unschedulable")];
    group.tick(0, [8, 4], &stuck, &none);
    assert_eq!(says(&group.tick(60, [8, 4], &stuck, &none)), (State::Blocked, vec![8, 4]));
    group.history.rollout.request_trim();
    let plan = group.tick(75, [8, 4], &stuck, &none);
    assert_eq!(says(&plan), (State::Blocked, vec![4, 2]));
    assert!(plan.conditions.contains(&Condition::Deadlock));
}

#[test]
fn step_goes_to_a_domain_with_room_for_all_of_it() {
    let topology = |constraint| {
        format!(", topology: {{layers: [host, rack, zone], layer: rack, constraint: {constraint}}}")
    };
    let room = json!({"domains": {"rack": {"r1": {"decode": 4, "prefill": 1}, "r2": {"decode": 2}},
                                  "zone": {"z1": {"decode": 6, "prefill": 2}}}});
    let mut group = Group::new(&deploy(&topology("Required")));
    let plan = group.tick(0, [0, 0], &[], &room);
    assert_eq!(says(&plan), (State::Blocked, vec![0, 0]));
    assert_eq!(plan.conditions, [Condition::TopologyUnsatisfied]);
    assert_eq!(open(&plan), [Some((4, 0, false)), Some((2, 0, false))]);
    let text = "no domain of rack has room for 4 decode and 2 prefill: r1 lacks 1 prefill, r2 lacks 2 decode and 2 prefill";
    assert_eq!(plan.shortfall().as_deref(), Some(text));
    let more = json!({"domains": {"rack": {"r1": {"decode": 4, "prefill": 2}}}});
    let plan = group.tick(15, [0, 0], &[], &more);
    assert_eq!((says(&plan), plan.roles[0].layer.as_deref()), ((State::Deploy, vec![4, 2]), Some("rack")));
    let mut group = Group::new(&deploy(&topology("Preferred")));
    let plan = group.tick(0, [0, 0], &[], &room);
    assert_eq!((says(&plan), plan.roles[1].layer.as_deref()), ((State::Deploy, vec![4, 2]), Some("zone")));
    assert_eq!(plan.placement.map(|place| place.domain).as_deref(), Some("z1"));
    // A role that goes its own way has no part in that.
    let spec = "{roles: {decode: {min: 8, max: 8}, prefill: {min: 4, max: 4}}, deploy: {steps: {decode: 4}, topology: {layers: [rack]}}}";
    let plan = Group::new(spec).tick(0, [0, 0], &[], &room);
    assert_eq!((plan.roles[0].layer.as_deref(), plan.roles[1].layer.as_deref()), (Some("rack"), None));
    // The layer stays known while the step comes up.
    let plan = group.tick(15, [4, 2], &[("decode", 4, "")], &json!({}));
    assert_eq!(plan.roles[0].layer.as_deref(), Some("zone"));
}

#[test]
fn a_thousand_pods_in_a_hundred_steps_take_a_hundred_batches() {
    let spec = "{roles: {decode: {min: 600, max: 600}, prefill: {min: 400, max: 400}}, deploy: {steps: {decode: 6, prefill: 4}}}";
    for has_gates in [false, true] {
        let mut cluster = Cluster::new(spec, 1);
        cluster.has_gates = has_gates;
        let mut batches = Vec::new();
        for _ in 0..500 {
            let plan = cluster.plan();
            let now = admitted(&plan);
            if batches.last() != Some(&now) {
                batches.push(now);
            }
            if plan.state == State::Idle {
                break;
            }
            cluster.apply(&plan);
            cluster.pass(1);
            cluster.pass(1);
        }
        // With gates the first tick sees no pods yet.
        assert_eq!(batches.len(), 100, "gates: {has_gates}");
        assert_eq!(batches.last(), Some(&vec![600, 400]));
    }
}
