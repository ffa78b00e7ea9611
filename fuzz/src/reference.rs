//! A reader of metrics pages that is written to be plain: line by line, every
//! line against every name, labels character by character.

use std::collections::HashMap;

use super::found::{Found, LABEL, LABELLED, NAMES};

const BLANKS: [char; 2] = [' ', '\t'];

/// All that a page says about the wanted metrics.
pub fn read(page: &str) -> Vec<Found> {
    let mut kinds: HashMap<&str, &str> = HashMap::new();
    let mut found = Vec::new();
    for line in page.split('\n').map(|line| line.trim_start_matches(BLANKS)) {
        if let Some(comment) = line.strip_prefix('#') {
            let words: Vec<&str> = comment.split_ascii_whitespace().collect();
            if let ["TYPE", name, kind, ..] = words[..] {
                kinds.insert(name, kind);
            }
            continue;
        }
        for (metric, name) in NAMES.iter().enumerate() {
            let kind = kinds.get(name).copied().unwrap_or_default();
            let series = match kind {
                "histogram" | "summary" | "gaugehistogram" => None,
                "counter" => line.strip_prefix(name).map(|rest| rest.strip_prefix("_total").unwrap_or(rest)),
                _ => line.strip_prefix(name),
            };
            let series = series.filter(|rest| rest.is_empty() || rest.starts_with(['{', ' ', '\t', '\r']));
            found.extend(series.and_then(|rest| match sample(rest) {
                None => Some(Found::Malformed { metric }),
                Some((labels, _)) if metric == LABELLED && !has_label(&labels) => None,
                Some((labels, value)) => Some(Found::Sample { metric, labels, bits: value.to_bits() }),
            }));
        }
    }
    found
}

fn has_label(labels: &[(String, String)]) -> bool {
    labels.iter().find(|(name, _)| name == LABEL.0).is_some_and(|(_, value)| value == LABEL.1)
}

/// Labels and value of a series, from what follows its name.
fn sample(rest: &str) -> Option<(Vec<(String, String)>, f64)> {
    let rest = rest.trim_start_matches(BLANKS);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Vec::new(), rest),
    };
    let rest = rest.strip_suffix('\r').unwrap_or(rest);
    // A value and perhaps a time, then perhaps an exemplar.
    let mut words = rest.split(BLANKS).filter(|word| !word.is_empty());
    let value = words.next()?.parse().ok()?;
    let time = match words.next() {
        Some(word) if !word.starts_with('#') => word,
        _ => return (!rest.contains('\r') || exemplar(rest)).then_some((labels, value)),
    };
    let _: f64 = time.parse().ok()?;
    let ends = words.next().is_none_or(|word| word.starts_with('#'));
    (ends && (!rest.contains('\r') || exemplar(rest))).then_some((labels, value))
}

/// Returns `true` if a carriage return is only in what follows a `#`, which nobody reads.
fn exemplar(rest: &str) -> bool {
    rest.split_once('#').is_some_and(|(before, _)| !before.contains('\r'))
}

/// Labels, and what follows their closing brace.
fn labels(inside: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    let mut rest = inside.trim_start_matches(BLANKS);
    while !rest.starts_with('}') {
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let (name, after) = rest.split_at(length);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let after = after.trim_start_matches(BLANKS).strip_prefix('=')?;
        let (value, after) = value(after.trim_start_matches(BLANKS).strip_prefix('"')?)?;
        labels.push((name.to_owned(), value));
        let after = after.trim_start_matches(BLANKS);
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start_matches(BLANKS),
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
    Some((labels, &rest[1..]))
}

/// A label's value, and what follows its closing quote.
fn value(inside: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = inside.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => value.push('\n'),
                quoted @ ('\\' | '"') => value.push(quoted),
                other => value.extend(['\\', other]),
            },
            plain => value.push(plain),
        }
    }
}
