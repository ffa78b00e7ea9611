//! `-h` of every command fits on a screen; `--help` and the manual page have all flags.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

/// Lines that `-h` may take.
const LINES: usize = 30;

/// Width of the terminal.
const COLUMNS: usize = 80;

/// Output of `usher` with these arguments.
fn printed(path: &[String], flag: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    command.args(path).arg(flag).env("COLUMNS", COLUMNS.to_string()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{path:?} {flag}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names of the commands in a page of help.
fn commands(page: &str) -> Vec<String> {
    let list = page.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = list.take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    });
    names.collect()
}

/// Every command with the page of its `-h`, nested ones included, the program first.
fn pages() -> Vec<(Vec<String>, String)> {
    let mut pages = Vec::new();
    let mut next = vec![Vec::new()];
    while let Some(path) = next.pop() {
        let page = printed(&path, "-h");
        next.extend(commands(&page).into_iter().map(|name| [&path[..], &[name]].concat()));
        pages.push((path, page));
    }
    pages
}

/// Flags that a page has a line for.
fn flags(page: &str) -> BTreeSet<&str> {
    // Text that goes on in another line has a larger indentation.
    let starts = page.lines().map(|line| (line, line.trim_start()));
    let starts = starts.filter(|(line, text)| line.len() - text.len() <= 6 && text.starts_with('-'));
    let words = starts.flat_map(|(_, text)| text.split([' ', ',', '=', '[']).take(3));
    words.filter(|word| word.starts_with("--")).collect()
}

#[test]
fn short_help_fits_on_a_screen() {
    let pages = pages();
    for (path, page) in &pages {
        let (lines, name) =
            (page.lines().count(), ["usher"].into_iter().chain(path.iter().map(String::as_str)));
        let name = name.collect::<Vec<_>>().join(" ");
        assert!(lines <= LINES, "{name} -h: {lines} lines\n{page}");
        let long = page.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(long, None, "{name} -h");
        let last = format!("See `{name} --help` for everything, with examples.");
        assert_eq!(page.lines().last(), Some(&*last), "{page}");
    }
    let paths: Vec<String> = pages.iter().map(|(path, _)| path.join(" ")).collect();
    for path in ["", "serve", "replay", "capacity", "capacity compare"] {
        assert!(paths.iter().any(|each| each == path), "{path:?} is not among {paths:?}");
    }
}

#[test]
fn full_help_has_all_flags_and_examples() {
    for (path, short) in pages() {
        let full = printed(&path, "--help");
        assert!(full.contains("\nExamples:\n  # ") && !short.contains("Examples:"), "{path:?}: {full}");
        let missing: Vec<_> = flags(&short).difference(&flags(&full)).copied().map(str::to_owned).collect();
        assert!(missing.is_empty(), "{path:?} --help has no {missing:?}");
        if path == ["serve"] {
            // One of the flags that `-h` leaves out.
            let rare = "--locator-max-subsets";
            assert!(flags(&full).contains(rare) && !flags(&short).contains(rare), "{full}");
        }
    }
}
