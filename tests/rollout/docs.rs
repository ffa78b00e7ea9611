//! Checks of docs/guide/rollout.md against the program and its code.

use std::process::Command;

const PAGE: &str = include_str!("../../docs/guide/rollout.md");

/// Output of a command of the page, and the part of it that the page shows.
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
fn simulate_prints_the_lines_on_the_page() {
    let (printed, shown) = printed_and_shown("usher capacity simulate");
    let mut rest = printed.as_str();
    // `…` stands for lines that the page leaves out.
    for part in shown.split("…\n") {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("not printed in this order: {part}")).1;
    }
}

#[test]
fn demo_output_matches_the_page() {
    let (printed, shown) = printed_and_shown("usher demo --scenario rollout");
    let (_, verdict) = printed.split_once("\n=> ").unwrap();
    assert_eq!(shown.strip_prefix("=> "), Some(verdict));
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
