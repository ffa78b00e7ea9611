//! Tests of the report on replicas.

use usher_core::request::usage::Usage;
use usher_terminal::misfits;

use super::*;
use crate::cli::demo::client::Response;
use crate::cli::demo::replay::Outcome;

const PACE: Pace = Pace { servers: 2, speed: 2.0 };

const TABLE: &str = "\
8 requests through Envoy, which spreads them over replicas of Usher, to 2
simulated servers: conversations whose prompts begin alike, and bursts. Three
replicas know only their own requests, or share load and prefixes through a
store.

                           1 replica     3 alone   3 sharing
prompt tokens in caches       90.0 %      45.0 %      89.0 %
TTFT p50                       40 ms       40 ms       40 ms
TTFT p90                       40 ms       40 ms       40 ms
server load, max/mean           1.42        1.42        1.42
failed requests                    0           0           0

others count a request of one after, p99               24 ms
they know its prompt after, p99                       181 ms

one that shares is killed; requests it held                2
failed requests                                            2
the others counted its requests for                   2.02 s
started again, it got requests after                  1.25 s
98 % of the others' hits after                        0.75 s
its prompt tokens in caches                           88.0 %
the others'                                           89.5 %

=> Three replicas that share found as much of the prompts in
   caches as one, 89.0 and 90.0 %; three alone 45.0 %. One
   that was killed counted for 2.0 s more, and, back, had
   its share of hits 0.8 s after its first requests.
";

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A request from one time to another, in milliseconds, that a server had with so many of 100 tokens in its cache.
fn exchange(kind: Kind, (from, to): (u64, u64), pod: &str, cached: u64, status: u16) -> Exchange {
    let usage = Usage { prompt_tokens: Some(100), completion_tokens: Some(8), cached_tokens: Some(cached) };
    let response = Response { status, pod: Some(pod.to_owned()), first: None, usage, reason: String::new() };
    let outcome =
        Outcome { due: ms(from), first: Some(ms(20)), total: ms(to - from), response: Ok(response) };
    Exchange { kind, outcome }
}

/// Four requests of conversations, and a burst of four, during whose second half one server has 2 of 3 requests, and
/// then 3 of 4.
fn exchanges(cached: u64) -> Vec<Exchange> {
    let mut all: Vec<Exchange> =
        (0..4).map(|turn| exchange(Kind::Turn, (turn, turn + 5), "sim-0", cached, 200)).collect();
    let burst = [("sim-0", 95), ("sim-0", 97), ("sim-1", 150), ("sim-0", 150)];
    let kind = Kind::Burst(0);
    all.extend((90..).zip(burst).map(|(at, (pod, end))| exchange(kind, (at, end), pod, 0, 200)));
    all
}

fn report() -> ReplicasReport {
    let mut report = ReplicasReport::new(2.0, Ports::from_first(8081, 2).unwrap());
    for (name, replicas, cached) in [("1 replica", 1, 90), ("3 alone", 3, 45), ("3 sharing", 3, 89)] {
        report.runs.push(Run::new(name, replicas, &exchanges(cached), PACE));
    }
    let times = |ms| Times::of(&[ms - 1.0, ms]);
    report.staleness = Some(Staleness { requests: 1, load_ms: times(24.0), prefixes_ms: times(181.0) });
    // Ended before, under way, sent to a replica that is gone, and one that no kill explains.
    let times = [(0, 900), (900, 1000), (1500, 1501)];
    let exchanges =
        times.map(|times| exchange(Kind::Turn, times, "sim-0", 0, if times.0 > 0 { 500 } else { 200 }));
    let mut kill = Kill::new(2, ms(1000), &exchanges);
    kill.counted_seconds = 2.02;
    kill.back_seconds = 1.25;
    kill.caught_up_seconds = Some(0.75);
    kill.hit_percent = 88.0;
    kill.hit_percent_of_others = 89.5;
    report.kill = Some(kill);
    report
}

#[test]
fn table_matches_the_expected_text() {
    assert_eq!(report().to_string(), TABLE);
    assert_eq!(misfits(&report()), Vec::<String>::new());
}

#[test]
fn load_is_compared_in_the_second_half_of_a_burst() {
    // 1.33 and 1.5 times the mean of two servers.
    let mut all = exchanges(0);
    let ratio = |all: &[Exchange]| Run::new("", 1, all, PACE).max_over_mean.unwrap();
    assert!((ratio(&all) - (4.0 / 3.0 + 1.5) / 2.0).abs() < 1e-9);
    all.retain(|exchange| exchange.kind == Kind::Turn);
    assert_eq!(Run::new("", 1, &all, PACE).max_over_mean, None);
}

#[test]
fn only_requests_at_the_time_of_the_kill_are_lost_to_it() {
    let failed = |times| exchange(Kind::Turn, times, "sim-0", 0, 500);
    let kill = |times| {
        let kill = Kill::new(1, ms(1000), &[failed(times)]);
        (kill.lost, kill.failed)
    };
    assert_eq!(kill((100, 999)), (0, 1), "it had failed before");
    assert_eq!(kill((100, 1000)), (1, 0));
    assert_eq!(kill((2000, 2001)), (1, 0));
    assert_eq!(kill((2001, 2002)), (0, 1));

    let mut report = report();
    assert_eq!((report.requests(), report.failed()), (27, 0));
    report.kill = Some(Kill::new(1, ms(1000), &[failed((2001, 2002))]));
    assert_eq!(report.failed(), 1);
    assert!(report.verdict().starts_with("1 of 25 requests failed"), "{}", report.verdict());
    assert!(report.to_string().contains("\n1 × status 500\n"));
    assert_eq!(misfits(&report), Vec::<String>::new());
}

#[test]
fn verdict_matches_the_numbers() {
    let verdict = |sharing, caught_up| {
        let mut report = report();
        report.runs[2].hit_percent = sharing;
        report.kill.as_mut().unwrap().caught_up_seconds = caught_up;
        assert_eq!(misfits(&report), Vec::<String>::new());
        report.verdict()
    };
    assert!(verdict(45.0, Some(0.1)).starts_with("Sharing did not help here: three that share found 45.0 %"));
    assert!(verdict(70.0, Some(0.1)).starts_with("Three replicas that share found 70.0 % of the prompts"));
    assert!(verdict(88.5, None).ends_with("and, back, did not reach the others' hits."));
    let mut short = report();
    short.kill = None;
    assert_eq!(short.verdict(), "Not all was shown, so there is nothing to compare.");
}

#[test]
fn json_has_the_runs_and_the_kill() {
    let json = serde_json::to_value(report()).unwrap();
    assert_eq!(json["runs"][0]["statuses"], serde_json::json!({"200": 8}));
    assert_eq!((&json["runs"][2]["replicas"], &json["runs"][2]["bursts"]), (&3.into(), &1.into()));
    assert_eq!(json["staleness"]["load_ms"]["p99"], 24.0);
    assert_eq!((&json["kill"]["held"], &json["kill"]["lost"]), (&2.into(), &2.into()));
}
