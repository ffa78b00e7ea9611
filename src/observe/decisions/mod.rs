//! `GET /decisions` on the admin port: the last decisions, chosen by a query. The page's format is described in
//! `docs/guide/explain.md`.

mod format;
mod selection;

use serde_json::json;

use crate::records::Records;

use selection::Selection;

pub use format::decision;

/// Version of the page's format. Fields may be added without a new one.
pub const VERSION: u32 = 1;

/// Most bytes of decisions on a page.
const MOST_BYTES: usize = 4 << 20;

/// The page as JSON. `records`: `None` where decisions aren't kept.
///
/// # Errors
/// A sentence about what is wrong with the query.
pub fn page(records: Option<&Records>, query: &str) -> Result<Vec<u8>, String> {
    let selection = Selection::parse(query)?;
    let Some(records) = records else {
        let page = json!({"version": VERSION, "recording": false, "decisions": []});
        return Ok(page.to_string().into_bytes());
    };
    let (all, summary) = records.read();
    let matching: Vec<_> = all.iter().filter(|record| selection.matches(record)).collect();
    let (mut shown, mut bytes) = (Vec::new(), 0);
    // The last ones count most, but for one who follows and comes back for the rest.
    let most = selection.last();
    let mut take = |record: &&std::sync::Arc<crate::records::DecisionRecord>| {
        let text = decision(record).to_string();
        bytes += text.len();
        let has_room = bytes <= MOST_BYTES || shown.is_empty();
        if has_room {
            shown.push((record.sequence(), text));
        }
        has_room
    };
    let (mut sequence, matched) = (summary.sequence, matching.len());
    if selection.since().is_some() {
        let mut matching = matching;
        matching.sort_unstable_by_key(|record| record.sequence());
        matching.iter().take(most).take_while(|record| take(record)).for_each(drop);
        if shown.len() < matched {
            sequence = shown.last().map_or(sequence, |(sequence, _)| *sequence);
        }
    } else {
        matching.iter().rev().take(most).take_while(|record| take(record)).for_each(drop);
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
    let texts: Vec<&str> = shown.iter().map(|(_, text)| text.as_str()).collect();
    page.push_str(&texts.join(","));
    page.push_str("]}\n");
    Ok(page.into_bytes())
}
