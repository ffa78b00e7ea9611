//! Tokenizers and their vocabularies.

use std::path::Path;
use std::process::Command;

use super::process::program;
use super::*;
use crate::vocabulary::{Model, tokenizer};

/// Entries of a vocabulary, as large models have.
const ENTRIES: usize = 128_000;

fn config(tokenizer: &Path) -> String {
    format!("plugins: [{{type: token-producer, parameters: {{local: {{path: {}}}}}}}]", tokenizer.display())
}

/// Runs Usher where it fails at once. Returns the exit code and what it said.
fn fails(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program()).args(args).env_remove("NAMESPACE").output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The number before these words.
fn number(text: &str, behind: &str) -> usize {
    let before = text.split_once(behind).unwrap_or_else(|| panic!("{behind:?} is not in {text}")).0;
    before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn a_vocabulary_is_reserved_and_refused_without_room() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pool) = (folder.path().join("tokenizer.json"), folder.path().join("epp.yaml"));
    std::fs::write(&file, tokenizer(Model::Bpe, ENTRIES)).unwrap();
    let text = config(&file);
    let column = text.find(file.to_str().unwrap()).unwrap() + 1;
    std::fs::write(&pool, text).unwrap();
    let pool = pool.to_str().unwrap();

    let serve = ["serve", "--config-file", pool, "--memory-budget=64Mi", "--endpoints-file=none.yaml"];
    let (code, serve) = fails(&serve);
    assert_eq!(code, Some(2), "{serve}");
    let (code, check) = fails(&["check", "--memory-budget=64Mi", pool]);
    assert_eq!(code, Some(1), "{check}");
    for said in [&serve, &check] {
        let place = format!("{pool}:1:{column}: plugin 'token-producer': {} takes up to ", file.display());
        assert!(said.contains(&place), "{said}");
        assert!(said.contains("the memory budget has room for 12"), "{said}");
    }
    let (loading, least) = (number(&serve, " MiB while it is read"), number(&serve, "Mi at least"));

    let budget = format!("--memory-budget={least}Mi");
    let checked = Command::new(program()).args(["check", &budget, pool]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let shown = String::from_utf8(checked.stdout).unwrap();
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let loaded = number(&shown, " MiB), for 50ms");

    let without = Process::start(4 * least, 1, &[]);
    let with = Process::start(4 * least, 1, &["--config-file", pool]);
    let page = with.page();
    let counted = page.metric("usher_memory_tokenizers_bytes") as usize;
    assert_eq!(counted.div_ceil(MI), loaded);
    assert!((20 * MI..100 * MI).contains(&counted), "{counted}");
    assert_eq!(without.metric("usher_memory_tokenizers_bytes"), 0.0);
    // All of it is counted but for what the allocator keeps, and it never takes more than was reserved.
    let [base, more] = [&without, &with].map(|process| process.metric("usher_memory_base_bytes") as usize);
    assert!(more < base + counted, "{more} instead of {base}, beside {counted}");
    let [peak, most] = [&without, &with].map(Process::peak);
    assert!(most < peak + loading * MI, "{most} instead of {peak} with {loading} MiB");
}
