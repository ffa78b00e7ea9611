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

/// Words of a tokenizer that sees the text as a whole, and prompts that it takes far more memory for than for their bodies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokenizing_stays_within_the_budget() {
    const SLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/spaces.json");
    let config = format!(
        "--config-text=plugins: [{{type: precise-prefix-cache-producer}}, {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}, {{type: token-producer, parameters: {{local: {{path: {SLOW}, timeout: 60s}}}}}}]"
    );
    let process = Process::start(medium_budget(), 1, &[&config]);
    let limit = process.limit();
    let connection = process.connect().await;
    for (text, expected) in [
        ("some words ".repeat(10_000), "rendered"),
        ("x".repeat(100_000), "failed"),
        ("some words ".repeat(MI / 11), "busy"),
    ] {
        let text = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        let mut readers = Vec::new();
        for _ in 0..8 {
            let stream = connection.stream().await;
            stream.send(headers(&COMPLETION, false));
            stream.send(body(&text, true));
            readers.push(reader(stream));
        }
        assert_eq!(responses(readers).await.served, 8, "without their tokens, if need be");
        let count = |result: &str| {
            process.metric(&format!(
                "usher_tokens_rendered_total{{plugin_name=\"token-producer\",result=\"{result}\"}}"
            ))
        };
        assert!(count(expected) > 0.0, "{expected}: {:#?}", process.warnings());
    }
    drop(connection);
    stayed_within(&process, medium_budget(), limit).await;
}
