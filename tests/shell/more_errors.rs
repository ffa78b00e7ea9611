//! Commands that end at the first error of a configuration say how many there are.

use std::process::{Command, Output};

fn usher(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_usher")).args(arguments).env_remove("NAMESPACE").output().unwrap()
}

#[test]
fn first_error_of_a_configuration_names_the_command_that_shows_all() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let endpoints = put("endpoints.yaml", "endpoints: [{name: a, address: 127.0.0.1, port: '80'}]\n");
    let request = put("request.json", "{\"model\": \"m\", \"prompt\": \"x\"}");
    let wrong = put(
        "wrong.yaml",
        "plugins:\n- {type: queue-scorer, weight: 1}\n- {type: no-such-type}\nsurprise: true\n",
    );
    let single = put("single.yaml", "plugins:\n- {type: no-such-type}\n");
    // Wrong where plugins are built, not where the text is read.
    let built = put("built.yaml", "plugins:\n- {type: no-such-type}\n- {type: no-other-type}\n");
    let commands = [
        vec!["serve", "--admin-address=off", "--endpoints-file", &endpoints, "--config-file"],
        vec!["explain", "--request", &request, "--endpoints-file", &endpoints, "--config-file"],
        vec!["replay", "--workload=poisson", "--requests=100", "--config-file"],
    ];
    for command in commands {
        for (file, count) in [(&wrong, 3), (&built, 2), (&single, 1)] {
            let output = usher(&[&command[..], &[file]].concat());
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
            let last = text.lines().last().unwrap_or_default();
            let hint = format!("; `usher check {file}` shows all {count} errors");
            assert!(last.starts_with(&format!("usher: {file}:")), "{text}");
            assert_eq!(last.ends_with(&hint), count > 1, "{command:?}: {text}");
            assert_eq!(last.contains("usher check"), count > 1, "{text}");
            let check = String::from_utf8(usher(&["check", file]).stderr).unwrap();
            assert!(count == 1 || check.ends_with(&format!("\n{count} errors\n")), "{check}");
        }
    }
}
