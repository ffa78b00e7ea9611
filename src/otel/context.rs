//! W3C trace context: the header `traceparent`.

use std::fmt;

/// Flag of a context whose spans are recorded.
const SAMPLED: u8 = 1;

/// Flag of a trace id that is random (level 2 of the specification).
const RANDOM: u8 = 2;

/// Id of a trace, not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Position in a trace, as services pass it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span, not 0.
    pub span: u64,
    /// Flags of the specification.
    pub flags: u8,
}

impl SpanContext {
    /// Reads a `traceparent`; `None` for one that isn't valid, which counts as missing.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?.trim();
        let mut parts = text.splitn(5, '-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        // Later versions may say more, this one doesn't.
        let is_known = version == 0 && parts.next().is_none() || (1..0xff).contains(&version);
        (is_known && trace != 0 && span != 0).then_some(Self {
            trace: TraceId(trace),
            span: span as u64,
            flags: flags as u8,
        })
    }

    /// Returns `true` if spans of this trace are recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The span `span` of a trace, under `parent` or as its first.
    pub(super) fn child(parent: Option<&Self>, trace: TraceId, span: u64, is_sampled: bool) -> Self {
        let kept = parent.map_or(0, |parent| parent.flags & RANDOM);
        Self { trace, span, flags: kept | u8::from(is_sampled) }
    }
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// Id of a new span, not 0.
pub(super) fn new_span() -> u64 {
    rand::random::<u64>().max(1)
}

/// A number of so many digits, in lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_context_round_trips() {
        let context = SpanContext::parse(VALID.as_bytes()).unwrap();
        assert_eq!(context.to_string(), VALID);
        assert_eq!(context.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(context.is_sampled());
        let later = format!("{}-more-to-come", VALID.replacen("00", "cc", 1));
        assert_eq!(SpanContext::parse(later.as_bytes()), Some(context));
    }

    #[test]
    fn invalid_traceparent_counts_as_missing() {
        for header in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(SpanContext::parse(header.as_bytes()), None, "{header}");
        }
        assert_eq!(SpanContext::parse(b"\xff"), None);
    }

    #[test]
    fn child_keeps_the_random_trace_id_flag() {
        let parent = SpanContext { flags: 0xff, ..SpanContext::parse(VALID.as_bytes()).unwrap() };
        let child = SpanContext::child(Some(&parent), parent.trace, 7, false);
        assert_eq!(child.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-02");
        assert!(SpanContext::child(None, parent.trace, 7, true).is_sampled());
    }
}
