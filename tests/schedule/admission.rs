//! Requests of negative priority and a full pool, without flow control.

use usher::endpoints::SubsetHint;
use usher::request::Request;

use crate::pool::{Pool, asking, labelled};

/// The default detector, with numbers that stay fresh.
const BY_QUEUE: &str = "
plugins: [{name: sat, type: utilization-detector, parameters: {metricsStalenessThreshold: 1h}}, {type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
flowControl: {saturationDetector: {pluginRef: sat}}
";

fn of_priority(priority: i32) -> Request {
    let mut request = asking(&[]);
    request.priority = priority;
    request
}

/// Endpoints with these waiting queues.
fn pool(config: &str, queues: &[f64]) -> Pool {
    let pool = Pool::new(config, labelled(&vec![&[][..]; queues.len()]));
    for (position, queue) in queues.iter().enumerate() {
        let (load, now) = pool.load(position);
        load.waiting.set(*queue, now);
    }
    pool
}

#[test]
fn negative_priorities_are_refused_when_the_pool_is_full() {
    // Queues with a threshold of 5, and which of these priorities are let in.
    let priorities = [-7, -1, 0, 3];
    let table: [(&[f64], [bool; 4]); 5] = [
        (&[0.0], [true; 4]),
        (&[4.0, 5.0], [true; 4]),
        (&[5.0, 5.0], [false, false, true, true]),
        (&[10.0, 0.0], [false, false, true, true]),
        (&[40.0], [false, false, true, true]),
    ];
    for (queues, expected) in table {
        let pool = pool(BY_QUEUE, queues);
        let let_in = priorities.map(|priority| pool.route(&of_priority(priority)).is_ok());
        assert_eq!(let_in, expected, "{queues:?}");
    }
}

#[test]
fn refusal_has_a_reason_and_retry_after() {
    let rejection = pool(BY_QUEUE, &[9.0]).route(&of_priority(-1)).unwrap_err();
    assert_eq!(rejection.code.status(), 429);
    assert_eq!((rejection.reason, rejection.retry_after), (Some("rejected-saturated"), Some(1)));
    let body = "inference error: ResourceExhausted - system saturated, sheddable request dropped";
    assert_eq!(rejection.body(), body);
}

#[test]
fn only_the_candidates_of_the_request_count() {
    let pool = pool(BY_QUEUE, &[8.0, 0.0]);
    let within = |entries: &[&str]| SubsetHint::from_entries(entries.iter().copied());
    let table = [
        (SubsetHint::Missing, true),
        (within(&["10.0.0.1:8000"]), false),
        (within(&["10.0.0.2:8000"]), true),
        (within(&["10.0.0.1:8000", "10.0.0.2:8000"]), true),
    ];
    for (subset, let_in) in table {
        assert_eq!(pool.route_within(&of_priority(-1), &subset).is_ok(), let_in, "{subset:?}");
    }
}

#[test]
fn empty_pool_counts_as_saturated() {
    let pool = pool(BY_QUEUE, &[]);
    assert_eq!(pool.route(&of_priority(-1)).unwrap_err().code.status(), 429);
    let rejection = pool.route(&of_priority(0)).unwrap_err();
    assert_eq!((rejection.code.status(), rejection.reason), (503, Some("rejected-no-endpoints")));
}

#[test]
fn the_default_detector_counts_silent_endpoints_as_full() {
    let pool = Pool::new("plugins: [{type: random-picker}]\n", labelled(&[&[]]));
    assert_eq!(pool.route(&of_priority(-1)).unwrap_err().code.status(), 429);
    assert!(pool.route(&of_priority(0)).is_ok());
}

#[test]
fn the_configured_detector_decides() {
    let config = "
plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 2}}, {type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
saturationDetector: {pluginRef: concurrency-detector}
";
    let pool = Pool::new(config, labelled(&[&[]]));
    let first = pool.route(&of_priority(-1)).unwrap();
    let second = pool.route(&of_priority(-1)).unwrap();
    assert_eq!(pool.route(&of_priority(-1)).unwrap_err().reason, Some("rejected-saturated"));
    drop((first, second));
    assert!(pool.route(&of_priority(-1)).is_ok());
}

#[test]
fn flow_control_disables_admission_refusals() {
    let pool = pool(&format!("featureGates: [flowControl]\n{BY_QUEUE}"), &[40.0]);
    assert!(pool.route(&of_priority(-1)).is_ok());
}
