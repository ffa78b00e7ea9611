//! `GET /decisions` on the admin port: the last decisions, chosen by a query. The page's format is described in
//! `docs/guide/explain.md`.

mod format;
mod selection;

use std::sync::Arc;

use serde_json::json;

use crate::records::{DecisionRecord, Records};

use selection::Selection;

pub use format::decision;

/// Version of the page's format. Fields may be added without a new one.
pub const VERSION: u32 = 1;

/// Most bytes of decisions on a page.
const MOST_BYTES: usize = 4 << 20;

/// The page as JSON. `records`: `None` where decisions aren't kept.
///
/// # Errors
/// A message about the mistake in the query.
pub fn page(records: Option<&Records>, query: &str) -> Result<Vec<u8>, String> {
    let selection = Selection::parse(query)?;
    let Some(records) = records else {
        let page = json!({"version": VERSION, "recording": false, "decisions": []});
        return Ok(page.to_string().into_bytes());
    };
    let (all, summary) = records.read();
    // Sequences change as requests end: each is read once, and what changed after the reading is on the next page.
    let newest = selection.since().map_or(u64::MAX, |_| summary.sequence);
    let numbered = all.iter().map(|record| (record.sequence(), record));
    let matching = numbered.filter(|(sequence, _)| *sequence <= newest);
    let matching: Vec<_> =
        matching.filter(|(sequence, record)| selection.matches(record, *sequence)).collect();
    let (mut shown, mut bytes) = (Vec::new(), 0);
    // The last ones count most, but for one who follows and comes back for the rest.
    let most = selection.last();
    let mut take = |(sequence, record): &(u64, &Arc<DecisionRecord>)| {
        let show = if selection.is_brief() { format::brief } else { decision };
        let text = show(record).to_string();
        bytes += text.len();
        let has_room = bytes <= MOST_BYTES || shown.is_empty();
        if has_room {
            shown.push((*sequence, text));
        }
        has_room
    };
    let (mut sequence, matched) = (summary.sequence, matching.len());
    if selection.since().is_some() {
        let mut matching = matching;
        matching.sort_unstable_by_key(|(sequence, _)| *sequence);
        matching.iter().take(most).take_while(|numbered| take(numbered)).for_each(drop);
        if shown.len() < matched {
            sequence = shown.last().map_or(sequence, |(sequence, _)| *sequence);
        }
    } else {
        matching.iter().rev().take(most).take_while(|numbered| take(numbered)).for_each(drop);
        shown.reverse();
    }
    let head = json!({
        "version": VERSION,
        "recording": true,
        "pool": records.pool(),
        "capacity": summary.capacity,
        "kept": summary.kept,
        "kept_since_unix_ms": summary.since_unix_ms,
        "decided": summary.decisions,
        "sampled_out": summary.sampled_out,
        "sequence": sequence,
        "matched": matched,
    });
    let mut page = head.to_string();
    page.truncate(page.len() - 1);
    page.push_str(",\"decisions\":[");
    page.reserve_exact(shown.iter().map(|(_, text)| text.len() + 1).sum::<usize>() + 3);
    for (place, (_, text)) in shown.iter().enumerate() {
        page.push_str(if place == 0 { "" } else { "," });
        page.push_str(text);
    }
    page.push_str("]}\n");
    Ok(page.into_bytes())
}
