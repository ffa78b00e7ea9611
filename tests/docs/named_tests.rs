//! The tests that pages name, and those that every rule of `usher doctor` needs, are there.

use std::collections::BTreeSet;
use std::path::Path;

use syn::visit::{self, Visit};

/// The functions of all tests, and the texts that they are written with.
#[derive(Default)]
struct Tests {
    functions: BTreeSet<String>,
    texts: BTreeSet<String>,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    let names = |attribute: &syn::Attribute| {
        attribute.path().segments.last().is_some_and(|name| name.ident == "test")
    };
    attributes.iter().any(names)
}

impl<'ast> Visit<'ast> for Tests {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if is_test(&function.attrs) {
            self.functions.insert(function.sig.ident.to_string());
        }
        visit::visit_item_fn(self, function);
    }

    /// `proptest!` has its functions as tokens.
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let mut after_fn = false;
        self.visit_tokens(called.tokens.clone(), &mut after_fn);
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.texts.insert(text.value());
    }
}

impl Tests {
    fn visit_tokens(&mut self, tokens: proc_macro2::TokenStream, after_fn: &mut bool) {
        use proc_macro2::TokenTree::{Group, Ident, Literal, Punct};
        for token in tokens {
            match token {
                Group(group) => self.visit_tokens(group.stream(), after_fn),
                Ident(name) => {
                    if *after_fn {
                        self.functions.insert(name.to_string());
                    }
                    *after_fn = name == "fn";
                }
                Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.texts.insert(text.value());
                    }
                }
                Punct(_) => {}
            }
        }
    }

    fn read(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.read(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let file =
                    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                self.visit_file(&file);
            }
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Tests below these folders.
fn tests(folders: &[&str]) -> Tests {
    let mut tests = Tests::default();
    folders.iter().for_each(|folder| tests.read(&root().join(folder)));
    tests
}

/// The rows of the table of a page that has this head.
fn rows(page: &str, head: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let table = text.lines().skip_while(|line| *line != head).take_while(|line| line.starts_with('|'));
    let rows: Vec<String> = table.skip(2).map(str::to_owned).collect();
    assert!(rows.len() > 4, "{page}: {rows:?}");
    rows
}

/// Names between backticks in the last cell of a row.
fn named(row: &str) -> Vec<&str> {
    let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
    let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    assert!(!names.is_empty(), "{row}");
    names
}

#[test]
fn tests_named_on_pages_exist() {
    let tests = tests(&["src", "crates", "tests"]);
    let tables = [
        ("docs/guide/rollout.md", "| what happens | what Usher does | test |"),
        ("SECURITY.md", "| threat | bound | test |"),
    ];
    for (page, head) in tables {
        for row in rows(page, head) {
            let mut folder = root().to_owned();
            for name in named(&row) {
                if name.ends_with(".rs") {
                    // A name alone is in the folder of the one before it.
                    let path = if name.contains('/') { root().join(name) } else { folder.join(name) };
                    assert!(path.exists(), "{page}: {name}");
                    folder = path.parent().unwrap().to_owned();
                } else {
                    let function = name.rsplit("::").next().unwrap();
                    assert!(tests.functions.contains(function), "{page}: {name}");
                }
            }
        }
    }
}

#[test]
fn every_rule_of_doctor_is_in_a_test() {
    let tests = tests(&["src/doctor/check", "tests/shell/doctor", "tests/kubernetes"]);
    for rule in usher::doctor::rules::ALL {
        assert!(tests.texts.contains(rule.code), "{}", rule.code);
    }
}
