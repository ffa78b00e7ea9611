//! One decision in words and a table.

use std::fmt::{self, Display, Formatter};

use usher_terminal::{Column, grouped, line, table};

use super::page::{Decision, Endpoint, Expected, KvEvents, Outcome, Profile};
use super::units::{age, seconds, utc};

/// A decision, as wide as the formatter.
pub(super) struct Explained<'a>(pub(super) &'a Decision);

impl Display for Explained<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let decision = self.0;
        let id = if decision.request_id.is_empty() { "without an id" } else { &decision.request_id };
        line(f, "request", format_args!("{id}"))?;
        line(f, "asks for", format_args!("{}", asked(decision)))?;
        line(f, "decided", format_args!("{}", decided(decision)))?;
        match (&decision.refusal, decision.primary()) {
            (Some(refusal), _) => {
                let reason = refusal.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
                let (status, message) = (refusal.status, refusal.message.trim());
                line(f, "refused", format_args!("status {status}{reason}: {message}"))?;
            }
            (None, Some(primary)) => line(f, "sent to", format_args!("{}", sent(decision, primary)))?,
            (None, None) => {}
        }
        for profile in decision.profiles.iter().filter(|profile| !profile.primary) {
            if let Some(pick) = profile.picks.first() {
                line(f, "beside it", format_args!("{pick}, picked by profile {}", profile.profile))?;
            }
        }
        if decision.refusal.is_none() {
            line(f, "response", format_args!("{}", response(decision)))?;
        }
        if let Some(primary) = decision.primary() {
            if let Some(held) = held(decision, primary) {
                line(f, "KV events", format_args!("{held}"))?;
            }
            expectations(f, primary, decision.outcome.as_ref())?;
        }
        decision.profiles.iter().try_for_each(|profile| self.profile(f, profile))?;
        if decision.profiles.is_empty() && !decision.detailed.is_empty() {
            let rows: Vec<_> = decision.detailed.iter().map(|each| row(decision, each, None)).collect();
            write!(f, "\n{}", table(&columns(decision, None), &rows, f.width()))?;
        }
        Ok(())
    }
}

impl Explained<'_> {
    fn profile(&self, f: &mut Formatter<'_>, profile: &Profile) -> fmt::Result {
        writeln!(f)?;
        line(f, "profile", format_args!("{}, with the picker {}", profile.profile, profile.picker))?;
        let mut before = self.0.candidates;
        for filter in &profile.filters {
            let name = filter.filter.as_deref().unwrap_or("?");
            line(f, "filter", format_args!("{name} left {} of {before}", filter.left))?;
            before = filter.left;
        }
        let left_out = profile.survivors as usize - profile.scored.len().min(profile.survivors as usize);
        if left_out > 0 {
            line(f, "not shown", format_args!("{left_out} candidates with lower totals"))?;
        }
        let rows: Vec<_> = self.sorted(profile).iter().map(|each| row(self.0, each, Some(profile))).collect();
        write!(f, "{}", table(&columns(self.0, Some(profile)), &rows, f.width()))
    }

    /// Endpoints, by their totals, those without one last.
    fn sorted(&self, profile: &Profile) -> Vec<&Endpoint> {
        let place = |endpoint: &Endpoint| {
            let pick = profile.picks.iter().position(|pick| *pick == endpoint.address);
            let scored = profile.scored.iter().find(|scored| scored.address == endpoint.address);
            let total = scored.map(|scored| scored.total.unwrap_or_default());
            (pick.unwrap_or(usize::MAX), total)
        };
        let mut sorted: Vec<_> = self.0.detailed.iter().map(|each| (place(each), each)).collect();
        sorted.sort_by(|((pick, total), _), ((other_pick, other_total), _)| {
            let number = |total: &Option<f64>| total.unwrap_or(f64::NEG_INFINITY);
            pick.cmp(other_pick).then(number(other_total).total_cmp(&number(total)))
        });
        sorted.into_iter().map(|(_, endpoint)| endpoint).collect()
    }
}

fn asked(decision: &Decision) -> String {
    let mut parts = Vec::new();
    match decision.model.as_str() {
        "" => parts.push("no model that was read".to_owned()),
        model if model == decision.target_model => parts.push(model.to_owned()),
        model => parts.push(format!("{model}, served as {}", decision.target_model)),
    }
    match decision.input_tokens {
        Some(tokens) => parts.push(format!("about {} prompt tokens", grouped(tokens))),
        None => parts.push(format!("a body of {} bytes", grouped(decision.body_bytes))),
    }
    if let Some(most) = decision.max_output_tokens {
        parts.push(format!("at most {} tokens back", grouped(most)));
    }
    if decision.stream {
        parts.push("streamed".to_owned());
    }
    if decision.priority != 0 {
        parts.push(format!("priority {}", decision.priority));
    }
    parts.join(", ")
}

fn decided(decision: &Decision) -> String {
    let waited = decision
        .waited
        .map(|waited| format!(", {} after its headers came", seconds(waited)))
        .unwrap_or_default();
    let among = match (decision.candidates, decision.endpoints) {
        (left, all) if left == all => format!("{all} endpoints"),
        (left, all) => format!("{left} of {all} endpoints"),
    };
    format!("{}{waited}, among {among}", utc(decision.decided_unix_ms))
}

fn sent(decision: &Decision, primary: &Profile) -> String {
    let Some(pick) = primary.picks.first() else { return "nowhere".to_owned() };
    let id = decision.endpoint(pick).map(|each| format!(" ({})", each.id));
    let lead = match (&primary.runner_up, primary.margin) {
        (Some(other), Some(margin)) if margin > 0.0 => format!(", ahead of {other} by {margin:.3}"),
        (Some(other), Some(margin)) if margin < 0.0 => {
            format!(", although the total of {other} is higher by {:.3}", -margin)
        }
        (Some(other), Some(_)) => format!(", level with {other}"),
        _ if primary.survivors == 1 => ", the only one that was left".to_owned(),
        _ => String::new(),
    };
    format!("{pick}{}{lead}", id.unwrap_or_default())
}

fn response(decision: &Decision) -> String {
    let Some(outcome) = &decision.outcome else { return "none yet".to_owned() };
    let mut parts = Vec::new();
    let status = outcome.status.map_or("no response".to_owned(), |status| format!("status {status}"));
    let served = outcome.served_by.as_ref().map(|by| format!(" from {by}")).unwrap_or_default();
    let grpc = outcome.grpc_status.map(|code| format!(", gRPC status {code}")).unwrap_or_default();
    let slow = if decision.slow { ", slower than nearly all" } else { "" };
    let (slow_in_all, slow_to_begin) = if outcome.first_token.is_some() { ("", slow) } else { (slow, "") };
    let total = seconds(outcome.total);
    parts.push(format!("{status}{grpc}{served}, {} after {total}{slow_in_all}", outcome.ending));
    if let Some(first) = outcome.first_token {
        parts.push(format!("TTFT {}{slow_to_begin}", seconds(first)));
    }
    if let Some(per_token) = outcome.per_token {
        parts.push(format!("TPOT {}", seconds(per_token)));
    }
    if let Some(tokens) = outcome.output_tokens {
        parts.push(format!("{} tokens", grouped(tokens)));
    }
    if let Some(cached) = outcome.cached_tokens {
        let prompt = outcome.prompt_tokens.map(|all| format!(" of {}", grouped(all))).unwrap_or_default();
        parts.push(format!("{}{prompt} prompt tokens cached", grouped(cached)));
    }
    parts.join("; ")
}

/// Tokens of the prompt that the engine of the pick held by its KV events, and how many were cached.
fn held(decision: &Decision, primary: &Profile) -> Option<String> {
    let pick = primary.picks.first()?;
    let KvEvents { state, cached_tokens } = decision.endpoint(pick)?.kv_events.as_ref()?;
    let Some(held) = cached_tokens else {
        let why = if state == "not heard" { "" } else { ", and the prompt's tokens were not known" };
        return Some(format!("{pick} {state}{why}"));
    };
    let error = decision.outcome.as_ref().and_then(|outcome| outcome.cached_tokens_error);
    let error = error.map(|error| match error {
        0 => "; as many were cached".to_owned(),
        error if error > 0 => format!("; {} more were cached", grouped(error.unsigned_abs())),
        error => format!("; {} fewer were cached", grouped(error.unsigned_abs())),
    });
    Some(format!("{pick} {state}, with {} tokens of the prompt{}", grouped(*held), error.unwrap_or_default()))
}

/// Latency that the model expected of the pick and of the runner-up.
fn expectations(f: &mut Formatter<'_>, primary: &Profile, outcome: Option<&Outcome>) -> fmt::Result {
    let first = primary.picks.first();
    if let Some(expected) = first.and_then(|pick| primary.expected_of(pick)) {
        let error = outcome.and_then(|outcome| outcome.first_token_error);
        let error = error.map(|error| match error {
            error if error >= 0.0 => format!("; it took {} longer", seconds(error)),
            error => format!("; it took {} less", seconds(-error)),
        });
        line(f, "expected", format_args!("{}{}", parts(expected), error.unwrap_or_default()))?;
    }
    if let Some(other) = &primary.runner_up
        && let Some(expected) = primary.expected_of(other)
    {
        line(f, "at runner-up", format_args!("{other}: {}", parts(expected)))?;
    }
    Ok(())
}

fn parts(expected: &Expected) -> String {
    format!(
        "TTFT {} (slot {}, prompts before it {}, {} uncached tokens {}), TPOT {}",
        seconds(expected.first_token),
        seconds(expected.slot_wait),
        seconds(expected.queued),
        grouped(expected.uncached_tokens.max(0.0).round() as u64),
        seconds(expected.prefill),
        seconds(expected.per_token),
    )
}

/// Columns of a profile's table.
fn columns<'a>(decision: &Decision, profile: Option<&'a Profile>) -> Vec<Column<'a>> {
    let mut columns = vec![Column::text("endpoint"), Column::text("result")];
    if let Some(profile) = profile {
        columns.push(Column::number("total"));
        columns.extend(profile.scorers.iter().map(|scorer| Column::number(&scorer.scorer)));
    }
    columns.extend(["waiting", "running", "KV cache", "in flight", "cached"].map(Column::number));
    columns.extend(decision.has_kv_events().then(|| Column::number("KV events")));
    columns.push(Column::number("read"));
    columns
}

fn row(decision: &Decision, endpoint: &Endpoint, profile: Option<&Profile>) -> Vec<String> {
    let mut cells = vec![endpoint.address.clone(), result(endpoint, profile)];
    if let Some(profile) = profile {
        let scored = profile.scored.iter().find(|scored| scored.address == endpoint.address);
        let number = |number: Option<f64>| number.map_or("-".to_owned(), |number| format!("{number:.3}"));
        cells.push(number(scored.and_then(|scored| scored.total)));
        cells.extend(profile.scorers.iter().enumerate().map(|(place, scorer)| {
            let score = scored.and_then(|scored| scored.scores.get(place)).copied();
            score.map_or("-".to_owned(), |score| format!("{} × {score:.3}", scorer.weight))
        }));
    }
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    cells.extend([
        shown(endpoint.waiting),
        shown(endpoint.running),
        endpoint.kv_usage.map_or("-".to_owned(), |usage| format!("{:.0} %", usage * 100.0)),
        endpoint.in_flight.to_string(),
        endpoint.cached_tokens.map_or("-".to_owned(), grouped),
    ]);
    if decision.has_kv_events() {
        cells.push(endpoint.kv_events.as_ref().map_or("-".to_owned(), cached));
    }
    cells.push(endpoint.age_ms.map_or("never".to_owned(), |ms| format!("{} ago", age(ms))));
    cells
}

fn cached(KvEvents { state, cached_tokens }: &KvEvents) -> String {
    cached_tokens.map_or_else(|| state.clone(), |tokens| format!("{}, {state}", grouped(tokens)))
}

fn result(endpoint: &Endpoint, profile: Option<&Profile>) -> String {
    match endpoint.hidden_by.as_deref() {
        Some("ejection") => return "ejected: it fails".to_owned(),
        Some(_) => return "set aside before".to_owned(),
        None => {}
    }
    let Some(profile) = profile else { return String::new() };
    let address = &endpoint.address;
    match profile.picks.iter().position(|pick| pick == address) {
        Some(0) => return "picked".to_owned(),
        Some(place) => return format!("fallback {place}"),
        None => {}
    }
    match profile.dropped_by(address) {
        Some(filter) => format!("dropped by {filter}"),
        None if profile.runner_up.as_ref() == Some(address) => "runner-up".to_owned(),
        None => String::new(),
    }
}
