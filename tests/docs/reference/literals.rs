//! String literals of the program, outside of its tests.

use std::path::Path;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Token};

/// The literals of each file below these folders, in their order.
pub(crate) fn literals(folders: &[&str]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    folders.iter().for_each(|folder| read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found));
    found
}

fn read(folder: &Path, found: &mut Vec<Vec<String>>) {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        // Tests in files of their own.
        if name == "tests" || name.ends_with("_properties") {
            continue;
        }
        if path.is_dir() {
            read(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut literals = Literals::default();
            literals.visit_file(&file);
            found.push(literals.0);
        }
    }
}

#[derive(Default)]
struct Literals(Vec<String>);

impl<'ast> Visit<'ast> for Literals {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test")
        };
        if !module.attrs.iter().any(is_test) {
            visit::visit_item_mod(self, module);
        }
    }

    // Of macros like `vec!`, whose arguments are expressions.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Ok(arguments) = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            let mut inner = Literals::default();
            arguments.iter().for_each(|argument| inner.visit_expr(argument));
            self.0.extend(inner.0);
        }
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.0.push(text.value());
    }

    fn visit_lit_byte_str(&mut self, text: &'ast syn::LitByteStr) {
        self.0.extend(String::from_utf8(text.value()));
    }
}
