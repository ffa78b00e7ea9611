use proptest::prelude::*;

use super::*;

const PARAMS: HealthParams = HealthParams {
    failures: 3,
    failed_scrapes: 3,
    first_byte: Duration::ZERO,
    first_pause: Duration::from_millis(1000),
    longest_pause: Duration::from_millis(2000),
    successes: 4,
};

const DOWN: Failure = Failure::Status(503);

/// One that is ejected at this time by requests that were sent before.
fn ejected(at_ms: u64) -> EjectionState {
    let mut state = EjectionState::default();
    for _ in 0..2 {
        assert_eq!(state.failed(&PARAMS, DOWN, at_ms, at_ms), Change::Nothing);
    }
    assert_eq!(state.failed(&PARAMS, DOWN, at_ms, at_ms), Change::Ejected(DOWN));
    state
}

/// Sends a probe as soon as one is due, whose response comes at once. Returns when that was.
fn probe(state: &mut EjectionState, good: bool) -> (u64, Change) {
    let due = state.due_ms().unwrap();
    assert_eq!(state.claim(due - 1), None, "too early");
    let number = state.claim(due).unwrap();
    assert_eq!(state.claim(due), None, "one at a time");
    let change =
        if good { state.succeeded(&PARAMS, due, due) } else { state.failed(&PARAMS, DOWN, due, due) };
    state.answered(number);
    (due, change)
}

#[test]
fn failures_in_a_row_eject_and_a_success_breaks_the_row() {
    let mut state = EjectionState::default();
    for _ in 0..10 {
        assert_eq!(state.failed(&PARAMS, DOWN, 1, 2), Change::Nothing);
        assert_eq!(state.failed(&PARAMS, Failure::Elsewhere, 1, 2), Change::Nothing);
        assert!(!state.is_quiet());
        assert_eq!(state.succeeded(&PARAMS, 1, 2), Change::Nothing);
        assert!(state.is_quiet() && state.due_ms().is_none());
    }
    let state = ejected(50);
    let condition = state.condition();
    assert_eq!(condition.failures, 0);
    let ejection = condition.ejection.unwrap();
    assert_eq!((ejection.cause, ejection.since_ms, ejection.next_probe_ms), (DOWN, 50, 1050));
}

#[test]
fn pauses_grow_while_probes_fail_and_shrink_while_they_succeed() {
    let mut state = ejected(1);
    let outcomes = [false, false, false, true, true, false, true, true, true, true];
    let times: Vec<_> = outcomes.map(|good| probe(&mut state, good)).to_vec();
    let at: Vec<_> = times.iter().map(|(at, _)| at - 1).collect();
    // 1 s; 2 s after each failure; half of that after a success, and again; a failure
    // doubles it, to the first pause at least.
    assert_eq!(at, [1000, 3000, 5000, 7000, 8000, 8500, 9500, 10_000, 10_250, 10_375]);
    let last = times.last().unwrap();
    assert_eq!(last.1, Change::Recovered(10_375));
    assert!(times.iter().rev().skip(1).all(|(_, change)| *change == Change::Nothing));
    assert!(state.is_quiet());
}

#[test]
fn working_endpoint_recovers_within_four_seconds() {
    // However long it failed, and whenever in the pause it works again.
    for failing in 0..5 {
        let mut state = ejected(1);
        let last = (0..failing).map(|_| probe(&mut state, false).0).last().unwrap_or(1);
        let mut now = last;
        while state.due_ms().is_some() {
            now = probe(&mut state, true).0;
        }
        assert!(now - last <= 4000, "{failing}: {}", now - last);
    }
}

#[test]
fn requests_sent_before_a_state_change_do_not_count() {
    let mut state = ejected(100);
    let due = state.due_ms();
    for sent in [50, 99, 100] {
        for _ in 0..9 {
            assert_eq!(state.succeeded(&PARAMS, sent, 120), Change::Nothing);
            assert_eq!(state.failed(&PARAMS, DOWN, sent, 120), Change::Nothing);
        }
    }
    assert_eq!((state.due_ms(), state.condition().ejection.unwrap().successes), (due, 0));
    let back = (0..4).map(|_| probe(&mut state, true)).last().unwrap();
    assert!(matches!(back.1, Change::Recovered(_)));
    for _ in 0..9 {
        assert_eq!(state.failed(&PARAMS, DOWN, back.0, back.0 + 1), Change::Nothing);
    }
    assert!(state.is_quiet());
}

#[test]
fn scrapes_eject_and_recover_endpoints() {
    let mut state = EjectionState::default();
    state.scrape_failed(&PARAMS, false, 5);
    state.scrape_failed(&PARAMS, false, 6);
    state.scrape_succeeded(&PARAMS, 7);
    state.scrape_failed(&PARAMS, false, 8);
    state.scrape_failed(&PARAMS, false, 9);
    // A request that succeeds begins the row anew.
    state.succeeded(&PARAMS, 9, 10);
    state.scrape_failed(&PARAMS, false, 11);
    state.scrape_failed(&PARAMS, false, 12);
    assert_eq!(state.scrape_failed(&PARAMS, false, 13), Change::Ejected(Failure::Scrape));
    for _ in 0..3 {
        assert_eq!(state.scrape_succeeded(&PARAMS, 20), Change::Nothing);
    }
    state.scrape_failed(&PARAMS, false, 21);
    for _ in 0..3 {
        assert_eq!(state.scrape_succeeded(&PARAMS, 22), Change::Nothing);
    }
    assert_eq!(state.scrape_succeeded(&PARAMS, 23), Change::Recovered(10));
}

#[test]
fn finished_response_resets_only_failed_scrapes() {
    let mut state = EjectionState::default();
    for _ in 0..5 {
        state.scrape_failed(&PARAMS, false, 5);
        state.scrape_failed(&PARAMS, false, 6);
        state.finished();
    }
    assert!(state.is_quiet() && state.is_quiet_for_scrapes());
    for _ in 0..2 {
        state.failed(&PARAMS, DOWN, 7, 7);
        state.finished();
    }
    assert_eq!(state.failed(&PARAMS, DOWN, 7, 7), Change::Ejected(DOWN));
    let before = state.condition();
    state.finished();
    assert_eq!(state.condition(), before, "what was sent before is no probe");
}

#[test]
fn scrapes_do_not_recover_an_endpoint_failing_requests() {
    let mut state = EjectionState::default();
    for _ in 0..3 {
        state.failed(&PARAMS, DOWN, 5, 5);
    }
    for _ in 0..3 {
        state.scrape_failed(&PARAMS, false, 5);
    }
    for _ in 0..10 {
        assert_eq!(state.scrape_succeeded(&PARAMS, 3000), Change::Nothing);
    }
    assert!(state.due_ms().is_some());
}

/// One that is ejected at 100 ms by failures of this kind.
fn ejected_for(cause: Failure) -> EjectionState {
    let mut state = EjectionState::default();
    let mut fail = || match cause {
        Failure::Scrape => state.scrape_failed(&PARAMS, false, 100),
        _ => state.failed(&PARAMS, cause, 100, 100),
    };
    assert_eq!([fail(), fail(), fail()], [Change::Nothing, Change::Nothing, Change::Ejected(cause)]);
    state
}

#[test]
fn a_failed_probe_keeps_the_reason_of_the_ejection() {
    const ALL: [Failure; 4] = [DOWN, Failure::Elsewhere, Failure::Scrape, Failure::Timeout];
    let (pages, late): (fn(&mut EjectionState) -> Change, fn(&mut EjectionState) -> Change) =
        (|state| state.scrape_succeeded(&PARAMS, 3000), |state| state.answered_late(&PARAMS, 3000));
    for cause in ALL {
        for failure in ALL.into_iter().filter(|failure| *failure != Failure::Scrape) {
            for (recovery, ends) in [(pages, Failure::Scrape), (late, Failure::Timeout)] {
                let mut state = ejected_for(cause);
                let number = state.claim(1100).unwrap();
                state.failed(&PARAMS, failure, 1100, 2900);
                state.answered(number);
                assert_eq!(state.condition().ejection.unwrap().cause, cause, "{failure}");
                let last = (0..PARAMS.successes).map(|_| recovery(&mut state)).last().unwrap();
                let expected = if cause == ends { Change::Recovered(2900) } else { Change::Nothing };
                assert_eq!(last, expected, "{cause}, then {failure}");
            }
        }
    }
}

#[test]
fn endpoint_refusing_connections_is_not_probed() {
    let mut state = EjectionState::default();
    for _ in 0..3 {
        state.failed(&PARAMS, DOWN, 5, 5);
    }
    state.scrape_failed(&PARAMS, true, 6);
    assert_eq!((state.due_ms(), state.claim(1 << 40)), (Some(u64::MAX), None));
    assert!(!state.is_quiet_for_scrapes());
    state.scrape_failed(&PARAMS, false, 7);
    assert_eq!(state.due_ms(), Some(1005), "a scrape that takes too long is no refusal");
    state.scrape_failed(&PARAMS, true, 8);
    state.scrape_succeeded(&PARAMS, 9);
    assert_eq!(state.due_ms(), Some(1005));
}

#[test]
fn late_first_byte_is_a_success() {
    let mut state = EjectionState::default();
    for _ in 0..3 {
        state.failed(&PARAMS, Failure::Timeout, 5, 2005);
    }
    let probe = state.claim(state.due_ms().unwrap()).unwrap();
    state.failed(&PARAMS, Failure::Timeout, 3005, 5005);
    assert_eq!(state.due_ms(), Some(7005), "a probe that takes too long is out no longer");
    state.unanswered(probe, 6000);
    assert_eq!(state.due_ms(), Some(7005));
    for _ in 0..3 {
        assert_eq!(state.answered_late(&PARAMS, 8000), Change::Nothing);
    }
    assert_eq!(state.answered_late(&PARAMS, 8000), Change::Recovered(5995));
}

#[test]
fn a_server_without_metrics_is_ejected_once_only() {
    let mut state = EjectionState::default();
    for _ in 0..3 {
        state.scrape_failed(&PARAMS, false, 5);
    }
    // Its scrapes go on failing.
    let mut last = 0;
    while state.due_ms().is_some() {
        state.scrape_failed(&PARAMS, false, last + 1);
        last = probe(&mut state, true).0;
    }
    for now in last..last + 100 {
        assert_eq!(state.scrape_failed(&PARAMS, false, now), Change::Nothing);
    }
    assert!(state.is_quiet() && !state.is_quiet_for_scrapes());
    // Until there was a page.
    state.scrape_succeeded(&PARAMS, last);
    let changes: Vec<_> = (0..3).map(|_| state.scrape_failed(&PARAMS, false, last + 200)).collect();
    assert_eq!(changes.last(), Some(&Change::Ejected(Failure::Scrape)));
}

#[test]
fn zero_threshold_ignores_failed_scrapes() {
    let params = HealthParams { failed_scrapes: 0, ..PARAMS };
    let mut state = EjectionState::default();
    for now in 1..1000 {
        assert_eq!(state.scrape_failed(&params, false, now), Change::Nothing);
    }
}

#[test]
fn unanswered_probe_expires_after_the_patience() {
    let mut state = ejected(1);
    let hangs = state.claim(1001).unwrap();
    assert_eq!(state.claim(1000 + PATIENCE_MS), None);
    let next = state.claim(1001 + PATIENCE_MS).unwrap();
    // The first one ends at last: that is no longer the one that is out.
    state.unanswered(hangs, 1002 + PATIENCE_MS);
    assert_eq!(state.claim(1500 + PATIENCE_MS), None);
    state.unused(next, 1500 + PATIENCE_MS);
    assert_eq!(state.due_ms(), Some(1510 + PATIENCE_MS), "nobody was asked");
    let next = state.claim(1510 + PATIENCE_MS).unwrap();
    state.unanswered(next, 2000 + PATIENCE_MS);
    assert_eq!(state.due_ms(), Some(3000 + PATIENCE_MS));
}

/// An event at an endpoint, some time after the one before.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request ends that was sent so many milliseconds before.
    Ends(bool, u64),
    Scrape(bool),
    /// A request asks whether it may be the probe.
    Claim,
    /// The probe ends: well, badly, without a word, or was not used.
    Probe(u8),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        4 => (any::<bool>(), 0..300u64).prop_map(|(good, before)| Event::Ends(good, before)),
        2 => prop::bool::weighted(0.4).prop_map(Event::Scrape),
        4 => Just(Event::Claim),
        4 => (0..4u8).prop_map(Event::Probe),
    ];
    let pause = prop_oneof![4 => 0..20u64, 2 => 100..1500u64, 1 => 5000..20_000u64];
    prop::collection::vec((pause, event), 1..200)
}

fn params() -> impl Strategy<Value = HealthParams> {
    (0..5u32, 0..5u32, 1..3000u64, 1..5000u64, 0..6u32).prop_map(
        |(failures, failed_scrapes, a, b, successes)| {
            let (first_pause, longest_pause) = (Duration::from_millis(a), Duration::from_millis(b));
            let first_byte = Duration::ZERO;
            HealthParams { failures, failed_scrapes, first_byte, first_pause, longest_pause, successes }
        },
    )
}

proptest! {
    /// Any events: endpoints are ejected and recover for a reason, with one probe at a time, no storm of
    /// probes, and always a way back.
    #[test]
    fn ejection_and_recovery_always_have_a_reason(params in params(), events in events()) {
        let mut state = EjectionState::default();
        let (mut now, mut changed) = (1u64, 0u64);
        // In a row: failures, successes, failed scrapes, scrapes.
        let (mut bad, mut good, mut bad_scrapes, mut good_scrapes) = (0u32, 0u32, 0u32, 0u32);
        let mut out: Option<(u32, u64)> = None;
        // Not before: after a failed probe, and after one that wasn't answered.
        let mut not_before = 0;
        for (pause, event) in events {
            now += pause;
            let was_ejected = state.due_ms().is_some();
            let mut ends = |state: &mut EjectionState, ok: bool, sent: u64| {
                if sent > changed {
                    (good, bad) = if ok { (good + 1, 0) } else { (0, bad + 1) };
                    if ok {
                        (bad_scrapes, not_before) = (0, 0);
                    }
                }
                if ok { state.succeeded(&params, sent, now) } else { state.failed(&params, DOWN, sent, now) }
            };
            let change = match event {
                Event::Ends(ok, before) => ends(&mut state, ok, now.saturating_sub(before)),
                Event::Scrape(ok) => {
                    (good_scrapes, bad_scrapes) =
                        if ok { (good_scrapes + 1, 0) } else { (0, bad_scrapes + 1) };
                    if ok { state.scrape_succeeded(&params, now) } else { state.scrape_failed(&params, false, now) }
                }
                Event::Claim => {
                    let claimed = state.claim(now);
                    if let Some(number) = claimed {
                        prop_assert!(was_ejected);
                        prop_assert!(out.is_none_or(|(_, at)| now >= at + PATIENCE_MS), "two at once");
                        prop_assert!(now >= not_before, "a storm");
                        out = Some((number, now));
                    }
                    Change::Nothing
                }
                Event::Probe(end) => match out.take() {
                    None => Change::Nothing,
                    Some((number, sent)) => {
                        let change = match end {
                            0 | 1 => ends(&mut state, end == 0, sent),
                            _ => Change::Nothing,
                        };
                        match end {
                            0 | 1 => state.answered(number),
                            2 => state.unanswered(number, now),
                            _ => state.unused(number, now),
                        }
                        let still = state.due_ms().is_some() && sent > changed;
                        if end == 1 && still {
                            not_before = now + pauses(&params).0;
                        }
                        change
                    }
                },
            };
            match change {
                Change::Nothing => prop_assert_eq!(was_ejected, state.due_ms().is_some()),
                Change::Ejected(cause) => {
                    prop_assert!(!was_ejected && state.due_ms().is_some());
                    if cause == Failure::Scrape {
                        prop_assert!(params.failed_scrapes > 0 && bad_scrapes >= params.failed_scrapes);
                    } else {
                        prop_assert!(bad >= params.failures.max(1));
                    }
                    prop_assert_eq!(state.due_ms(), Some(now + pauses(&params).0));
                }
                Change::Recovered(_) => {
                    prop_assert!(was_ejected && state.due_ms().is_none());
                    let enough = params.successes.max(1);
                    prop_assert!(good >= enough || good_scrapes >= enough);
                }
            }
            if change != Change::Nothing {
                (changed, bad, good, good_scrapes, out, not_before) = (now, 0, 0, 0, None, 0);
                if matches!(change, Change::Recovered(_)) {
                    bad_scrapes = 0;
                }
            }
        }
        // From here on it works: it comes back, after the last pause and half of that again.
        let last = now;
        while let Some(due) = state.due_ms() {
            now = due.max(now + 1);
            let number = state.claim(now).unwrap();
            state.succeeded(&params, now, now);
            state.answered(number);
        }
        let longest = pauses(&params).1;
        prop_assert!(now - last <= PATIENCE_MS.max(longest) + longest + u64::from(params.successes) + 1);
    }
}
