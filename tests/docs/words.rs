//! Length of the pages that people read: whoever adds words takes others out.

use std::path::{Path, PathBuf};

use super::links::files;

/// Words of all hand-written pages below `docs` at most.
const MOST_IN_DOCS: usize = 30_000;

/// Words of these and all READMEs elsewhere at most.
const MOST: usize = 33_000;

/// Pages that code or benchmarks write.
const GENERATED: [&str; 2] = ["docs/reference", "docs/contributing/benchmarks.md"];

fn counts(path: &Path) -> bool {
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    let is_hand_written = !GENERATED.iter().any(|generated| path.starts_with(generated));
    is_page && is_hand_written && (path.starts_with("docs") || path.ends_with("README.md"))
}

/// Asserts that pages have so many words at most.
#[track_caller]
fn assert_short<'a>(pages: impl Iterator<Item = &'a PathBuf>, most: usize) {
    let words = |path: &Path| std::fs::read_to_string(path).unwrap().split_whitespace().count();
    let mut lengths: Vec<(usize, _)> = pages.map(|path| (words(path), path)).collect();
    lengths.sort_unstable();
    let all: usize = lengths.iter().map(|(words, _)| words).sum();
    assert!(all <= most, "{all} words instead of {most} at most; say things once. By page: {lengths:#?}");
}

#[test]
fn hand_written_pages_are_short_enough_to_be_read() {
    let mut pages = files(&["docs", "deploy", "benches"]);
    pages.push("README.md".into());
    pages.retain(|path| counts(path));
    assert!(pages.len() > 30, "{pages:?}");
    assert_short(pages.iter().filter(|path| path.starts_with("docs")), MOST_IN_DOCS);
    assert_short(pages.iter(), MOST);
}
