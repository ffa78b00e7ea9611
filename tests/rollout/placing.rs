//! Domains for the pods of a step, and for pods whose domain takes none any more.

use serde_json::json;
use usher::capacity::{Condition, Inputs, State};

use crate::cluster::admitted;
use crate::group::Group;

#[test]
fn replacements_need_no_room_in_a_required_domain() {
    let spec = "{roles: {decode: {min: 8, max: 12}, prefill: {min: 4, max: 4}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}";
    let mut group = Group::new(spec);
    let full = json!({"domains": {"rack": {"r": {"decode": 0, "prefill": 0}}}});
    let up = [("decode", 8, "ready"), ("prefill", 4, "ready")];
    group.tick(0, [8, 4], &[("decode", 8, "gated"), ("prefill", 4, "gated")], &json!({}));
    for at in [15, 30] {
        group.tick(at, [8, 4], &up, &json!({}));
    }
    // One is lost, and another comes in its place, when its room is taken.
    for decode in [&[("decode", 7, "ready")][..], &[("decode", 7, "ready"), ("decode", 1, "gated")]] {
        let pods = [decode, &[("prefill", 4, "ready")]].concat();
        let plan = group.tick(45, [8, 4], &pods, &full);
        assert_eq!(admitted(&plan), [8, 4], "{plan:?}");
        assert!(!plan.conditions.contains(&Condition::TopologyUnsatisfied), "{plan:?}");
    }
}

/// A group was up before a gate of it was seen, and has lost more than a step.
#[test]
fn pods_lost_before_the_first_gate_all_come_back() {
    let spec = "{roles: {decode: {min: 12, max: 12}, prefill: {min: 6, max: 6}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}";
    let full = json!({"domains": {"rack": {"r": {"decode": 0, "prefill": 0}}}});
    let up = [("decode", 12, "ready"), ("prefill", 6, "ready")];
    for first in [&[8][..], &[4, 8], &[1]] {
        let mut group = Group::new(spec);
        group.history.rollout.resume_admitted(vec![12, 6]);
        for at in [0, 15] {
            group.tick(at, [12, 6], &up, &full);
        }
        for (tick, lost) in (2..).zip(first) {
            let pods = [("decode", 12 - lost, "ready"), ("decode", *lost, "gated"), ("prefill", 6, "ready")];
            let plan = group.tick(tick * 15, [12, 6], &pods, &full);
            assert_eq!(admitted(&plan), [12, 6], "{first:?}: {plan:?}");
        }
    }
}

/// Four pods of a rack are lost, or wait there, and it has no node any more.
#[test]
fn pods_of_a_closed_domain_move_to_one_with_room() {
    let spec = "{roles: {decode: {min: 8, max: 12}, prefill: {min: 4, max: 4}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}";
    let room = |pods: u32| json!({"domains": {"rack": {"r": {"decode": pods, "prefill": pods}}}});
    for missing in ["gated", "unschedulable"] {
        let pods = [("decode", 4, missing), ("decode", 4, "ready"), ("prefill", 4, "ready")];
        let displaced = |line: &mut Inputs| line.displaced = vec![4];
        let mut group = Group::new(spec);
        group.history.rollout.resume_admitted(vec![8, 4]);
        for at in [0, 15, 30] {
            // Its nodes may come back.
            let plan = group.tick_with(at, [8, 4], &pods, &room(3), displaced);
            assert_eq!((admitted(&plan), plan.moves), (vec![8, 4], false), "{plan:?}");
            assert!(plan.conditions.contains(&Condition::TopologyUnsatisfied), "{plan:?}");
            assert_eq!(plan.shortfalls.unwrap().need, [4, 0]);
        }
        let plan = group.tick_with(45, [8, 4], &pods, &room(4), displaced);
        assert_eq!((admitted(&plan), plan.moves), (vec![8, 4], true));
        assert_eq!(plan.placement.map(|at| at.domain), Some("r".to_owned()));
        assert!(!plan.conditions.contains(&Condition::TopologyUnsatisfied), "{:?}", plan.conditions);
        // One that is lost later comes back whatever room there is.
        let up = [("decode", 8, "ready"), ("prefill", 4, "ready")];
        group.tick(60, [8, 4], &up, &room(0));
        let lost = [("decode", 7, "ready"), ("decode", 1, "gated"), ("prefill", 4, "ready")];
        let plan = group.tick(75, [8, 4], &lost, &room(0));
        assert_eq!((admitted(&plan), plan.moves), (vec![8, 4], false));
    }
}

/// Half of a step is up in one rack when a pod of another rack has to leave it.
#[test]
fn step_keeps_its_domain_while_other_pods_move() {
    let spec = "{roles: {decode: {min: 8, max: 8}, prefill: {min: 4, max: 4}}, deploy: {steps: {decode: 4, prefill: 2}, topology: {layers: [rack], constraint: Required}}}";
    let mut group = Group::new(spec);
    let racks = |racks: &[(&str, u32)]| {
        let rooms =
            racks.iter().map(|(rack, pods)| ((*rack).to_owned(), json!({"decode": pods, "prefill": 4})));
        json!({"domains": {"rack": serde_json::Value::Object(rooms.collect())}})
    };
    let gated = [("decode", 8, "gated"), ("prefill", 4, "gated")];
    group.tick(0, [8, 4], &gated, &racks(&[("r2", 4)]));
    let first =
        [("decode", 4, "ready"), ("decode", 4, "gated"), ("prefill", 2, "ready"), ("prefill", 2, "gated")];
    let plan = group.tick(15, [8, 4], &first, &racks(&[("r7", 4), ("r8", 9)]));
    assert_eq!((admitted(&plan), plan.placement.map(|at| at.domain)), (vec![8, 4], Some("r7".to_owned())));
    // Two pods of the step have passed, r7 has room for the two others, and a pod of r2 is lost.
    let half = [("decode", 3, "ready"), ("decode", 2, ""), ("decode", 3, "gated"), ("prefill", 4, "ready")];
    let displaced = |line: &mut Inputs| line.displaced = vec![4];
    let rooms = racks(&[("r7", 2), ("r3", 4), ("r5", 5)]);
    let plan = group.tick_with(16, [8, 4], &half, &rooms, displaced);
    assert!(plan.moves);
    assert_eq!(plan.placement.map(|at| at.domain), Some("r3".to_owned()));
    let moved = [("decode", 4, "ready"), ("decode", 2, ""), ("decode", 2, "gated"), ("prefill", 4, "ready")];
    let plan = group.tick(17, [8, 4], &moved, &racks(&[("r7", 2), ("r3", 3), ("r5", 5)]));
    assert_eq!((plan.moves, plan.placement.map(|at| at.domain)), (false, Some("r7".to_owned())));
}

/// Four pods of a group that was given up, or of which a part was, are lost with their rack.
#[test]
fn pods_of_a_closed_domain_move_after_failed_and_trimmed_steps() {
    for on_timeout in ["Fail", "Trim"] {
        let spec = format!(
            "{{roles: {{decode: {{min: 8, max: 8}}, prefill: {{min: 4, max: 4}}}}, deploy: {{steps: {{decode: 4, prefill: 2}}, batchTimeout: 1m, onTimeout: {on_timeout}, topology: {{layers: [rack], constraint: Required}}}}}}"
        );
        let mut group = Group::new(&spec);
        let room = json!({"domains": {"rack": {"r": {"decode": 4, "prefill": 4}}}});
        let stuck = [
            ("decode", 4, "ready"),
            ("decode", 4, "unschedulable"),
            ("prefill", 2, "ready"),
            ("prefill", 2, "unschedulable"),
        ];
        group.tick(0, [8, 4], &[("decode", 8, "gated"), ("prefill", 4, "gated")], &room);
        let states = [15, 30, 60, 100, 101].map(|at| group.tick(at, [8, 4], &stuck, &room).state);
        let expected = if on_timeout == "Fail" { State::Failed } else { State::Blocked };
        assert_eq!(states.last(), Some(&expected), "{states:?}");
        let displaced = |line: &mut Inputs| line.displaced = vec![4];
        let plan = group.tick_with(102, [8, 4], &stuck, &room, displaced);
        assert!(plan.moves, "{on_timeout}: {plan:?}");
        assert_eq!(plan.placement.map(|at| at.domain), Some("r".to_owned()));
    }
}
