//! Lines and numbers in the tables of reports.

use std::fmt::{self, Formatter};

use crate::cells::padded;
use crate::wrap::wrap;

/// Columns of titles.
const TITLE: usize = 15;

/// A line with a title; the lines that go on with it have none. Longer ones than the formatter is wide are broken.
///
/// # Errors
/// `fmt::Error` if it can't be written.
pub fn line(f: &mut Formatter<'_>, title: &str, text: fmt::Arguments<'_>) -> fmt::Result {
    let Some(width) = f.width() else { return writeln!(f, "{}{text}", padded(title, TITLE)) };
    let lines = wrap(&text.to_string(), width.saturating_sub(TITLE));
    let titles = std::iter::once(title).chain(std::iter::repeat(""));
    lines.iter().zip(titles).try_for_each(|(line, title)| writeln!(f, "{}{line}", padded(title, TITLE)))
}

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line(&'static str);

    impl fmt::Display for Line {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            line(f, "servers", format_args!("{}", self.0))
        }
    }

    #[test]
    fn long_lines_continue_below_their_text() {
        let long = Line("8, asked for 70 % of what they can do");
        assert_eq!(long.to_string(), "servers        8, asked for 70 % of what they can do\n");
        let expected =
            "servers        8, asked for 70 %\n               of what they can\n               do\n";
        assert_eq!(format!("{long:32}"), expected);
    }

    #[test]
    fn digits_are_in_groups_of_three() {
        let table = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in table {
            assert_eq!(grouped(number), text);
        }
    }
}
