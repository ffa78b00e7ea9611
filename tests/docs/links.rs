//! Links from one document to another, and pages that sources and manifests name, are there.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

/// Folders of documents.
const FOLDERS: [&str; 3] = ["docs", "deploy", "benches"];
const AT_THE_TOP: [&str; 4] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
/// Other files that name pages.
const SOURCES: [&str; 6] = ["src", "crates", "tests", "benches", "deploy", ".github"];

fn documents() -> Vec<PathBuf> {
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let pages = files(&FOLDERS).into_iter().filter(is_page);
    pages.chain(AT_THE_TOP.map(PathBuf::from)).collect()
}

/// All files below these folders.
pub(super) fn files(folders: &[&str]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// The names that a page of this text has for its headings: lower case, without punctuation, a number after
/// the second of the same name.
fn headings(text: &str) -> HashSet<String> {
    let (mut names, mut times, mut is_code) = (HashSet::new(), HashMap::new(), false);
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let Some(heading) = heading.trim_start_matches('#').strip_prefix(' ') else { continue };
        let kept = heading.chars().filter(|&c| c.is_alphanumeric() || "-_ ".contains(c));
        let name: String =
            kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let before: &mut usize = times.entry(name.clone()).or_default();
        names.insert(if *before == 0 { name } else { format!("{name}-{before}") });
        *before += 1;
    }
    names
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(plain.pop(), "{} leaves the repository", path.display()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn links_resolve_to_files_and_headings() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            seen += 1;
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => plain(&document.with_file_name(path)),
            };
            let leads = target.exists()
                && (heading.is_empty()
                    || headings(&std::fs::read_to_string(&target).unwrap()).contains(heading));
            if !leads {
                wrong.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(seen > 100, "only {seen} links");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Paths of pages in a text, from the top of the repository.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("docs/").filter_map(|(at, _)| {
        let (before, rest) = text.split_at(at);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"/-_.".contains(c));
        let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
        // Part of another name, or of a URL.
        let is_other = before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
            || before.ends_with('/') && !before.ends_with("../");
        (!is_other && name.ends_with(".md")).then_some(name)
    })
}

#[test]
fn named_pages_exist() {
    let tops = AT_THE_TOP.iter().chain(&["Makefile"]).map(PathBuf::from);
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in files(&SOURCES).into_iter().chain(tops) {
        // What isn't text names no page.
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for name in named(&text) {
            seen += 1;
            if !Path::new(name).exists() {
                wrong.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(seen > 50, "only {seen} names");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
