//! Abilities of the terminal that standard output is: width, characters and colours.

use std::io::{IsTerminal, stdout};

use clap::builder::styling::{AnsiColor, Style};

use crate::wrap::width;

/// Widest lines, in columns; longer ones are hard to read.
const MOST: usize = 100;

/// Abilities of an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminal {
    /// Columns of a line; `None`: lines are not wrapped.
    pub width: Option<usize>,
    /// `true` if it shows more than ASCII.
    pub unicode: bool,
    /// `true` if it shows colours.
    pub colour: bool,
}

/// Mark before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// All is well.
    Ok,
    /// May become a problem.
    Warning,
    /// Problem.
    Wrong,
    /// Skipped.
    Skipped,
}

impl Terminal {
    /// Abilities of standard output.
    pub fn of_stdout() -> Self {
        let width = stdout().is_terminal().then(|| width().unwrap_or(MOST));
        Self::of(width, |name| std::env::var(name).ok())
    }

    /// Abilities by the width, which is `None` for files and pipes, and by the environment: the locale has the
    /// characters, `NO_COLOR` and `TERM=dumb` turn colours off.
    pub fn of(width: Option<usize>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(given).unwrap_or_default();
        let locale = locale.to_lowercase();
        let is_dumb = given("TERM").is_some_and(|term| term == "dumb");
        Self {
            width: width.map(|width| width.min(MOST)),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
            colour: width.is_some() && given("NO_COLOR").is_none() && !is_dumb,
        }
    }

    /// A mark, one column wide.
    pub fn mark(self, mark: Mark) -> String {
        let (unicode, ascii) = match mark {
            Mark::Ok => ("✓", "+"),
            Mark::Warning => ("!", "!"),
            Mark::Wrong => ("✗", "x"),
            Mark::Skipped => ("–", "-"),
        };
        self.painted(mark, if self.unicode { unicode } else { ascii })
    }

    /// A text in the colour of a mark.
    pub fn painted(self, mark: Mark, text: &str) -> String {
        let style = match mark {
            Mark::Ok => AnsiColor::Green.on_default(),
            Mark::Warning => AnsiColor::Yellow.on_default(),
            Mark::Wrong => AnsiColor::Red.on_default(),
            Mark::Skipped => Style::new().dimmed(),
        };
        self.styled(style, text)
    }

    /// A text in bold.
    pub fn bold(self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    fn styled(self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// A text in lines that fit after `indent` columns; a word that is longer than a line has one of its own. The
    /// lines are not indented.
    pub fn wrapped(self, text: &str, indent: usize) -> Vec<String> {
        let room = self.width.map_or(usize::MAX, |width| width.saturating_sub(indent));
        let mut lines = vec![String::new()];
        let mut length = 0;
        for word in text.split_whitespace() {
            let columns = word.chars().count();
            if length > 0 && length + 1 + columns > room {
                lines.push(String::new());
                length = 0;
            }
            if let Some(line) = lines.last_mut() {
                if length > 0 {
                    line.push(' ');
                    length += 1;
                }
                line.push_str(word);
            }
            length += columns;
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(width: Option<usize>, variables: &[(&str, &str)]) -> Terminal {
        let of =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Terminal::of(width, of)
    }

    #[test]
    fn colours_follow_the_terminal_and_no_color() {
        let table: [(Option<usize>, &[(&str, &str)], bool); 6] = [
            (Some(80), &[], true),
            (Some(80), &[("TERM", "xterm-256color"), ("NO_COLOR", "")], true),
            (Some(80), &[("NO_COLOR", "1")], false),
            (Some(80), &[("TERM", "dumb")], false),
            (None, &[], false),
            (None, &[("TERM", "xterm-256color")], false),
        ];
        for (width, variables, colour) in table {
            assert_eq!(of(width, variables).colour, colour, "{width:?} {variables:?}");
        }
        let terminal = Terminal { colour: true, ..Terminal::default() };
        assert_eq!(terminal.mark(Mark::Wrong), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Terminal::default().bold("gateway"), "gateway");
    }

    #[test]
    fn locale_decides_about_unicode() {
        let table: [(&[(&str, &str)], bool); 6] = [
            (&[], false),
            (&[("LANG", "C.UTF-8")], true),
            (&[("LANG", "de_DE.utf8")], true),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "C"), ("LC_CTYPE", "en_US.UTF-8")], true),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], true),
        ];
        for (variables, unicode) in table {
            assert_eq!(of(None, variables).unicode, unicode, "{variables:?}");
        }
        let all = [Mark::Ok, Mark::Warning, Mark::Wrong, Mark::Skipped];
        let marks = |terminal: Terminal| all.map(|mark| terminal.mark(mark)).concat();
        assert_eq!(marks(Terminal::default()), "+!x-");
        assert_eq!(marks(of(None, &[("LANG", "C.UTF-8")])), "✓!✗–");
    }

    #[test]
    fn lines_use_the_terminal_width() {
        let terminal = of(Some(20), &[]);
        assert_eq!(terminal.wrapped("one two three four", 5), ["one two three", "four"]);
        assert_eq!(
            terminal.wrapped("a-word-that-is-too-long for it", 5),
            ["a-word-that-is-too-long", "for it"]
        );
        assert_eq!(terminal.wrapped("", 5), [""]);
        let long = "word ".repeat(100);
        assert_eq!(of(None, &[]).wrapped(&long, 5).len(), 1);
        assert_eq!(of(Some(250), &[]).width, Some(100));
    }
}
