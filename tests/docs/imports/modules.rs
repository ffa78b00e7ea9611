//! The modules of all packages, read from their files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item};

/// A module, without what is compiled for tests only.
pub struct Module {
    /// Package and names from its root down.
    pub path: Vec<String>,
    /// Place of its file in [`Modules`].
    pub file: usize,
    pub items: Vec<Item>,
}

/// All modules.
#[derive(Default)]
pub struct Modules {
    pub all: Vec<Module>,
    pub by_path: BTreeMap<Vec<String>, usize>,
    /// Files, seen from the root of the workspace.
    files: Vec<String>,
}

/// Returns `true` if something is compiled for tests only.
pub fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let words = list.tokens.to_string();
                let mut words = words.split(|letter: char| !letter.is_alphanumeric());
                words.clone().any(|word| word == "test") && !words.any(|word| word == "not")
            })
    })
}

impl Modules {
    /// Modules of the package at this folder and of all below `crates/`.
    pub fn of_packages(root: &Path) -> Self {
        let mut modules = Self::default();
        modules.read(root, "src/lib.rs", vec!["usher".to_owned()]);
        let mut packages: Vec<PathBuf> =
            fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()).collect();
        packages.sort();
        for package in packages {
            let name = package.file_name().unwrap().to_str().unwrap();
            modules.read(root, &format!("crates/{name}/src/lib.rs"), vec![name.replace('-', "_")]);
        }
        modules
    }

    fn read(&mut self, root: &Path, file: &str, path: Vec<String>) {
        let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.files.push(file.to_owned());
        let at = Path::new(file);
        let is_top = ["lib.rs", "mod.rs"].iter().any(|name| at.ends_with(name));
        let folder = if is_top { at.parent().unwrap().to_owned() } else { at.with_extension("") };
        self.add(root, &folder, path, self.files.len() - 1, parsed.items);
    }

    fn add(&mut self, root: &Path, folder: &Path, path: Vec<String>, file: usize, items: Vec<Item>) {
        for item in &items {
            let Item::Mod(module) = item else { continue };
            if is_of_tests(&module.attrs) {
                continue;
            }
            let name = module.ident.to_string();
            let mut inner = path.clone();
            inner.push(name.clone());
            match &module.content {
                Some((_, items)) => self.add(root, &folder.join(&name), inner, file, items.clone()),
                None => {
                    let flat = folder.join(format!("{name}.rs"));
                    let found =
                        if root.join(&flat).exists() { flat } else { folder.join(&name).join("mod.rs") };
                    self.read(root, found.to_str().unwrap(), inner);
                }
            }
        }
        self.by_path.insert(path.clone(), self.all.len());
        self.all.push(Module { path, file, items });
    }

    /// A file, seen from the root of the workspace.
    pub fn file(&self, file: usize) -> &str {
        &self.files[file]
    }

    /// The folder that a file belongs to: the first below the source of a package; `usher_core` has several, other
    /// packages are one. `None` for the root of a package.
    pub fn folder(&self, file: usize) -> Option<String> {
        let path = &self.all.iter().find(|module| module.file == file)?.path;
        match path[0].as_str() {
            "usher" | "usher_core" => path.get(1).cloned(),
            package => Some(package.trim_start_matches("usher_").to_owned()),
        }
    }

    /// All folders.
    pub fn folders(&self) -> BTreeSet<String> {
        (0..self.files.len()).filter_map(|file| self.folder(file)).collect()
    }
}
