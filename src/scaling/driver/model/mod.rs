//! Property tests of driver and actuator with a model of a cluster under random events: outages, restarts,
//! updates, other writers and policies, full racks, pods that never start, and a failing API server.
//! Afterwards the group reaches its goals.
//!
//! `PROPTEST_CASES=5000 cargo test --lib scaling::driver::model` runs more cases than usual.

mod cluster;
mod event;
mod picker;
mod requests;
mod rival;
mod server;
mod trial;
mod update;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use event::Event;
use picker::{OnTimeout, Shape};
use server::Fault;
use trial::run;

fn shape() -> impl Strategy<Value = Shape> {
    let on_timeout = prop_oneof![Just(OnTimeout::Hold), Just(OnTimeout::Trim), Just(OnTimeout::Fail)];
    let steps = prop_oneof![2 => (1u32..4, 1u32..3).prop_map(Some), 1 => Just(None)];
    (steps, on_timeout, any::<[bool; 6]>()).prop_map(
        |(steps, on_timeout, [has_gates, has_ratio, has_rules, drains, has_updates, has_racks])| Shape {
            steps,
            on_timeout,
            has_gates: has_gates && steps.is_some(),
            // One that steps don't keep is refused.
            has_ratio: has_ratio
                && steps.is_none_or(|(decode, prefill)| prefill <= decode && decode <= 3 * prefill),
            has_rules,
            drains,
            has_updates,
            has_racks: has_racks && has_gates && steps.is_some(),
        },
    )
}

fn fault() -> impl Strategy<Value = Fault> {
    let codes = prop_oneof![Just(409), Just(429), Just(500), Just(403)];
    prop_oneof![4 => codes.prop_map(Fault::Refused), 1 => Just(Fault::Ignored), 1 => Just(Fault::Unanswered)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1u8..20).prop_map(Event::Pass),
        5 => (1u32..16).prop_map(Event::Load),
        2 => any::<bool>().prop_map(Event::Metrics),
        1 => Just(Event::Restart),
        2 => (0usize..2, 0u32..9).prop_map(|(role, replicas)| Event::Foreign(role, replicas)),
        2 => (1u32..6).prop_map(Event::Duds),
        2 => (2usize..20).prop_map(Event::Room),
        1 => Just(Event::Heal),
        4 => (0u8..12, fault()).prop_map(|(after, fault)| Event::Fail(after, fault)),
        2 => (0usize..2, 0usize..9).prop_map(|(role, place)| Event::Lose(role, place)),
        1 => any::<bool>().prop_map(Event::Waiting),
        1 => any::<bool>().prop_map(Event::Paused),
        1 => any::<bool>().prop_map(Event::Applied),
        1 => any::<bool>().prop_map(Event::Present),
        1 => any::<bool>().prop_map(Event::Scaler),
        1 => any::<bool>().prop_map(Event::Silent),
        1 => any::<bool>().prop_map(Event::Leads),
        1 => any::<bool>().prop_map(Event::Acts),
        2 => Just(Event::Revise),
        1 => prop::option::of((0usize..2, 0u32..9)).prop_map(Event::Rival),
        1 => any::<bool>().prop_map(Event::Beside),
        2 => (0usize..2, 0usize..9, 1u64..90)
            .prop_map(|(role, place, seconds)| Event::Unready(role, place, seconds)),
        1 => any::<bool>().prop_map(Event::Refused),
    ]
}

/// The same cases each time, unless more are asked for.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let rng_seed = if asked.is_none() { RngSeed::Fixed(3) } else { RngSeed::Random };
    ProptestConfig { failure_persistence: None, rng_seed, ..ProptestConfig::with_cases(asked.unwrap_or(8)) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_events_never_violate_capacity_invariants(
        shape in shape(),
        replicas in (1u32..7, 1u32..5),
        events in prop::collection::vec(event(), 1..40),
    ) {
        run(shape, [replicas.0, replicas.1], &events)?;
    }
}

const SHAPE: Shape = Shape {
    steps: None,
    on_timeout: OnTimeout::Hold,
    has_gates: false,
    has_ratio: false,
    has_rules: false,
    drains: false,
    has_updates: false,
    has_racks: false,
};

#[test]
fn role_does_not_shrink_below_its_ratio_to_a_foreign_role() {
    let shape = Shape { has_ratio: true, ..SHAPE };
    let events = [
        Event::Pass(6),
        Event::Foreign(1, 0),
        Event::Load(5),
        Event::Pass(17),
        Event::Foreign(0, 3),
        Event::Foreign(1, 3),
        Event::Load(1),
        Event::Pass(9),
    ];
    run(shape, [1, 2], &events).unwrap();
}

#[test]
fn waiting_requests_do_not_count_as_pod_metrics() {
    let shape = Shape { steps: Some((1, 1)), ..SHAPE };
    let events = [Event::Metrics(false), Event::Foreign(1, 2), Event::Waiting(true), Event::Pass(6)];
    run(shape, [1, 1], &events).unwrap();
}

#[test]
fn waiting_role_shrinks_within_its_ratio() {
    let shape = Shape { steps: Some((1, 1)), has_ratio: true, ..SHAPE };
    run(shape, [3, 4], &[Event::Duds(1)]).unwrap();
    // Also where the ratio doesn't hold.
    run(shape, [1, 1], &[Event::Pass(1), Event::Foreign(1, 5), Event::Load(4)]).unwrap();
}

#[test]
fn gated_pods_within_the_goal_are_not_removed() {
    let shape = Shape {
        steps: Some((1, 1)),
        on_timeout: OnTimeout::Fail,
        has_gates: true,
        has_ratio: true,
        drains: true,
        ..SHAPE
    };
    let events = [
        Event::Foreign(0, 0),
        Event::Fail(5, Fault::Refused(403)),
        Event::Room(6),
        Event::Restart,
        Event::Room(17),
        Event::Pass(2),
        Event::Heal,
        Event::Load(5),
    ];
    run(shape, [5, 4], &events).unwrap();
}

#[test]
fn role_shrinks_only_after_its_ratio_partner_drained() {
    let shape = Shape { on_timeout: OnTimeout::Fail, has_ratio: true, drains: true, ..SHAPE };
    let events = [
        Event::Duds(4),
        Event::Duds(3),
        Event::Lose(1, 0),
        Event::Lose(0, 5),
        Event::Foreign(1, 7),
        Event::Pass(11),
        Event::Lose(0, 6),
        Event::Leads(false),
    ];
    run(shape, [6, 1], &events).unwrap();
}

#[test]
fn stateful_set_keeps_ready_pods_above_unready_ones() {
    let shape = Shape { has_ratio: true, ..SHAPE };
    run(shape, [1, 2], &[Event::Lose(1, 5), Event::Lose(0, 0), Event::Pass(1)]).unwrap();
}

#[test]
fn refused_version_can_still_pause_the_policy() {
    let shape = Shape { steps: Some((1, 1)), ..SHAPE };
    let events =
        [Event::Pass(6), Event::Refused(true), Event::Paused(true), Event::Load(15), Event::Pass(19)];
    run(shape, [6, 3], &events).unwrap();
}

#[test]
fn missing_numbers_keep_gated_pods_of_a_stuck_update() {
    let shape = Shape {
        steps: Some((1, 2)),
        on_timeout: OnTimeout::Trim,
        has_gates: true,
        has_updates: true,
        ..SHAPE
    };
    let events = [
        Event::Pass(16),
        Event::Rival(Some((0, 8))),
        Event::Pass(10),
        Event::Revise,
        Event::Metrics(false),
        Event::Pass(21),
        Event::Duds(2),
        Event::Pass(31),
    ];
    run(shape, [1, 1], &events).unwrap();
}

/// The update of a deleted policy resumes.
#[test]
fn update_resumes_when_its_policy_is_deleted() {
    let shape = Shape {
        steps: Some((1, 1)),
        on_timeout: OnTimeout::Hold,
        has_gates: false,
        has_ratio: false,
        has_rules: false,
        drains: false,
        has_updates: true,
        has_racks: false,
    };
    let events = [Event::Acts(true), Event::Revise, Event::Pass(2), Event::Present(false), Event::Pass(5)];
    run(shape, [1, 3], &events).unwrap();
}
