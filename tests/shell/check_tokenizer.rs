//! `usher check` and the tokenizer in this process.

use std::fs;

use usher::cli::check::Output;

use crate::check::check;

/// Made by `make.py` there.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer");

fn config(local: &str) -> String {
    format!("plugins:\n- type: token-producer\n  parameters:\n    local: {local}\n")
}

/// Text with its line breaks as spaces: `check` wraps lines.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn files_and_special_tokens_are_shown() {
    let (code, out, err) = check("-", &config(&format!("{{path: {FOLDER}/bytes.json}}")), Output::Text);
    assert_eq!((code, err.as_str()), (0, ""));
    let said = words(&out);
    for part in [
        format!("with {FOLDER}/bytes.json (908 tokens, 8 of them added, some 2 MiB), for 50ms at most;"),
        "Puts <|bos|> before completions and nothing behind them.".to_owned(),
        format!("Chats by the template in {FOLDER}/tokenizer_config.json, contents as strings,"),
        "with bos_token <|bos|>, eos_token <|eos|>.".to_owned(),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    let local = format!("{{path: {FOLDER}/spaces.json, chatTemplate: {FOLDER}/parts.jinja}}");
    let said = words(&check("-", &config(&local), Output::Text).1);
    assert!(said.contains("for 50ms at most; then estimates"), "{said}");
    assert!(said.contains("parts.jinja, contents as lists of parts,"), "{said}");
}

#[test]
fn slow_path_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(format!("{FOLDER}/spaces.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
    tokenizer["added_tokens"][0]["lstrip"] = true.into();
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let said = words(&check("-", &config(&format!("{{path: {}}}", folder.path().display())), Output::Text).1);
    assert!(said.contains("for 50ms at most, on the slow path;"), "{said}");
}

#[test]
fn a_folder_without_a_template_has_no_chats() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(format!("{FOLDER}/bytes.json"), folder.path().join("tokenizer.json")).unwrap();
    let (code, out, _) = check("-", &config(&format!("{{path: {}}}", folder.path().display())), Output::Text);
    assert_eq!(code, 0);
    assert!(words(&out).contains("Has no chat template: chats are not tokenized."), "{out}");
}

#[test]
fn unreadable_tokenizer_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.jinja");
    fs::write(&broken, "{% if x %}\n{% endfor %}").unwrap();
    let broken = broken.display();
    let table = [
        (
            format!("{{path: {FOLDER}/none.json}}"),
            19,
            format!("{FOLDER}/none.json can't be read: No such file"),
        ),
        (format!("{{path: {FOLDER}}}"), 19, format!("{FOLDER}/tokenizer.json can't be read: No such file")),
        (
            format!("{{path: {FOLDER}/parts.jinja}}"),
            19,
            "parts.jinja is no tokenizer that can be read:".to_owned(),
        ),
        (
            format!("{{path: {FOLDER}/bytes.json, chatTemplate: none.jinja}}"),
            46 + FOLDER.len(),
            "none.jinja can't be read: No such file".to_owned(),
        ),
        (
            format!("{{path: {FOLDER}/bytes.json, chatTemplate: {broken}}}"),
            46 + FOLDER.len(),
            format!("the chat template of {broken} can't be read: line 2: "),
        ),
    ];
    for (local, column, message) in table {
        let (code, _, err) = check("-", &config(&local), Output::Text);
        assert_eq!(code, 1, "{err}");
        let place = format!("<stdin>:4:{column}: plugin 'token-producer': ");
        let first = err.lines().next().unwrap_or_default();
        assert!(first.starts_with(&place) && first.contains(&message), "{local}: {err}");
    }
}

#[test]
fn effective_producer_of_several_is_noted() {
    let producer = |name: &str| format!("- {{type: precise-prefix-cache-producer, name: {name}}}\n");
    let tokens =
        |name: &str| format!("- {{type: token-producer, name: {name}, parameters: {{vllm: {{}}}}}}\n");
    let scorer = "- {type: precise-prefix-cache-scorer, name: precise}\n".to_owned();
    let own = "precise-prefix-cache-producer";
    // plugins, words of the notes
    let table = [
        (vec![producer("x"), scorer.clone(), tokens("t")], &[][..]),
        (
            vec![producer("x"), producer(own), scorer.clone()],
            &["'x', 'precise-prefix-cache-producer': 'precise' scores by 'precise-prefix-cache-producer'"],
        ),
        (
            vec![producer("x"), producer("z"), scorer],
            &["'x', 'z': 'precise' scores by none of them and follows KV events by itself"],
        ),
        (
            vec![producer(own), tokens("first"), tokens("second")],
            &["'second' is asked for no tokens: those of 'first', the first in the configuration, count"],
        ),
    ];
    for (plugins, expected) in table {
        let text = format!("plugins:\n{}", plugins.concat());
        let (code, out, err) = check("-", &text, Output::Text);
        assert_eq!((code, err.as_str()), (0, ""), "{text}");
        let said = words(&out);
        for note in expected {
            assert!(said.contains(note), "{note}: {said}");
        }
        let noted = said.contains("several producers") || said.contains("asked for no tokens");
        assert_eq!(noted, !expected.is_empty(), "{said}");
    }
}
