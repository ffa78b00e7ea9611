//! Single values of a JSON body.

use super::body::Span;
use super::json::Token;
use super::prompt::{Part, PartKind};

/// A string as a part of a prompt.
pub(super) fn text(token: Token, span: Span) -> Option<Part> {
    match token {
        Token::String { escaped } => Some(Part { kind: PartKind::Text, span, escaped }),
        _ => None,
    }
}

/// A number that counts something: not negative and without a fraction.
pub(super) fn count(token: Token, span: Span, head: &[u8]) -> Option<u64> {
    if token != Token::Number || head.len() != span.len() {
        return None;
    }
    let text = std::str::from_utf8(head).ok()?;
    text.parse().ok().or_else(|| {
        let value: f64 = text.parse().ok()?;
        (value.fract() == 0.0 && (0.0..=9e15).contains(&value)).then_some(value as u64)
    })
}
