//! Help of the commands: examples for each, and the flags that `-h` shows, each with the first sentence of its help.
//! `--help` shows all.

use std::fmt::Write;

use clap::{Arg, Command};

/// Help of a command beside that of its flags.
struct Help {
    /// Names of the command below the program, with spaces between them.
    command: &'static str,
    /// Flags that `-h` shows; empty: all of them. Arguments that aren't flags are always shown.
    short: &'static [&'static str],
    /// Purpose and command line of each example.
    examples: &'static [(&'static str, &'static str)],
}

const HELP: &[Help] = &[
    Help {
        command: "",
        short: &[],
        examples: &[
            ("Pick among the model servers of a file", "usher serve --endpoints-file endpoints.yaml"),
            ("Find out what is wrong with a gateway", "usher doctor --gateway http://127.0.0.1:8081"),
        ],
    },
    Help {
        command: "serve",
        short: &[
            "grpc-port",
            "metrics-port",
            "cert-path",
            "config-file",
            "endpoints-file",
            "pool-name",
            "pool-namespace",
            "endpoint-selector",
            "endpoint-target-ports",
            "v",
        ],
        examples: &[
            ("Model servers of a file", "usher serve --endpoints-file endpoints.yaml"),
            (
                "Pods of an InferencePool, as one of several replicas",
                "usher serve --pool-name llama --pool-namespace models --ha-enable-leader-election",
            ),
            ("Pods by their labels", "usher serve --endpoint-selector app=vllm --endpoint-target-ports 8000"),
            (
                "A configuration of your own, and a line for each decision in the log",
                "usher serve --config-file config.yaml --endpoints-file endpoints.yaml --v=3",
            ),
        ],
    },
    Help {
        command: "sim",
        short: &[
            "count",
            "port",
            "write-endpoints",
            "metrics-of",
            "model",
            "loras",
            "output-tokens",
            "speed",
            "seed",
            "engine-model",
            "roles",
        ],
        examples: &[
            (
                "Four servers, and the file that `usher serve` reads",
                "usher sim --count 4 --write-endpoints endpoints.yaml",
            ),
            ("Servers that prefill and servers that decode", "usher sim --count 4 --roles prefill,decode"),
        ],
    },
    Help {
        command: "load",
        short: &[
            "target",
            "rate",
            "concurrency",
            "duration",
            "requests",
            "tokens",
            "trace",
            "speed",
            "model",
            "header",
            "stream",
            "output-tokens",
            "output",
        ],
        examples: &[
            (
                "50 requests per second through a gateway",
                "usher load --target http://127.0.0.1:8081 --rate 50 --duration 30s",
            ),
            (
                "A picker alone, as fast as it decides",
                "usher load --target 127.0.0.1:9002 --concurrency 32 --tokens 2000",
            ),
        ],
    },
    Help {
        command: "demo",
        short: &[],
        examples: &[
            ("A real Envoy before simulated servers", "usher demo"),
            ("The same, left running for requests of your own", "usher demo --keep"),
            ("A server that breaks", "usher demo --scenario outlier"),
        ],
    },
    Help {
        command: "replay",
        short: &[
            "config-file",
            "baseline",
            "output",
            "trace",
            "workload",
            "recording",
            "requests",
            "utilization",
            "servers",
        ],
        examples: &[
            (
                "A configuration and round robin under a trace",
                "usher replay --trace trace.jsonl --config-file config.yaml --baseline round-robin",
            ),
            (
                "Two configurations under chats, with half of the servers' capacity in use",
                "usher replay --workload chat --utilization 0.5 --config-file old.yaml --config-file new.yaml",
            ),
        ],
    },
    Help {
        command: "compare",
        short: &["usher", "config-file", "trace", "requests", "servers", "header", "show", "output"],
        examples: &[(
            "Another picker under Usher's configuration",
            "usher compare './epp' --config-file config.yaml",
        )],
    },
    Help {
        command: "doctor",
        short: &[
            "gateway",
            "header",
            "envoy-admin",
            "picker",
            "metrics",
            "admin",
            "model",
            "endpoints-file",
            "pool-name",
            "pool-namespace",
            "service-account",
            "output",
        ],
        examples: &[
            ("What is at the usual ports of this machine", "usher doctor"),
            (
                "A gateway on this machine, and what is beside it",
                "usher doctor --gateway http://127.0.0.1:8081",
            ),
            (
                "A gateway that asks for a token, which a file holds",
                "usher doctor --gateway https://models.example.com --header 'authorization: @token.txt'",
            ),
            (
                "An InferencePool, and the rights of its picker",
                "usher doctor --pool-name llama --pool-namespace models --service-account usher",
            ),
        ],
    },
    Help {
        command: "check",
        short: &[],
        examples: &[
            ("A configuration, and a list of endpoints", "usher check config.yaml endpoints.yaml"),
            ("A configuration from another program", "cat config.yaml | usher check -"),
        ],
    },
    Help {
        command: "capacity",
        short: &[],
        examples: &[("Check policies", "usher capacity check policies.yaml")],
    },
    Help {
        command: "capacity check",
        short: &[],
        examples: &[("Policies of a file", "usher capacity check policies.yaml")],
    },
    Help {
        command: "capacity simulate",
        short: &[],
        examples: &[(
            "What a policy does with states that a file holds, a line each",
            "usher capacity simulate --policy policy.yaml --timeline states.jsonl",
        )],
    },
    Help {
        command: "capacity compare",
        short: &[
            "policy",
            "name",
            "config-file",
            "trace",
            "requests",
            "speed",
            "ttft-limit",
            "start",
            "initial",
            "seed",
            "output",
        ],
        examples: &[(
            "A policy, an HPA and a fixed size under a trace",
            "usher capacity compare --policy policy.yaml --trace trace.jsonl",
        )],
    },
    Help {
        command: "capacity release",
        short: &[],
        examples: &[(
            "Gates, deletion costs and held updates that would be removed",
            "usher capacity release --namespace models --dry-run",
        )],
    },
    Help {
        command: "capacity crds",
        short: &[],
        examples: &[("Install them", "usher capacity crds | kubectl apply -f -")],
    },
    Help {
        command: "endpoints",
        short: &[],
        examples: &[
            ("Of a picker on this machine, or behind kubectl port-forward", "usher endpoints"),
            ("For a script", "usher endpoints --output json"),
        ],
    },
    Help {
        command: "explain",
        short: &[
            "last",
            "slow",
            "failed",
            "model",
            "endpoint",
            "follow",
            "request",
            "config-file",
            "endpoints-file",
            "admin",
            "output",
        ],
        examples: &[
            ("The last decision of a picker on this machine", "usher explain"),
            ("A request of the gateway's access log", "usher explain 5a2f4c1e-7f0b-4d3c-9a55-0c7e1b2d3f40"),
            ("The last slow ones, a line each", "usher explain --slow --last 20"),
            (
                "A request that was never sent, by a configuration",
                "usher explain --request body.json --config-file config.yaml --endpoints-file endpoints.yaml",
            ),
            ("All of a model as they end", "usher explain --follow --model llama"),
        ],
    },
    Help { command: "version", short: &[], examples: &[("For a script", "usher version --output json")] },
    Help {
        command: "completions",
        short: &[],
        examples: &[("For bash", "usher completions bash > /etc/bash_completion.d/usher")],
    },
    Help {
        command: "man",
        short: &[],
        examples: &[("Read the page of a command", "usher man serve | man -l -")],
    },
];

/// Gives a command and those below it their examples, and leaves flags out of `-h`.
pub(super) fn with_help(command: Command) -> Command {
    below(command, "")
}

fn below(command: Command, path: &str) -> Command {
    let command = match HELP.iter().find(|help| help.command == path) {
        Some(help) => of(command, help),
        None => command,
    };
    command.mut_subcommands(|each| {
        let path = format!("{path} {}", each.get_name());
        below(each, path.trim_start())
    })
}

fn of(command: Command, help: &Help) -> Command {
    let header = *command.get_styles().get_header();
    let mut text = format!("{header}Examples:{header:#}");
    for (purpose, line) in help.examples {
        // Writing to a string can't fail.
        let _ = write!(text, "\n  # {purpose}\n  {line}");
    }
    let name = format!("usher {}", help.command);
    let rest = format!("See `{} --help` for everything, with examples.", name.trim_end());
    command.after_help(rest).after_long_help(text).mut_args(|arg| {
        let is_short = arg.get_long().is_none_or(|long| help.short.contains(&long));
        let arg = first_sentence(arg);
        if help.short.is_empty() || is_short { arg } else { arg.hide_short_help(true) }
    })
}

/// Leaves the first sentence of an argument's help to `-h`.
fn first_sentence(arg: Arg) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let Some((first, _)) = help.split_once(". ") else { return arg };
    let first = first.to_owned();
    let arg = if arg.get_long_help().is_none() { arg.long_help(help) } else { arg };
    arg.help(first)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{command, parse};

    /// Each command with its path, the program first.
    fn all() -> Vec<(String, Command)> {
        fn walk(command: &Command, path: &str, all: &mut Vec<(String, Command)>) {
            all.push((path.to_owned(), command.clone()));
            for each in command.get_subcommands().filter(|each| each.get_name() != "help") {
                walk(each, format!("{path} {}", each.get_name()).trim_start(), all);
            }
        }
        let mut all = Vec::new();
        walk(&command(), "", &mut all);
        all
    }

    #[test]
    fn commands_have_examples_and_short_help() {
        for (path, command) in all() {
            let mut command = command.term_width(100);
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            assert!(long.contains("\nExamples:\n  # ") && !short.contains("Examples:"), "{path}: {long}");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let shown = arg.get_long().is_none_or(|name| long.contains(&format!("--{name}")));
                assert!(shown, "{path}: {arg} is not in --help");
            }
        }
    }

    #[test]
    fn flags_of_the_short_help_exist() {
        let all = all();
        for help in HELP {
            let found = all.iter().find(|(path, _)| path == help.command);
            assert!(found.is_some() || !cfg!(feature = "lab"), "no command {}", help.command);
            let Some((_, command)) = found else { continue };
            for flag in help.short {
                let is_there = command.get_arguments().any(|arg| arg.get_long() == Some(*flag));
                assert!(is_there, "{}: no --{flag}", help.command);
            }
        }
    }

    #[test]
    fn examples_are_understood() {
        let all = all();
        for help in HELP.iter().filter(|help| all.iter().any(|(path, _)| path == help.command)) {
            for (purpose, line) in help.examples {
                let line = line.split_once("| usher").map_or(*line, |_| "usher check -");
                let line = line.split(['|', '>']).next().unwrap_or_default();
                let mut words: Vec<String> = Vec::new();
                for (number, part) in line.split('\'').enumerate() {
                    let quoted = number % 2 == 1;
                    if quoted {
                        words.push(part.to_owned())
                    } else {
                        words.extend(part.split_whitespace().map(str::to_owned))
                    }
                }
                let parsed = parse(words.iter().map(OsString::from));
                assert!(parsed.is_ok(), "{}: {purpose}: {words:?}: {:?}", help.command, parsed.err());
            }
        }
    }
}
