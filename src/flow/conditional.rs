//! `prefer: if-available`: a client that wants a response only where its prompt is
//! in a cache already, and would rather be refused than wait.

use crate::schedule::data::PrefixMatch;
use crate::schedule::{Context, Decision, Key};

use super::{Code, Rejection};

/// Refuses a conditional request whose first choice holds nothing of its prompt.
///
/// # Errors
/// `Rejection` with status 412, as in llm-d-router; also if no cache state is known.
pub(super) fn check(
    cx: &Context<'_>,
    decision: &Decision,
    prefix: Option<Key<PrefixMatch>>,
) -> Result<(), Rejection> {
    if !cx.request.headers.get("prefer").is_some_and(is_conditional) {
        return Ok(());
    }
    let first = decision.primary().picks.first().copied().unwrap_or_default();
    let known = prefix.and_then(|key| cx.facts.get(key));
    if known.is_some_and(|known| known.blocks_at(first) > 0) {
        return Ok(());
    }
    Err(Rejection::new(Code::PreconditionFailed, "no decode worker has the requested KV cache"))
}

/// Returns `true` if the preferences (RFC 7240) hold `if-available`. Names have no case;
/// values and parameters don't matter.
fn is_conditional(preferences: &[u8]) -> bool {
    preferences.split(|byte| *byte == b',').any(|preference| {
        let name = preference.split(|byte| matches!(byte, b';' | b'=')).next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"if-available")
    })
}

#[cfg(test)]
mod tests {
    use super::is_conditional;

    #[test]
    fn prefer_header_is_found_among_others() {
        let table: [(&str, bool); 8] = [
            ("if-available", true),
            ("If-Available", true),
            ("respond-async, if-available", true),
            (" if-available ; wait=10", true),
            ("wait=if-available", false),
            ("if-available-now", false),
            ("respond-async; if-available", false),
            ("", false),
        ];
        for (header, conditional) in table {
            assert_eq!(is_conditional(header.as_bytes()), conditional, "{header}");
        }
    }
}
