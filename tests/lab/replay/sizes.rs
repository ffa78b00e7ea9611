//! Ways to size a pool, compared in virtual time.

use std::time::Duration;

use usher::capacity::Policy;
use usher::capacity::policy::file;
use usher::replay::{Arrival, Piece, ScaleComparison, ScaleSettings, compare_sizes};
use usher::sim::EngineConfig;

const S: fn(u64) -> Duration = Duration::from_secs;

fn policy(spec: &str) -> Policy {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p}}\nspec: {{{spec}}}\n"
    );
    file::parse(&text).unwrap().remove(0).policy
}

fn by_requests() -> Policy {
    policy(
        "interval: 5s, roles: {d: {min: 1, max: 9}}, total: {metrics: [{name: in_flight, target: 4}]}, \
         behavior: {scaleDown: {instances: 1, percent: 50, period: 15s, stabilization: 60s}}",
    )
}

/// Prompts of 200 tokens, one at a time: so many per second, for so many seconds.
fn arrivals(phases: &[(u64, u64)]) -> Vec<Arrival> {
    let (mut begin, mut arrivals) = (0, Vec::new());
    for (per_second, seconds) in phases {
        for number in 0..per_second * seconds {
            arrivals.push(Arrival {
                at: S(begin) + S(1) * u32::try_from(number).unwrap() / u32::try_from(*per_second).unwrap(),
                prompt: [Piece { seed: arrivals.len() as u64, tokens: 200 }].into(),
                output_tokens: 20,
                ..Arrival::default()
            });
        }
        begin += seconds;
    }
    arrivals
}

/// A burst of four times what a pod can do, between calm times.
fn burst() -> ScaleSettings {
    ScaleSettings {
        policy: by_requests(),
        arrivals: arrivals(&[(1, 100), (16, 150), (1, 350)]),
        config: ("built-in".to_owned(), None),
        engine: EngineConfig {
            prefill_tokens_per_second: 1000.0,
            decode_step: Duration::from_millis(10),
            batch_factor: 0.0,
            ..EngineConfig::default()
        },
        start: S(30),
        initial: 1,
        ttft_limit: S(2),
        scrape_interval: Duration::from_millis(50),
        metrics_staleness: S(2),
        seed: 7,
    }
}

fn compare(settings: &ScaleSettings) -> ScaleComparison {
    compare_sizes(settings, |_| ()).unwrap()
}

#[test]
fn burst_scales_policy_and_hpa_but_not_fixed_sizes() {
    let settings = burst();
    let result = compare(&settings);
    let [own, hpa, mean, most] = &result.ways[..] else { panic!("{result:#?}") };
    assert_eq!(own.name, "policy p");
    for way in [own, hpa] {
        // Up, and down again when it is over.
        assert!(way.largest >= 4 && way.changes >= 2 && way.reversals >= 1, "{way:#?}");
        assert!(way.reversals < way.changes);
        let most = f64::from(way.largest) * result.seconds;
        assert!(way.pod_seconds > result.seconds && way.pod_seconds < most, "{way:#?}");
    }
    for way in [mean, most] {
        assert_eq!((way.changes, way.reversals), (0, 0));
        assert_eq!(way.pod_seconds, f64::from(way.largest) * result.seconds, "{way:#?}");
    }
    assert_eq!(mean.largest, (own.pod_seconds / result.seconds).ceil() as u32);
    assert_eq!(
        (most.largest, most.in_time.share),
        (own.largest, 1.0),
        "as many as it ever asked for are enough"
    );
    assert!(own.in_time.share < 1.0, "pods take time to start: {own:#?}");
    for way in &result.ways {
        assert_eq!((way.refused, way.ttft.is_some()), (0, true), "{way:#?}");
    }
    assert_eq!(compare(&settings), result, "everything follows from the seed");
}

#[test]
fn slower_pod_start_lowers_goodput() {
    let with_start = |start| compare(&ScaleSettings { start, ..burst() }).ways.remove(0);
    let (soon, late) = (with_start(S(1)), with_start(S(90)));
    assert!(soon.in_time.requests > late.in_time.requests, "{soon:#?} {late:#?}");
    assert!(soon.ttft.unwrap().p99_s < late.ttft.unwrap().p99_s);
}

#[test]
fn constant_load_needs_no_scaling() {
    let settings = ScaleSettings { arrivals: arrivals(&[(2, 300)]), ..burst() };
    let result = compare(&settings);
    let own = &result.ways[0];
    assert_eq!((own.changes, own.reversals, own.largest), (0, 0, 1), "{own:#?}");
    assert_eq!(own.pod_seconds, result.seconds);
    assert_eq!(result.ways.len(), 3, "the mean is the most");
}

#[test]
fn incomparable_policies_are_named_in_the_error() {
    let total = "total: {metrics: [{name: queue_depth, target: 4}]}";
    for (spec, part) in [
        ("roles: {d: {max: 9}}, rules: [{name: r, role: d, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 1}]".to_owned(), "`total`"),
        (format!("roles: {{a: {{max: 9}}, b: {{max: 9}}}}, {total}"), "one role"),
        ("roles: {d: {max: 9}}, total: {metrics: [{name: ttft, target: 4}]}".to_owned(), "no 'ttft'; known are queue_depth"),
    ] {
        let error = compare_sizes(&ScaleSettings { policy: policy(&spec), ..burst() }, |_| ()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = compare_sizes(&ScaleSettings { arrivals: Vec::new(), ..burst() }, |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "a replay needs at least one request");
}
