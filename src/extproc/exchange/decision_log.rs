//! Log of decisions: an event of level debug for each, which joins with the gateway's access log by the request id.
//! Nothing of a prompt is in it, and while debug is off nothing is built. What clients chose is logged as text, which
//! the console quotes: no name can add a field to its line.

use std::fmt::Write;

use crate::flow::{Rejection, Routed};
use crate::otel::TraceId;
use crate::records::{SHOWN, bounded};
use crate::request::Request;
use crate::schedule::Decision;

/// Candidates that an event names.
const BEST: usize = 3;

/// Ids that join an event with what others log about the request.
#[derive(Clone, Copy)]
pub(super) struct LogIds<'a> {
    /// Id that the request got, if it came without.
    pub(super) new_request: Option<&'a str>,
    /// Id of its trace, where requests are traced.
    pub(super) trace: Option<TraceId>,
}

/// Logs where a request goes. Before the scores are taken from it.
pub(super) fn routed(request: &Request, ids: LogIds<'_>, destination: &[u8], routed: &Routed) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let decision = routed.decision();
    let is_rewritten = request.target_model != request.model;
    tracing::debug!(
        request_id = bounded(&request_id(request, ids.new_request), SHOWN),
        trace_id = ids.trace.map(display),
        model = bounded(&request.model, SHOWN),
        target_model = is_rewritten.then(|| bounded(&request.target_model, SHOWN)),
        destination = %bounded(&String::from_utf8_lossy(destination), SHOWN),
        profiles = %profiles(decision),
        prefill = prefill(decision).map(display),
        candidates = decision.candidates().len(),
        best = %best(decision.scores()),
        "request routed"
    );
}

/// Logs why a request goes nowhere.
pub(super) fn refused(request: &Request, trace: Option<TraceId>, rejection: &Rejection) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    tracing::debug!(
        request_id = bounded(&request_id(request, None), SHOWN),
        trace_id = trace.map(display),
        model = bounded(&request.model, SHOWN),
        status = rejection.code.status(),
        reason = rejection.reason,
        "request refused"
    );
}

/// The id of a request, as its client or the picker chose it.
pub(super) fn request_id(request: &Request, new: Option<&str>) -> String {
    new.map_or_else(|| request.id().into_owned(), str::to_owned)
}

/// Profiles that picked, in the order of the configuration.
fn profiles(decision: &Decision) -> String {
    let names: Vec<&str> = decision.runs().iter().map(|run| decision.profile(run)).collect();
    names.join(",")
}

/// Endpoint that computes the prompt, where that is another than the destination.
fn prefill(decision: &Decision) -> Option<String> {
    let run = decision.prefill().filter(|run| run.profile != decision.primary().profile)?;
    decision.endpoints_of(run).next().map(|endpoint| endpoint.authority().to_string())
}

/// The candidates with the highest totals, as `address=total`, separated by commas.
fn best<'a>(scores: impl Iterator<Item = (&'a std::sync::Arc<str>, f64)>) -> String {
    let mut scores: Vec<_> = scores.collect();
    scores.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let mut text = String::new();
    for (position, (address, total)) in scores.iter().take(BEST).enumerate() {
        let comma = if position > 0 { "," } else { "" };
        // Writing to a string can't fail.
        let _ = write!(text, "{comma}{address}={total:.3}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_best_three_are_named_with_their_totals() {
        let of = |scores: &[f64]| {
            let addresses: Vec<Arc<str>> =
                (1..=scores.len()).map(|number| format!("10.0.0.{number}:8000").into()).collect();
            best(addresses.iter().zip(scores.iter().copied()))
        };
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[1.0]), "10.0.0.1:8000=1.000");
        let expected = "10.0.0.2:8000=2.500,10.0.0.1:8000=0.125,10.0.0.3:8000=0.125";
        assert_eq!(of(&[0.125, 2.5, 0.125, -1.0]), expected);
    }
}
