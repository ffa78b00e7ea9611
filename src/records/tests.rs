//! The ring and what it keeps, by drafts of real requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_core::endpoints::health::ResponseStatus;
use usher_core::endpoints::{Candidates, EndpointSpec, Store};
use usher_core::memory::{Budget, Kind, Reservation};
use usher_core::request::usage::Usage;
use usher_core::request::{Request, Served};
use usher_plugin::{Decision, DecisionContext, Run};

use super::*;

fn candidates(count: u8) -> Candidates {
    let store = Store::default();
    let spec = |number| EndpointSpec::new(format!("pod-{number}"), ([10, 0, 0, number], 8000));
    store.replace((1..=count).map(spec).collect());
    store.snapshot().all()
}

/// Times of a test are those after its start.
struct Ring {
    records: Arc<Records>,
    candidates: Candidates,
    start: Instant,
}

impl Ring {
    fn new(capacity: usize, endpoints: u8) -> Self {
        let records = Arc::new(Records::new("p", capacity, &Arc::default()));
        Self { records, candidates: candidates(endpoints), start: Instant::now() }
    }

    fn decide(&self, id: &str, after: Duration, refusal: Option<Refusal>) -> Option<Tracked> {
        let (request, trace) = (Request::default(), Trace::default());
        let subject = Subject::new(&request, &self.candidates, &trace, 5, self.start + after);
        Draft::new(Sinks { records: Some(&self.records), recorder: None }, &subject, None, refusal).keep(id)
    }

    fn end(&self, tracked: Tracked, after: Duration) {
        self.end_as(tracked, after, true, None);
    }

    fn end_as(&self, mut tracked: Tracked, after: Duration, is_stream: bool, grpc: Option<u32>) {
        let end = self.start + after;
        tracked.begins(ResponseStatus { http: Some(200), grpc, overloaded: false }, &Served::Unknown);
        tracked.first_token(end);
        let response =
            Response { usage: Usage::default(), generated: 0, is_stream, ending: Ending::Complete };
        tracked.ends(&response, end);
    }
}

fn ids(records: &Records) -> Vec<String> {
    records.read().0.iter().map(|record| record.request_id().to_string()).collect()
}

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn oldest_decisions_are_evicted_first() {
    let ring = Ring::new(640, 2);
    for number in 0..30 {
        ring.decide(&number.to_string(), AT_ONCE, None);
    }
    let kept = ids(&ring.records);
    assert_eq!((kept.len(), kept[0].as_str(), kept[19].as_str()), (20, "0", "19"), "ten per second, twice");
    let small = Ring::new(2, 1);
    for number in 0..5 {
        small.decide(&number.to_string(), Duration::from_secs(number), None);
    }
    assert_eq!(ids(&small.records), ["3", "4"]);
    let summary = small.records.read().1;
    assert_eq!((summary.kept, summary.decisions, summary.sequence, summary.sampled_out), (2, 5, 5, 0));
}

#[test]
fn failed_requests_stay_longer_than_others() {
    let ring = Ring::new(64, 1);
    let tracked = ring.decide("failed", AT_ONCE, None).unwrap();
    let response =
        Response { usage: Usage::default(), generated: 0, is_stream: false, ending: Ending::CutOff };
    tracked.ends(&response, ring.start);
    ring.decide("refused", AT_ONCE, Some(Refusal::new(429, Some("full"), "x\ny")));
    for second in 1..200 {
        ring.decide("usual", Duration::from_secs(second), None);
    }
    let (kept, summary) = ring.records.read();
    assert_eq!((kept.len(), summary.sequence), (64, 202), "a change per decision, and one for an end");
    assert_eq!(ids(&ring.records)[..3], ["failed", "refused", "usual"]);
    assert!(kept.iter().take(2).all(|record| record.is_failed()));
    assert_eq!(kept[1].refusal, Some(Refusal { status: 429, reason: Some("full"), message: "x y".into() }));
}

#[test]
fn slow_request_is_kept_despite_sampling() {
    let ring = Ring::new(64, 1);
    let usual: Vec<_> = (0..30).filter_map(|_| ring.decide("usual", AT_ONCE, None)).collect();
    assert_eq!((ids(&ring.records).len(), usual.len()), (2, 30), "one per second, twice");
    let slow = ring.decide("slow", AT_ONCE, None).unwrap();
    usual.into_iter().for_each(|tracked| ring.end(tracked, Duration::from_millis(100)));
    ring.end(slow, Duration::from_secs(9));
    let (kept, summary) = ring.records.read();
    assert_eq!(ids(&ring.records), ["usual", "usual", "slow"]);
    assert!(kept[2].is_slow() && !kept[0].is_slow());
    assert_eq!((kept[0].outcome().unwrap().status, summary.sampled_out), (Some(200), 28));
}

#[test]
fn hanging_request_is_kept_among_newer_ones() {
    let ring = Ring::new(64, 1);
    let hanging = ring.decide("hanging", AT_ONCE, None).unwrap();
    for second in 1..200 {
        let usual = ring.decide("usual", Duration::from_secs(second), None).unwrap();
        ring.end(usual, Duration::from_secs(second));
    }
    assert_eq!(ids(&ring.records)[0], "hanging");
    let response =
        Response { usage: Usage::default(), generated: 0, is_stream: true, ending: Ending::CutOff };
    hanging.ends(&response, ring.start + Duration::from_secs(200));
    for second in 200..400 {
        ring.decide("usual", Duration::from_secs(second), None);
    }
    let (kept, _) = ring.records.read();
    assert!(kept.len() == 64 && kept[0].request_id() == "hanging" && kept[0].is_failed());
    // Of many that hang an eighth of the ring.
    let many = Ring::new(64, 1);
    let hanging: Vec<_> = (0..200).filter_map(|at| many.decide("x", Duration::from_secs(at), None)).collect();
    assert_eq!((many.records.read().0.len(), hanging.len()), (64, 200));
}

#[test]
fn responses_without_streaming_are_slow_by_their_total_time() {
    let ring = Ring::new(640, 1);
    let (short, long) = (Duration::from_millis(100), Duration::from_secs(9));
    for _ in 0..40 {
        let (stream, whole) = (ring.decide("s", AT_ONCE, None), ring.decide("w", AT_ONCE, None));
        ring.end(stream.unwrap(), short);
        ring.end_as(whole.unwrap(), long, false, None);
    }
    let (kept, _) = ring.records.read();
    assert!(kept.iter().all(|record| !record.is_slow()));
    let whole = kept.iter().find(|record| record.request_id() == "w").unwrap();
    assert_eq!(whole.outcome().unwrap().first_token, None);
    ring.end_as(ring.decide("w", long, None).unwrap(), 3 * long, false, None);
    ring.end(ring.decide("s", long, None).unwrap(), 2 * long);
    let kept = ring.records.read().0;
    assert_eq!(kept.iter().filter(|record| record.is_slow()).count(), 2);
}

#[test]
fn failed_grpc_call_counts_as_failed_with_status_200() {
    let ring = Ring::new(64, 1);
    for (code, is_failed) in [(None, false), (Some(0), false), (Some(13), true)] {
        ring.end_as(ring.decide("g", Duration::from_secs(9), None).unwrap(), AT_ONCE, false, code);
        assert_eq!(ring.records.read().0.last().unwrap().is_failed(), is_failed, "{code:?}");
    }
}

#[test]
fn failed_requests_are_kept_despite_sampling() {
    let ring = Ring::new(64, 64);
    for second in 0..100 {
        let tracked: Vec<_> =
            (0..20).filter_map(|_| ring.decide("usual", Duration::from_secs(second), None)).collect();
        tracked.into_iter().for_each(|tracked| ring.end(tracked, Duration::from_secs(second)));
    }
    let (before, summary) = ring.records.read();
    assert!((20..=64).contains(&before.len()), "{} records", before.len());
    assert!(summary.sampled_out > 1000);
    let mut tracked: Vec<_> =
        (0..10).filter_map(|_| ring.decide("failed", Duration::from_secs(99), None)).collect();
    assert_eq!(tracked.len(), 10);
    let failed = tracked.pop().unwrap();
    let response =
        Response { usage: Usage::default(), generated: 0, is_stream: true, ending: Ending::CutOff };
    failed.ends(&response, ring.start + Duration::from_secs(100));
    let kept = ids(&ring.records);
    assert!(kept.contains(&"failed".to_owned()) && kept.len() >= before.len() - 2, "{kept:?}");
}

#[test]
fn overload_keeps_slow_requests_and_first_errors() {
    let ring = Ring::new(1 << 12, 1);
    let usual: Vec<_> = (0..30).filter_map(|_| ring.decide("usual", AT_ONCE, None)).collect();
    usual.into_iter().for_each(|tracked| ring.end(tracked, Duration::from_millis(100)));
    ring.end(ring.decide("slow", AT_ONCE, None).unwrap(), Duration::from_secs(9));
    let cut_off = Response { usage: Usage::default(), generated: 0, is_stream: true, ending: Ending::CutOff };
    for ms in 0..30_000 {
        let at = Duration::from_secs(10) + Duration::from_millis(ms);
        let tracked = ring.decide(&format!("failed {ms}"), at, None).unwrap();
        tracked.ends(&cut_off, ring.start + at);
        if ring.records.takes_refusal(ring.start + at) {
            ring.decide(&format!("refused {ms}"), at, Some(Refusal::new(429, None, "full")));
        }
    }
    let (kept, summary) = ring.records.read();
    let ids = ids(&ring.records);
    for id in ["slow", "failed 0", "refused 0"] {
        assert!(ids.iter().any(|kept| kept == id), "{id}");
    }
    assert_eq!(summary.decisions, 60_031);
    assert_eq!(summary.sampled_out + kept.len() as u64, summary.decisions, "none has left");
    let refused = kept.iter().filter(|record| record.refusal.is_some()).count();
    assert!((200..=342).contains(&refused), "{refused} refusals");
}

#[test]
fn records_do_not_grow_when_memory_is_tight() {
    let budget = Arc::new(Budget::of_process(64 << 20, None));
    let records = Arc::new(Records::new("p", 4096, &budget));
    let ring = Ring { records, ..Ring::new(1, 64) };
    for second in 0..50 {
        ring.decide("x", Duration::from_secs(second), None);
    }
    let mut bodies = Reservation::new(&budget, Kind::Bodies);
    bodies.set(budget.limit().unwrap());
    let (before, refused) = (budget.used(Kind::Records), budget.refused());
    for second in 50..500 {
        ring.decide("x", Duration::from_secs(second), None);
    }
    let (kept, _) = ring.records.read();
    assert!(before > 0 && kept.len() > 5, "{before} bytes, {} records", kept.len());
    assert_eq!((budget.used(Kind::Records), budget.refused()), (before, refused));
}

#[test]
fn bytes_are_bounded_and_count_against_the_budget() {
    let budget = Arc::new(Budget::of_process(64 << 20, None));
    let records = Arc::new(Records::new("p", 1 << 16, &budget));
    let ring = Ring { records, ..Ring::new(1, 64) };
    let tracked: Vec<_> = (0..5000).filter_map(|_| ring.decide("x", AT_ONCE, None)).collect();
    let share = budget.limit().unwrap() / 16;
    let used = budget.used(Kind::Records);
    assert!(used > share / 2 && used <= share, "{used} of {share}");
    let (kept, summary) = ring.records.read();
    let size: u64 = kept.iter().map(|record| record.size()).sum();
    assert!(size <= used && kept.len() < 5000 && summary.decisions == 5000, "{size} of {used}");
    drop(tracked);
}

#[test]
fn endpoint_names_count_in_the_bound() {
    for endpoints in [48, 200] {
        let budget = Arc::new(Budget::of_process(64 << 20, None));
        let records = Arc::new(Records::new("p", 1 << 16, &budget));
        let mut ring = Ring { records, ..Ring::new(1, 1) };
        for second in 0..300 {
            ring.candidates = candidates(endpoints);
            ring.decide("x", Duration::from_secs(second), None);
        }
        let kept = ring.records.read().0;
        let bytes = |record: &DecisionRecord| {
            size_of_val(record) + size_of_val(&*record.rows) + size_of_val(&*record.names)
        };
        let bytes: usize = kept.iter().map(|record| bytes(record)).sum();
        // A quarter is for requests that are under way.
        let most = budget.used(Kind::Records) / 4 * 3;
        assert!(kept.len() > 100 && bytes as u64 <= most, "{bytes} bytes in {most}");
    }
}

#[test]
fn a_record_has_the_numbers_of_its_endpoints() {
    let ring = Ring::new(64, 2);
    let load = ring.candidates.snapshot().endpoints()[1].load();
    load.waiting.set(3.0, 1);
    load.kv_usage.set(0.5, 4);
    let _booking = load.book();
    ring.decide("<b>\u{1b}", AT_ONCE, None);
    let (kept, _) = ring.records.read();
    let expected = Signals {
        waiting: Some(3.0),
        running: None,
        kv_usage: Some(0.5),
        age_ms: Some(4),
        in_flight: 1,
        cached_tokens: None,
    };
    assert_eq!((kept[0].rows[0].signals(), kept[0].rows[1].signals()), (Signals::default(), expected));
    assert_eq!(kept[0].request_id(), "<b> ");
    assert_eq!(&*kept[0].name(&kept[0].rows[1]).address, "10.0.0.2:8000");
}

#[test]
fn large_pool_record_keeps_picks_and_best_candidates() {
    let ring = Ring::new(64, 100);
    // A filter dropped the first ten.
    let survivors: Vec<u32> = (10..100).collect();
    let weights = [2.0, -0.3];
    let score = |scorer: u32, position: u32| (position * (37 + 16 * scorer) % 101) as f32 / 101.0;
    let total = |position: u32| {
        (0..).zip(weights).fold(0.0, |sum, (of, weight)| sum + weight * f64::from(score(of, position)))
    };
    let scorers = [("a".into(), weights[0]), ("b".into(), weights[1])];
    let shape = Arc::new(Shape { scorers: scorers.into(), ..Shape::default() });
    let mut trace = Trace::default();
    trace.set(true);
    let run = trace.run(0, &shape).unwrap();
    run.survive(&survivors);
    for scorer in 0..2 {
        run.scored(&mut survivors.iter().map(|position| score(scorer, *position)).collect());
    }
    run.totalled(&mut survivors.iter().map(|position| total(*position)).collect::<Vec<_>>());
    let mut best = survivors;
    best.sort_by(|one, other| total(*other).total_cmp(&total(*one)));
    // As a picker may that goes by chance.
    let picks = [best[80], best[0]];
    let context = DecisionContext::new(ring.candidates.clone(), ["p".into()].into(), None);
    let run = Run { profile: 0, picks: picks.into_iter().collect(), record: None };
    let decision = Decision::new(Arc::new(context), [run].into_iter().collect(), 0).unwrap();
    let request = Request::default();
    let subject = Subject::new(&request, &ring.candidates, &trace, 5, ring.start);
    let sinks = Sinks { records: Some(&ring.records), recorder: None };
    Draft::new(sinks, &subject, Some(&decision), None).keep("r");
    let kept = ring.records.read().0;
    let (record, profile) = (&kept[0], &kept[0].profiles[0]);
    let at = |row: u16| record.row(row).unwrap().position;
    for row in &record.rows {
        let endpoint = &ring.candidates.snapshot().endpoints()[row.position as usize];
        assert_eq!(*record.name(row), endpoint.names());
    }
    let shown: Vec<u32> = profile.scored.iter().map(|row| at(*row)).collect();
    assert_eq!(shown, [&picks[..1], &best[..8]].concat());
    assert_eq!((profile.runner_up.map(at), profile.survivors), (Some(best[0]), 90));
    for (place, position) in shown.into_iter().enumerate() {
        let scores: Vec<f32> = profile.scores(place).collect();
        assert_eq!(
            (profile.total(place), scores),
            (total(position), vec![score(0, position), score(1, position)])
        );
    }
}
