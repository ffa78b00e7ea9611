//! Fields of log lines that operators read: values in words, not the program's own Debug forms.

use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

/// Macros of the levels that are logged by default.
const MACROS: [&str; 3] = ["error", "warn", "info"];

/// Fields whose Debug form is what operators know: a time with its unit, and a name of RFC 9113.
const KNOWN: [(&str, &str); 2] =
    [("src/extproc/server.rs", "drain_timeout"), ("src/extproc/connection_metrics.rs", "reason")];

/// Fields that are logged in their Debug form, and the number of log macros that were read.
#[derive(Default)]
struct DebugFields {
    macros: usize,
    fields: Vec<String>,
}

impl DebugFields {
    /// Reads every log macro in some code, also within other macros.
    fn read(&mut self, code: TokenStream) {
        let tokens: Vec<TokenTree> = code.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            let TokenTree::Group(group) = token else { continue };
            self.read(group.stream());
            let is_macro = at >= 2
                && is(tokens.get(at - 1), '!')
                && MACROS.iter().any(|name| tokens[at - 2].to_string() == *name);
            if is_macro {
                self.macros += 1;
                self.read_fields(&group.stream().into_iter().collect::<Vec<_>>());
            }
        }
    }

    /// Notes what is behind a `?` at the start of a field or of its value.
    fn read_fields(&mut self, tokens: &[TokenTree]) {
        for at in (0..tokens.len()).filter(|at| is(tokens.get(*at), '?')) {
            if at == 0 || is(tokens.get(at - 1), ',') || is(tokens.get(at - 1), '=') {
                self.fields.push(tokens.get(at + 1).map(ToString::to_string).unwrap_or_default());
            }
        }
    }
}

fn is(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

/// Source files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn debug_fields(code: &str) -> DebugFields {
    let mut fields = DebugFields::default();
    fields.read(code.parse().unwrap());
    fields
}

#[test]
fn debug_fields_are_found_wherever_they_stand() {
    let table = [
        ("tracing::info!(?a, b, \"c?\");", vec!["a"]),
        ("select! { () = x => { warn!(peer = ?of(y), \"c\") } }", vec!["of"]),
        ("tracing::error!(a = b()?, c = %d, \"e\");", vec![]),
        ("tracing::debug!(?a, \"b\");", vec![]),
    ];
    for (code, fields) in table {
        assert_eq!(debug_fields(code).fields, fields, "{code}");
    }
}

#[test]
fn logged_values_are_words_not_debug_forms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("crates"), &mut files);
    let (mut macros, mut found) = (0, Vec::new());
    for path in files {
        let fields = debug_fields(&std::fs::read_to_string(&path).unwrap());
        macros += fields.macros;
        let path = path.strip_prefix(root).unwrap().display().to_string();
        found.extend(fields.fields.into_iter().map(|field| (path.clone(), field)));
    }
    found.retain(|(path, field)| !KNOWN.iter().any(|(file, name)| file == path && name == field));
    assert!(macros > 100, "{macros}");
    assert!(found.is_empty(), "log these with % or as text: {found:?}");
}
