//! The ring and what it keeps, by drafts of real requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_core::endpoints::{Candidates, EndpointSpec, Store};
use usher_core::memory::{Budget, Kind};
use usher_core::request::usage::Usage;
use usher_core::request::{Request, Served};

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
        let subject = Subject {
            request: &request,
            candidates: &self.candidates,
            prefix: None,
            input_tokens: None,
            trace: &trace,
            now_ms: 5,
            at: self.start + after,
        };
        Draft::new(&self.records, &subject, None, refusal).keep(id)
    }

    fn end(&self, mut tracked: Tracked, after: Duration) {
        let end = self.start + after;
        tracked.begins(Some(200), &Served::Unknown);
        tracked.first_token(end);
        let response = Response { usage: Usage::default(), is_stream: true, ending: Ending::Complete };
        tracked.ends(&response, end);
    }
}

fn ids(records: &Records) -> Vec<String> {
    records.read().0.iter().map(|record| record.request_id.to_string()).collect()
}

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn the_oldest_decisions_leave_first() {
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
    let response = Response { usage: Usage::default(), is_stream: false, ending: Ending::CutOff };
    tracked.ends(&response, ring.start);
    ring.decide("refused", AT_ONCE, Some(Refusal::new(429, Some("full"), "x\ny")));
    for second in 1..200 {
        ring.decide("usual", Duration::from_secs(second), None);
    }
    let (kept, summary) = ring.records.read();
    assert_eq!((kept.len(), summary.sequence), (64, 202), "a change per decision, and one for an end");
    assert_eq!(ids(&ring.records)[..3], ["failed", "refused", "usual"]);
    assert!(kept.iter().take(2).all(|record| record.is_failed() && record.is_notable()));
    assert_eq!(kept[1].refusal, Some(Refusal { status: 429, reason: Some("full"), message: "x y".into() }));
}

#[test]
fn a_slow_request_is_kept_although_it_was_sampled_out() {
    let ring = Ring::new(64, 1);
    let usual: Vec<_> = (0..40).filter_map(|_| ring.decide("usual", AT_ONCE, None)).collect();
    assert_eq!((ids(&ring.records).len(), usual.len()), (2, 40), "one per second, twice");
    let slow = ring.decide("slow", AT_ONCE, None).unwrap();
    usual.into_iter().for_each(|tracked| ring.end(tracked, Duration::from_millis(100)));
    ring.end(slow, Duration::from_secs(9));
    let (kept, summary) = ring.records.read();
    assert_eq!(ids(&ring.records), ["usual", "usual", "slow"]);
    assert!(kept[2].is_slow() && !kept[0].is_slow());
    assert_eq!((kept[0].outcome().unwrap().status, summary.sampled_out), (Some(200), 38));
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
    assert_eq!((kept[0].rows[0].signals, kept[0].rows[1].signals), (Signals::default(), expected));
    assert_eq!(&*kept[0].request_id, "<b> ");
    assert_eq!(&*kept[0].rows[1].address, "10.0.0.2:8000");
}
