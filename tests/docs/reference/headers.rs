//! docs/reference/headers.md names the headers that the code reads and writes.

use std::collections::BTreeSet;

use super::literals::literals;

const PAGE: &str = "docs/reference/headers.md";

/// Folders that read and write requests and responses.
const FOLDERS: [&str; 6] = [
    "src/extproc",
    "src/flow",
    "src/otel",
    "crates/usher-core/src/request",
    "crates/usher-plugins/src",
    "crates/usher-wire/src/envoy",
];

/// Literals that look like names of headers: a prompt's first line, and an example in a hint.
const OTHERS: [&str; 2] = ["x-anthropic-billing-header", "x-tenant"];

/// Names in the first column of the tables.
fn named() -> BTreeSet<String> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split('|').next());
    cells.flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn header_reference_matches_the_code() {
    let named = named();
    let literals: BTreeSet<String> =
        literals(&FOLDERS).into_iter().flatten().map(|text| text.to_ascii_lowercase()).collect();
    let is_header = |text: &&String| {
        let rest = text.strip_prefix("x-").unwrap_or_default();
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let headers = literals.iter().filter(is_header).filter(|text| !OTHERS.contains(&text.as_str()));
    let lacks: Vec<_> = headers.filter(|header| !named.contains(*header)).collect();
    let surplus: Vec<_> = named.iter().filter(|name| !literals.contains(*name)).collect();
    assert!(named.len() > 30, "{named:?}");
    assert!(lacks.is_empty() && surplus.is_empty(), "not in {PAGE}: {lacks:?}; not in the code: {surplus:?}");
}
