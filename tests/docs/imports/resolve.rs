//! Files that names come from.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, ItemUse, Macro, UseTree, Visibility};

use super::modules::{Module, Modules, is_of_tests};

/// Names that one file takes from another.
pub struct Import {
    /// Places of the files in [`Modules`].
    pub from: usize,
    pub to: usize,
    pub names: BTreeSet<String>,
}

/// Names in a module.
#[derive(Default)]
struct Names {
    /// Items that it defines, modules aside.
    defined: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths of at least two names, as they are written.
    paths: BTreeSet<Vec<String>>,
    /// Paths written outside of `use`.
    written: BTreeSet<String>,
}

#[derive(Clone)]
struct Use {
    path: Vec<String>,
    /// Name that the path has from then on; `*` for all that is there.
    name: String,
    is_public: bool,
}

fn leaves(tree: &UseTree, before: &[String], is_public: bool, uses: &mut Vec<Use>) {
    let with = |name: String| before.iter().cloned().chain([name]).collect::<Vec<_>>();
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &with(path.ident.to_string()), is_public, uses),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, before, is_public, uses)),
        UseTree::Glob(_) => uses.push(Use { path: before.to_vec(), name: "*".to_owned(), is_public }),
        UseTree::Name(name) if name.ident == "self" => {
            uses.push(Use { path: before.to_vec(), name: before.last().unwrap().clone(), is_public });
        }
        UseTree::Name(name) => {
            uses.push(Use { path: with(name.ident.to_string()), name: name.ident.to_string(), is_public });
        }
        UseTree::Rename(rename) => {
            let path = if rename.ident == "self" { before.to_vec() } else { with(rename.ident.to_string()) };
            uses.push(Use { path, name: rename.rename.to_string(), is_public });
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        _ => return None,
    })
}

impl Names {
    fn of(module: &Module) -> Self {
        let mut names = Self::default();
        for item in module.items.iter().filter(|item| !is_of_tests(attributes(item))) {
            names.defined.extend(defined(item));
            // Those inside are modules of their own.
            if !matches!(item, Item::Mod(_)) {
                names.visit_item(item);
            }
        }
        names
    }

    /// Notes the paths among the tokens of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    self.written.insert(name.clone());
                    if colons != 2 {
                        self.keep(std::mem::take(&mut path));
                    }
                    path.push(name);
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && colons < 2 => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.keep(std::mem::take(&mut path));
            colons = 0;
        }
        self.keep(path);
    }

    fn keep(&mut self, path: Vec<String>) {
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_visibility(&mut self, _: &'a Visibility) {}

    fn visit_item(&mut self, item: &'a Item) {
        if !is_of_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'a ImplItem) {
        let attributes = match item {
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Const(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_of_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        leaves(&item.tree, &[], !matches!(item.vis, Visibility::Inherited), &mut self.uses);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.keep(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_ident(&mut self, name: &'a proc_macro2::Ident) {
        self.written.insert(name.to_string());
    }

    fn visit_macro(&mut self, called: &'a Macro) {
        self.visit_path(&called.path);
        self.scan(called.tokens.clone());
    }
}

struct Resolver<'a> {
    modules: &'a Modules,
    names: Vec<Names>,
}

/// Target of a path, by the place of a module.
enum Target {
    Module(usize),
    /// An item that this module defines.
    Item(usize),
}

/// Names that are looked up on the way at most; re-exports may be written in circles.
const LONGEST: usize = 32;

impl Resolver<'_> {
    fn child(&self, module: usize, name: &str) -> Option<usize> {
        let mut path = self.modules.all[module].path.clone();
        path.push(name.to_owned());
        self.modules.by_path.get(&path).copied()
    }

    /// Target of a path that is written in this module; `None` where that is another package.
    fn resolve(&self, module: usize, path: &[String], left: usize) -> Option<Target> {
        let own = &self.modules.all[module].path;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.walk(*self.modules.by_path.get(&own[..1])?, rest, left),
            "self" => self.walk(module, rest, left),
            "super" => {
                let above = *self.modules.by_path.get(&own[..own.len() - 1])?;
                if rest.first().is_some_and(|next| next == "super") {
                    self.resolve(above, rest, left)
                } else {
                    self.walk(above, rest, left)
                }
            }
            package if package != "usher" && self.modules.by_path.contains_key(&path[..1]) => {
                self.walk(self.modules.by_path[&path[..1]], rest, left)
            }
            _ => self.walk(module, path, left),
        }
    }

    fn walk(&self, module: usize, path: &[String], left: usize) -> Option<Target> {
        let Some((name, rest)) = path.split_first() else { return Some(Target::Module(module)) };
        let left = left.checked_sub(1)?;
        let names = &self.names[module];
        // A module and a function may have the same name; what has nothing behind it is the function.
        let is_last = rest.is_empty();
        let has_item = names.defined.contains(name) || names.uses.iter().any(|found| found.name == *name);
        if let Some(child) = self.child(module, name).filter(|_| !is_last || !has_item) {
            return self.walk(child, rest, left);
        }
        if names.defined.contains(name) {
            return Some(Target::Item(module));
        }
        let follow = |found: &Use| {
            let path: Vec<String> = found.path.iter().chain(rest).cloned().collect();
            // What is called as its package is one.
            if found.path.first() == Some(name) { None } else { self.resolve(module, &path, left) }
        };
        if let Some(found) = names.uses.iter().find(|found| found.name == *name) {
            return follow(found);
        }
        names.uses.iter().filter(|found| found.name == "*").find_map(|found| {
            let Target::Module(all) = self.resolve(module, &found.path, left)? else { return None };
            (all != module).then(|| self.walk(all, path, left))?
        })
    }
}

/// Imports of all files from each other. A name that is only passed on (`pub use`) is taken by
/// whoever uses it from where it is defined.
pub fn imports(modules: &Modules) -> Vec<Import> {
    let resolver = Resolver { modules, names: modules.all.iter().map(Names::of).collect() };
    let mut found: BTreeMap<(usize, usize), BTreeSet<String>> = BTreeMap::new();
    for (module, names) in resolver.names.iter().enumerate() {
        let from = modules.all[module].file;
        let mut take = |path: &[String]| {
            if let Some(Target::Item(of)) = resolver.resolve(module, path, LONGEST)
                && modules.all[of].file != from
            {
                let name = path.last().unwrap().clone();
                found.entry((from, modules.all[of].file)).or_default().insert(name);
            }
        };
        for used in &names.uses {
            if used.name == "*" {
                for name in names.written.iter().filter(|_| !used.is_public) {
                    take(&[used.path.clone(), vec![name.clone()]].concat());
                }
            } else if !used.is_public || names.written.contains(&used.name) {
                take(&used.path);
            }
        }
        names.paths.iter().for_each(|path| take(path));
    }
    found.into_iter().map(|((from, to), names)| Import { from, to, names }).collect()
}
