//! Imports point down, and never in a ring of files: of the modules of all packages, without their tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the exception for tests does not reach their helpers")]

mod graph;
mod modules;
mod resolve;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use graph::rings;
use modules::Modules;
use resolve::{Import, imports};

const ORDER_START: &str = "<!-- The order of imports: a test reads it. -->\n```\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn all_imports() -> (Modules, Vec<Import>) {
    let modules = Modules::of_packages(root());
    let found = imports(&modules);
    (modules, found)
}

#[test]
fn no_files_import_each_other_in_a_ring() {
    let (modules, imports) = all_imports();
    assert!(imports.len() > 1000, "{}", imports.len());
    let mut found_rings = String::new();
    for ring in rings(&imports) {
        let _ = writeln!(found_rings, "\na ring of {} files:", ring.len());
        for import in imports.iter().filter(|import| ring.contains(&import.from) && ring.contains(&import.to))
        {
            let (from, to) = (modules.file(import.from), modules.file(import.to));
            let names = import.names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let _ = writeln!(found_rings, "  {from} -> {to}: {names}");
        }
    }
    assert!(found_rings.is_empty(), "{found_rings}");
}

/// The floor of each folder: the block in docs/contributing/architecture.md, from the top.
fn floors() -> BTreeMap<String, usize> {
    let page = std::fs::read_to_string(root().join("docs/contributing/architecture.md")).unwrap();
    let (_, rest) = page.split_once(ORDER_START).unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let mut floors = BTreeMap::new();
    for (floor, line) in block.lines().enumerate() {
        for folder in line.split_whitespace() {
            assert_eq!(floors.insert(folder.to_owned(), floor), None, "{folder} stands there twice");
        }
    }
    floors
}

#[test]
fn imports_follow_the_order_of_the_architecture_page() {
    let floors = floors();
    let (modules, imports) = all_imports();
    let mut wrong = String::new();
    for folder in modules.folders() {
        assert!(
            floors.contains_key(&folder),
            "docs/contributing/architecture.md doesn't say where {folder} stands"
        );
    }
    for import in &imports {
        let (from, to) = (modules.folder(import.from), modules.folder(import.to));
        if let (Some(from_folder), Some(to_folder)) = (&from, &to)
            && from_folder != to_folder
            && floors[from_folder] >= floors[to_folder]
        {
            let (from, to) = (modules.file(import.from), modules.file(import.to));
            let _ = writeln!(wrong, "  {from} -> {to}: {:?}", import.names);
        }
    }
    assert!(wrong.is_empty(), "imports that don't point down:\n{wrong}");
}
