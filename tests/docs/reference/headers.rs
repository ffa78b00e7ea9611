//! docs/reference/headers.md, from the table of headers, which names those that the code reads and writes.

use std::collections::BTreeSet;

use usher_wire::headers::{Header, METADATA, OF_REQUESTS, OF_RESPONSES, Use};

use super::literals::literals;
use super::page::{assert_written, row};

/// Folders that read and write requests and responses; the table is in none of them.
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

fn table(title: &str, names: &str, headers: &[Header]) -> String {
    let mut text = format!("## {title}\n\n| {names} | use | meaning |\n|---|---|---|\n");
    for Header { names, used, meaning } in headers {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let used = match used {
            Use::Read => "read",
            Use::ReadAndSet => "read, set",
            Use::Set => "set",
            Use::Removed => "removed",
        };
        text += &row([&names.join(", "), used, meaning]);
    }
    text
}

#[test]
fn every_header_has_its_row() {
    let tables = [
        table("Of requests", "header", OF_REQUESTS),
        table("Of responses", "header", OF_RESPONSES),
        table("Metadata", "key", METADATA),
    ];
    assert_written("docs/reference/headers.md", "crates/usher-wire/src/headers.rs", &tables.join("\n"));
}

#[test]
fn table_of_headers_matches_the_code() {
    let headers = [OF_REQUESTS, OF_RESPONSES, METADATA].concat();
    let named: BTreeSet<String> =
        headers.iter().flat_map(|header| header.names).map(|name| (*name).to_owned()).collect();
    let literals: BTreeSet<String> =
        literals(&FOLDERS).into_iter().flatten().map(|text| text.to_ascii_lowercase()).collect();
    let is_header = |text: &&String| {
        let rest = text.strip_prefix("x-").unwrap_or_default();
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let used = literals.iter().filter(is_header).filter(|text| !OTHERS.contains(&text.as_str()));
    let lacks: Vec<_> = used.filter(|header| !named.contains(*header)).collect();
    let surplus: Vec<_> = named.iter().filter(|name| !literals.contains(*name)).collect();
    assert!(named.len() > 30, "{named:?}");
    assert!(
        lacks.is_empty() && surplus.is_empty(),
        "not in the table: {lacks:?}; not in the code: {surplus:?}"
    );
}
