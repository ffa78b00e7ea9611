//! Command lines of pages have only flags that `--help` shows.

use std::fs;

use usher::cli::{CliError, parse};

/// Command lines of a page that begin with `usher`: lines of code, and code within sentences.
fn command_lines(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let blocks = text.lines().filter_map(|line| line.trim_start().strip_prefix("usher "));
    let inline = text.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("usher "));
    blocks.chain(inline).map(|line| line.split(" #").next().unwrap().to_owned()).collect()
}

/// Help of the command of a line, in full; `None`: it names none.
fn help(line: &str) -> Option<String> {
    let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
    let mut names: Vec<&str> = line.split_whitespace().take(2).take_while(is_name).collect();
    while !names.is_empty() {
        let arguments = ["usher"].iter().chain(&names).chain(&["--help"]).map(Into::into);
        match parse(arguments) {
            Err(CliError::Help(help)) => return Some(help.to_string()),
            _ => names.pop(),
        };
    }
    None
}

#[test]
fn documented_command_lines_use_existing_flags() {
    let guides = fs::read_dir("docs/guide").unwrap().map(|entry| entry.unwrap().path());
    let mut checked = 0;
    for path in guides.chain(["README.md".into(), "docs/README.md".into()]) {
        for line in command_lines(&fs::read_to_string(&path).unwrap()) {
            let Some(help) = help(&line) else { continue };
            let words = line.split_whitespace().map(|word| word.trim_matches(['[', ']', '`', ',', ')']));
            for word in words.filter(|word| word.starts_with("--")) {
                let flag = word.split('=').next().unwrap();
                let is_shown =
                    help.split(|c: char| !(c == '-' || c.is_ascii_alphanumeric())).any(|word| word == flag);
                assert!(is_shown, "{}: usher {line}: {flag} is not in --help", path.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked}");
}
