//! Several decisions, a line each.

use usher_terminal::{Column, table};

use super::page::Decision;
use super::units::{seconds, utc};

/// Decisions as a table of so many columns.
pub(super) fn list(decisions: &[Decision], width: Option<usize>) -> String {
    let columns = [
        Column::text("request"),
        Column::text("decided"),
        Column::text("model"),
        Column::text("endpoint"),
        Column::number("lead"),
        Column::number("TTFT"),
        Column::text("result"),
    ];
    let rows: Vec<_> = decisions.iter().map(cells).collect();
    table(&columns, &rows, width)
}

/// A decision as one line, for those that are followed.
pub(super) fn single(decision: &Decision) -> String {
    cells(decision).join("  ") + "\n"
}

fn cells(decision: &Decision) -> Vec<String> {
    let primary = decision.primary();
    let pick = primary.and_then(|profile| profile.picks.first());
    let lead = primary.and_then(|profile| profile.margin);
    let outcome = decision.outcome.as_ref();
    let dash = || "-".to_owned();
    let id = Some(&decision.request_id).filter(|id| !id.is_empty());
    vec![
        id.cloned().unwrap_or_else(dash),
        utc(decision.decided_unix_ms),
        Some(&decision.model).filter(|model| !model.is_empty()).cloned().unwrap_or_else(dash),
        pick.cloned().unwrap_or_else(dash),
        lead.map_or_else(dash, |lead| format!("{lead:.3}")),
        outcome.and_then(|outcome| outcome.first_token).map_or_else(dash, seconds),
        result(decision),
    ]
}

fn result(decision: &Decision) -> String {
    if let Some(refusal) = &decision.refusal {
        let reason = refusal.reason.as_ref().map(|reason| format!(", {reason}")).unwrap_or_default();
        return format!("refused with {}{reason}", refusal.status);
    }
    let Some(outcome) = &decision.outcome else { return "none yet".to_owned() };
    let status = outcome.status.map_or("no response".to_owned(), |status| status.to_string());
    let slow = if decision.slow { ", slow" } else { "" };
    match outcome.ending.as_str() {
        "complete" => format!("{status}{slow}"),
        ending => format!("{status}{slow}, {ending}"),
    }
}
