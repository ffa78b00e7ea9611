//! What docs/rollout.md shows is what happens.

use std::process::Command;

const PAGE: &str = include_str!("../../docs/rollout.md");

#[test]
fn the_example_is_what_simulate_says() {
    let command = PAGE.lines().find(|line| line.contains("usher capacity simulate")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(command.split_whitespace().skip(1))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = PAGE.split_once("```text\n").unwrap().1.split_once("```").unwrap().0;
    assert_eq!(shown, String::from_utf8_lossy(&output.stdout));
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
