//! docs/reference/flags.md, from the command line.

use clap::{Arg, Args, Command};
use usher::cli::flags::ServeArgs;

use super::page::{assert_written, row};

/// `usher serve`, with its flags.
pub(crate) fn command() -> Command {
    ServeArgs::augment_args(Command::new("serve"))
}

/// A flag as it is written: its names, and what stands for its value.
fn written(flag: &Arg) -> String {
    let names = flag.get_short().map(|short| format!("-{short}")).into_iter();
    let names = names.chain(flag.get_long().map(|long| format!("--{long}")));
    let value = match flag.get_value_names() {
        // Alone it means true.
        Some([name]) if name == "BOOL" => format!("[={name}]"),
        Some([name]) => format!(" {name}"),
        other => panic!("{flag}: {other:?}"),
    };
    format!("`{}{value}`", names.collect::<Vec<_>>().join(", "))
}

/// The default and the meaning of a flag. A default that depends on others is said in the help.
fn explained(flag: &Arg) -> (String, String) {
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    assert!(!help.is_empty(), "{flag} has no help");
    let said = help.strip_suffix(']').and_then(|help| help.rsplit_once(" [default: "));
    let set = flag.get_default_values().iter().map(|value| value.to_string_lossy());
    let (text, default) = match (said, set.collect::<Vec<_>>().join(",")) {
        (Some((text, default)), set) if set.is_empty() => (text, default.to_owned()),
        (None, set) => (help.as_str(), set),
        (Some(_), _) => panic!("{flag} says its default itself and has another"),
    };
    let default = if default.is_empty() { default } else { format!("`{default}`") };
    (default, format!("{}.", text.trim_end_matches('.')))
}

#[test]
fn every_flag_has_its_row() {
    let command = command();
    let mut headings: Vec<&str> = Vec::new();
    for flag in command.get_arguments() {
        let heading = flag.get_help_heading().unwrap_or_else(|| panic!("{flag} has no heading"));
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    let (removed, shown): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().partition(|flag| flag.is_hide_set());
    let mut sections: Vec<String> = Vec::new();
    for heading in headings {
        let mut text = format!("## {heading}\n\n| flag | default | meaning |\n|---|---|---|\n");
        for flag in shown.iter().filter(|flag| flag.get_help_heading() == Some(heading)) {
            let (default, meaning) = explained(flag);
            text += &row([&written(flag), &default, &meaning]);
        }
        sections.push(text);
    }
    let names: Vec<String> =
        removed.iter().filter_map(|flag| flag.get_long()).map(|long| format!("`--{long}`")).collect();
    sections.push(format!("## Removed\n\nRefused with what to write instead: {}.\n", names.join(", ")));
    assert_written("docs/reference/flags.md", "the flags of `usher serve`", &sections.join("\n"));
}
