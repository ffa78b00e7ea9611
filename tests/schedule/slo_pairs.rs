//! Latency targets where one endpoint computes a prompt and another one responds.

use std::sync::Arc;
use std::time::Duration;

use usher::endpoints::Candidates;
use usher::request::Request;
use usher::schedule::Part;
use usher::schedule::latency::{DisaggregatedWork, Model, Reported, TokenCounts, Work};

use crate::expected_latency::{endpoint, model};
use crate::pool::asking;
use crate::slo::{TPOT, TTFT, best, running, scores_of};
use crate::support::{NOW, pool};

// Nothing is learned: a step takes 15 ms and 0.15 ms per request, and 1,000 tokens are computed
// per second.

/// The best of two endpoints for this part of a request.
fn place(part: Part, model: &Arc<Model>, request: &Request, matched: &[u32], at: &Candidates) -> usize {
    best(&scores_of(part, model, request, matched, at))
}

#[test]
fn prefill_weighs_the_target_of_the_first_token_alone() {
    let (_, model) = model();
    let candidates = running(&[30.0, 0.0]);
    // Four seconds of prompts wait at the second.
    let _waiting = model.book(&Work::whole(endpoint(&candidates, 1), 4000, true));
    let place = |part, headers: &[(&str, &str)], matched: &[u32]| {
        let mut request = asking(headers);
        request.max_output_tokens = Some(1);
        place(part, &model, &request, matched, &candidates)
    };
    // 19.7 and 15.3 ms per token, and all but the end of the prompt is cached at the first.
    let tight = [(TPOT, "15.7")];
    assert_eq!(place(Part::Whole, &tight, &[9, 0]), 1);
    assert_eq!(place(Part::Prefill, &tight, &[9, 0]), 0, "another one decodes");
    assert_eq!(place(Part::Prefill, &[(TTFT, "300"), (TPOT, "15.7")], &[9, 0]), 0);
    assert_eq!(place(Part::Prefill, &[(TPOT, "15.7")], &[0, 9]), 1, "the cheaper");
    assert_eq!(place(Part::Prefill, &[(TTFT, "1500"), (TPOT, "15.7")], &[0, 9]), 0);
}

#[test]
fn prefill_does_not_pack_for_tighter_classes() {
    let (_, model) = model();
    let candidates = running(&[10.0, 0.0]);
    drop(model.book(&Work { tpot: Some(0.02), ..Work::whole(endpoint(&candidates, 0), 100, true) }));
    let loose = asking(&[(TTFT, "60000"), (TPOT, "500")]);
    assert_eq!(place(Part::Whole, &model, &loose, &[10, 10], &candidates), 0, "the deepest batch");
    assert_eq!(place(Part::Prefill, &model, &loose, &[10, 10], &candidates), 1);
}

#[test]
fn decode_weighs_token_times_and_slots() {
    let (clock, model) = model();
    let candidates = running(&[30.0, 0.0]);
    let place =
        |headers: &[(&str, &str)]| place(Part::Decode, &model, &asking(headers), &[0, 0], &candidates);
    // Prompts of 60 seconds wait at the second.
    let waiting: Vec<_> =
        (0..6).map(|_| model.book(&Work::whole(endpoint(&candidates, 1), 10_000, true))).collect();
    assert_eq!(place(&[(TTFT, "3000"), (TPOT, "15.9")]), 1, "what it has to compute is no matter");
    drop(waiting);
    // Requests hold a slot there for 20 seconds, and now its KV cache is full.
    let mut one = model.book(&Work::whole(endpoint(&candidates, 1), 10, true));
    one.first_token();
    clock.set(clock.elapsed() + Duration::from_secs(20));
    one.finish(Some(2));
    endpoint(&candidates, 1).load().kv_usage.set(1.0, NOW);
    assert_eq!(place(&[(TPOT, "15.9")]), 1);
    assert_eq!(place(&[(TTFT, "3000"), (TPOT, "1000")]), 0, "no slot in time");
}

#[test]
fn disaggregated_responses_train_token_times_and_errors() {
    let (clock, model) = model();
    let candidates = pool(2, |_, _| {});
    let (prefill, decode) = (endpoint(&candidates, 0), endpoint(&candidates, 1));
    let reported = Reported::default();
    for _ in 0..200 {
        let mut booked = model.book(&Work {
            prefill,
            reported: Some(reported),
            disaggregated: Some(DisaggregatedWork { decode: Some(reported), transfer: Some(0.1) }),
            ..Work::whole(decode, 1000, true)
        });
        clock.set(clock.elapsed() + Duration::from_millis(1130));
        booked.first_token();
        clock.set(clock.elapsed() + Duration::from_secs(3));
        booked.finish(Some(101));
    }
    let table = model.read();
    let counts = TokenCounts { uncached: 1000.0, prompt: 1000.0, output: 101.0 };
    let tpot = table.tpot(decode, &counts, &reported);
    assert!((tpot - 0.03).abs() < 0.002, "{tpot}");
    let chance = |milliseconds: f64| table.tpot_residuals(decode).within(0.1, tpot, milliseconds / 1000.0);
    assert!(chance(25.0) < 0.05 && chance(35.0) > 0.95, "{} {}", chance(25.0), chance(35.0));
    let prediction = model.prediction();
    let counted = |bands: &[usher::schedule::latency::BandAccuracy]| -> u64 {
        bands.iter().map(|band| band.predictions).sum()
    };
    assert_eq!((counted(&prediction.ttft), counted(&prediction.tpot)), (200, 200));
    let error = prediction.ttft[0].median_error;
    assert!(error < 0.1, "the transfer is taken off: {error}");
}
