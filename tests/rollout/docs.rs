//! What docs/rollout.md shows is what happens.

use std::process::Command;

const PAGE: &str = include_str!("../../docs/rollout.md");

/// What a command of the page prints, and what the page shows of it.
fn printed_and_shown(part: &str) -> (String, &'static str) {
    let at = PAGE.find(part).unwrap();
    let line = PAGE[..at].rfind('\n').map_or(0, |end| end + 1);
    let command = PAGE[line..].lines().next().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(command.split_whitespace().skip(1))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = PAGE[at..].split_once("```text\n").unwrap().1.split_once("```").unwrap().0;
    (String::from_utf8(output.stdout).unwrap(), shown)
}

#[test]
fn the_example_is_what_simulate_says() {
    let (printed, shown) = printed_and_shown("usher capacity simulate");
    assert_eq!(shown, printed);
}

#[test]
fn the_demo_is_what_it_prints_below_its_heading() {
    let (printed, shown) = printed_and_shown("usher demo --scenario rollout");
    let (_, table) = printed.split_once("\n\n").unwrap();
    assert_eq!(shown, table);
}

#[test]
fn every_state_and_condition_is_explained() {
    for state in usher::capacity::State::ALL {
        assert!(PAGE.contains(&format!("| `{state}` |")), "{state}");
    }
    let own = [
        usher::capacity::Condition::BatchTimeout,
        usher::capacity::Condition::Unschedulable,
        usher::capacity::Condition::TopologyUnsatisfied,
        usher::capacity::Condition::Deadlock,
        usher::capacity::Condition::Paused,
    ];
    for condition in own {
        assert!(PAGE.contains(&format!("`{condition:?}`")), "{condition:?}");
    }
}

/// The sources of tests, of those beside the code, too.
fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_table_of_failures_names_is_there() {
    let mut text = String::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    ["src", "crates", "tests"].iter().for_each(|folder| sources(&root.join(folder), &mut text));
    let section = PAGE.split_once("## What it does when things go wrong\n").unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 4, "{rows:?}");
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            let name = name.rsplit("::").next().unwrap();
            assert!(text.contains(&format!("fn {name}(")), "{name}");
        }
    }
}
