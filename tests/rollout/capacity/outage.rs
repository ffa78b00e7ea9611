//! Windows while nothing is known.

use std::time::Duration;

use usher::capacity::policy::file;
use usher::capacity::{History, Inputs, Pod, PodState, Reason, tick};

const S: fn(u64) -> Duration = Duration::from_secs;

#[test]
fn outage_does_not_count_in_the_scale_down_window() {
    let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  roles: {a: {min: 1, max: 9}}\n  total: {metrics: [{name: queue_depth, target: 4}]}\n  behavior: {scaleDown: {stabilization: 300s}}\n";
    let policy = file::parse(text).unwrap().remove(0).policy;
    let mut history = History::resumed(6, S(0));
    let mut desired = |at: u64, queue: f64| {
        let pod = Pod { role: 0, is_ready: true, state: PodState::default(), values: [queue].into() };
        let inputs = Inputs { replicas: vec![6], pods: vec![pod; 6], ..Inputs::default() };
        let role = tick(&inputs, &policy, &mut history, S(at)).roles.remove(0);
        (role.desired, role.reasons.contains(&Reason::DownWindow))
    };
    // Busy until 60 s, unknown until 3600 s, and idle from then on.
    for at in (0..=60).step_by(15) {
        assert_eq!(desired(at, 4.0).0, 6);
    }
    for at in (75..3600).step_by(15) {
        assert_eq!(desired(at, f64::NAN).0, 6);
    }
    for at in (3600..3885).step_by(15) {
        assert_eq!(desired(at, 0.0), (6, true), "{at}");
    }
    assert_eq!(desired(3900, 0.0), (1, false));
}
