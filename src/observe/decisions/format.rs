//! A decision as JSON.

use serde_json::{Value, json};
use usher_plugin::LatencyEstimate;

use crate::endpoints::EndpointName;
use crate::records::{DecisionRecord, Ending, EngineKnown, HiddenBy, Outcome, ProfileRecord, Row};

/// A decision as JSON. Times are in seconds unless their names say otherwise; what isn't known is null.
pub fn decision(record: &DecisionRecord) -> Value {
    let profiles: Vec<Value> = record.profiles.iter().map(|each| profile(record, each)).collect();
    let refusal = record.refusal.as_ref().map(
        |refusal| json!({"status": refusal.status, "reason": refusal.reason, "message": refusal.message}),
    );
    json!({
        "number": record.number,
        "sequence": record.sequence(),
        "request_id": record.request_id(),
        "decided_unix_ms": record.unix_ms,
        "waited": record.waited.map(rounded),
        "model": record.model(),
        "target_model": record.target_model().unwrap_or(record.model()),
        "priority": record.priority,
        "stream": record.is_stream,
        "body_bytes": record.body_bytes,
        "input_tokens": record.input_tokens,
        "max_output_tokens": record.max_output_tokens,
        "endpoints": record.endpoints,
        "candidates": record.candidates,
        "detailed": record.rows.iter().zip(0..).map(|(each, at)| row(record, each, at)).collect::<Vec<_>>(),
        "profiles": profiles,
        "refusal": refusal,
        "slow": record.is_slow(),
        "failed": record.is_failed(),
        "outcome": record.outcome().map(|each| outcome(record, each)),
    })
}

/// A decision as one line of a list, as JSON.
pub(super) fn brief(record: &DecisionRecord) -> Value {
    let primary = record.primary().and_then(|profile| record.row(*profile.picks.first()?));
    let picked = primary.map(|row| record.name(row));
    let outcome = record.outcome();
    json!({
        "number": record.number,
        "request_id": record.request_id(),
        "decided_unix_ms": record.unix_ms,
        "model": record.model(),
        "picked": picked.map(|name| &*name.address),
        "picked_id": picked.map(|name| &*name.id),
        "refusal": record.refusal.as_ref().map(|refusal| json!({"status": refusal.status, "reason": refusal.reason})),
        "slow": record.is_slow(),
        "failed": record.is_failed(),
        "outcome": outcome.map(|outcome| json!({
            "ending": ending(outcome),
            "status": outcome.status,
            "first_token": outcome.first_token.map(rounded),
            "total": rounded(outcome.total),
        })),
    })
}

fn row(record: &DecisionRecord, row: &Row, at: u16) -> Value {
    let EndpointName { id, address } = record.name(row);
    let signals = row.signals();
    json!({
        "id": &**id,
        "address": &**address,
        "waiting": signals.waiting,
        "running": signals.running,
        "kv_usage": signals.kv_usage.map(|usage| rounded(f64::from(usage))),
        "age_ms": signals.age_ms,
        "in_flight": signals.in_flight,
        "cached_tokens": signals.cached_tokens,
        "kv_events": record.kv_events(at).map(kv_events),
        "hidden_by": row.hidden.map(|by| match by {
            HiddenBy::Ejection => "ejection",
            HiddenBy::Narrowing => "narrowing",
        }),
    })
}

fn kv_events(known: &EngineKnown) -> Value {
    json!({"state": known.status.name(), "cached_tokens": known.cached_tokens})
}

fn profile(record: &DecisionRecord, profile: &ProfileRecord) -> Value {
    let shape = &profile.shape;
    let address = |row: u16| record.row(row).map(|row| &*record.name(row).address);
    let filter = |position: u16| shape.filters.get(usize::from(position)).map(|name| &**name);
    let filters = profile.steps.iter().map(|step| {
        let dropped = profile.dropped.iter().filter(|(by, _)| *by == step.filter);
        let dropped: Vec<_> = dropped.map(|(_, row)| address(*row)).collect();
        json!({"filter": filter(step.filter), "left": step.left, "dropped": dropped})
    });
    let scored = profile.scored.iter().zip(0..).map(|(row, place)| {
        let scores: Vec<f64> = profile.scores(place).map(|score| rounded(score.into())).collect();
        json!({"address": address(*row), "scores": scores, "total": rounded(profile.total(place))})
    });
    let scorers = shape.scorers.iter().map(|(name, weight)| json!({"scorer": &**name, "weight": weight}));
    let estimates = profile.estimates.iter().map(|(row, each)| estimate(address(*row), each));
    let total =
        |row: u16| profile.scored.iter().position(|scored| *scored == row).map(|place| profile.total(place));
    let first = profile.picks.first().copied();
    let margin = first.zip(profile.runner_up).and_then(|(pick, other)| Some(total(pick)? - total(other)?));
    json!({
        "profile": &*shape.profile,
        "primary": profile.is_primary,
        "filters": filters.collect::<Vec<_>>(),
        "survivors": profile.survivors,
        "scorers": scorers.collect::<Vec<_>>(),
        "picker": &*shape.picker,
        "scored": scored.collect::<Vec<_>>(),
        "picks": profile.picks.iter().map(|pick| address(*pick)).collect::<Vec<_>>(),
        "runner_up": profile.runner_up.and_then(address),
        "margin": margin.map(rounded),
        "expected": estimates.collect::<Vec<_>>(),
    })
}

fn estimate(address: Option<&str>, estimate: &LatencyEstimate) -> Value {
    json!({
        "address": address,
        "first_token": rounded(estimate.first_token),
        "slot_wait": rounded(estimate.slot_wait),
        "queued": rounded(estimate.queued),
        "prefill": rounded(estimate.prefill),
        "per_token": rounded(estimate.per_token),
        "uncached_tokens": estimate.uncached_tokens.round(),
    })
}

fn outcome(record: &DecisionRecord, outcome: &Outcome) -> Value {
    let primary = record.primary().and_then(|profile| record.row(*profile.picks.first()?));
    let served = outcome.served.as_deref().or_else(|| {
        // Without a word of the gateway the first pick is taken to have served.
        outcome.status.and(primary).map(|row| &*record.name(row).address)
    });
    // Another server than the one that was picked says nothing about what was expected of that.
    let is_first_pick =
        served.is_none_or(|served| primary.is_some_and(|row| *record.name(row).address == *served));
    let expected = record.estimate().filter(|_| is_first_pick);
    let error = expected.zip(outcome.first_token).map(|(expected, took)| took - expected.first_token);
    let held = record.held_tokens().filter(|_| is_first_pick).map(i64::from);
    let cached = outcome.cached_tokens.and_then(|cached| i64::try_from(cached).ok());
    json!({
        "ending": ending(outcome),
        "status": outcome.status,
        "grpc_status": outcome.grpc_status,
        "served_by": served,
        "first_token": outcome.first_token.map(rounded),
        "total": rounded(outcome.total),
        "per_token": outcome.per_token.map(rounded),
        "prompt_tokens": outcome.prompt_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_tokens": outcome.cached_tokens,
        "first_token_error": error.map(rounded),
        "cached_tokens_error": held.zip(cached).map(|(held, cached)| cached - held),
    })
}

fn ending(outcome: &Outcome) -> &'static str {
    match outcome.ending {
        Ending::Complete => "complete",
        Ending::CutOff => "cut off",
        Ending::Unseen => "not shown by the gateway",
    }
}

/// A number with six digits behind the point; finite ones only are shown.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
