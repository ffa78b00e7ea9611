//! Text that fits the terminal: the width of a formatter is the number of its columns.
//!
//! [`Output`](crate::Output) prints a report with the width of the terminal, and without one elsewhere. Lines of
//! data are whole then, so that `grep` finds them, and sentences have [`PAGE`] columns.

use std::fmt::{self, Display, Formatter};

use crate::cells::{cells, columns_of, padded};

/// Columns of sentences where no terminal says how many there are.
pub const PAGE: usize = 80;

/// Fewer columns than this are taken for so many.
const NARROWEST: usize = 40;

/// Characters after which a word may be broken, as in paths, lists and names.
const JOINTS: &str = ",;:/=-_.";

/// Columns of the terminal that standard output is; `None` if it is none.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stdout()).map(columns)
}

/// Columns of the terminal that standard error is; `None` if it is none.
pub fn error_width() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stderr()).map(columns)
}

fn columns((width, _): (terminal_size::Width, terminal_size::Height)) -> usize {
    usize::from(width.0).max(NARROWEST)
}

/// The lines of a text, broken at spaces where they would be longer than `width`. Longer words stay whole.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for source in text.lines() {
        let mut line = String::new();
        let mut length = 0;
        for word in source.split(' ') {
            let added = columns_of(word);
            if length > 0 && length + 1 + added > width {
                lines.push(std::mem::take(&mut line));
                length = 0;
            }
            if length > 0 {
                line.push(' ');
                length += 1;
            }
            line.push_str(word);
            length += added;
        }
        lines.push(line);
    }
    lines
}

/// The lines of a text beside an indent: on a terminal of `width` columns, where longer words are broken, or on a page
/// of [`PAGE`] columns, where they stay whole.
pub fn fit(text: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    match width {
        None => wrap(text, PAGE.saturating_sub(indent)),
        Some(width) => {
            let room = width.saturating_sub(indent);
            wrap(text, room).iter().flat_map(|line| broken(line, room)).collect()
        }
    }
}

/// The parts of a word that fit into `room` columns, broken behind a joint where one is in the second half.
fn broken(word: &str, room: usize) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), word);
    while columns_of(rest) > room {
        let (mut taken, mut end, mut joint) = (0, 0, 0);
        for (at, char) in rest.char_indices() {
            taken += cells(char);
            // One character at least, however narrow the room.
            if taken > room && end > 0 {
                break;
            }
            end = at + char.len_utf8();
            if JOINTS.contains(char) {
                joint = end;
            }
        }
        let (part, after) = rest.split_at(if 2 * joint > end { joint } else { end });
        parts.push(part.to_owned());
        rest = after;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(rest.to_owned());
    }
    parts
}

/// Writes sentences in lines as long as the formatter is wide, or [`PAGE`].
///
/// # Errors
/// `fmt::Error` if they can't be written.
pub fn paragraph(f: &mut Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    let width = f.width().unwrap_or(PAGE);
    wrap(&text.to_string(), width).iter().try_for_each(|line| writeln!(f, "{line}"))
}

/// Terms and what they mean, in two columns of `width` or [`PAGE`] together.
pub fn terms(terms: &[(String, String)], width: Option<usize>) -> String {
    let indent = terms.iter().map(|(term, _)| columns_of(term)).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for (term, meaning) in terms {
        let lines = wrap(meaning, width.unwrap_or(PAGE).saturating_sub(indent));
        for (line, term) in lines.iter().zip(std::iter::once(term.as_str()).chain(std::iter::repeat(""))) {
            text.push_str(&format!("{}{line}\n", padded(term, indent)));
        }
    }
    text
}

/// Lines of a report that don't fit terminals of 60, 80 and 100 columns, though they could be broken, each after
/// the number of columns. For tests.
pub fn misfits(report: &impl Display) -> Vec<String> {
    let mut found = Vec::new();
    for width in [60, 80, 100] {
        let text = format!("{report:width$}");
        let long = text.lines().filter(|line| columns_of(line) > width);
        // One word may be longer than a line.
        let long = long.filter(|line| line.split_whitespace().count() > 1);
        found.extend(long.map(|line| format!("{width}: {line}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sentences(&'static str);

    impl Display for Sentences {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            paragraph(f, format_args!("{}", self.0))
        }
    }

    struct Plain(String);

    impl Display for Plain {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            writeln!(f, "{}", self.0)
        }
    }

    #[test]
    fn lines_break_at_spaces_and_words_stay_whole() {
        let table = [
            ("", vec![]),
            ("a b", vec!["a b"]),
            ("one two three", vec!["one two", "three"]),
            ("one\n\nabcdefghijk two", vec!["one", "", "abcdefghijk", "two"]),
            ("模型 模型 a", vec!["模型", "模型 a"]),
        ];
        for (text, lines) in table {
            assert_eq!(wrap(text, 8), lines, "{text:?}");
        }
    }

    #[test]
    fn long_words_break_on_terminals_only() {
        let table = [
            ("a one-two-three", Some(12), vec!["a", "one-two-", "three"]),
            ("a abcdefghijklmn b", Some(12), vec!["a", "abcdefgh", "ijklmn", "b"]),
            ("a=1,b=2,c=3", Some(12), vec!["a=1,b=2,", "c=3"]),
            ("a/bcdefghijk", Some(12), vec!["a/bcdefg", "hijk"]),
            ("模型模型模", Some(9), vec!["模型", "模型", "模"]),
            ("模", Some(5), vec!["模"]),
            ("", Some(12), vec![]),
            ("a abcdefghijklmn b", None, vec!["a abcdefghijklmn b"]),
        ];
        for (text, width, lines) in table {
            assert_eq!(fit(text, width, 4), lines, "{text:?}");
        }
        let long = "x".repeat(90);
        assert_eq!(fit(&format!("a {long}"), None, 4), ["a", &long]);
    }

    #[test]
    fn sentences_are_as_wide_as_the_formatter_or_a_page() {
        let text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
        let sentences = Sentences(text);
        assert_eq!(format!("{sentences:20}").lines().next(), Some("one two three four"));
        let page = sentences.to_string();
        assert_eq!((page.lines().count(), page.lines().next().map(str::len)), (2, Some(80)));
        assert!(misfits(&sentences).is_empty());
    }

    #[test]
    fn definitions_align_beside_their_terms() {
        let pair = |term: &str, meaning: &str| (term.to_owned(), meaning.to_owned());
        let all = [pair("Min", "It had fewer pods than its minimum."), pair("Rule", "A rule fired.")];
        let expected = "Min   It had fewer pods\n      than its minimum.\nRule  A rule fired.\n";
        assert_eq!(terms(&all, Some(26)), expected);
        assert_eq!(terms(&all[1..], None), "Rule  A rule fired.\n");
        let wide = [pair("模型", "A model."), pair("Min", "A minimum.")];
        assert_eq!(terms(&wide, None), "模型  A model.\nMin   A minimum.\n");
    }

    #[test]
    fn overlong_lines_are_reported_with_their_width() {
        let found = misfits(&Plain(format!("{} {}", "a".repeat(40), "b".repeat(40))));
        assert_eq!(found.iter().map(|line| &line[..3]).collect::<Vec<_>>(), ["60:", "80:"]);
        assert!(misfits(&Plain("a".repeat(200))).is_empty(), "one word");
        let found = misfits(&Plain(format!("{} {}", "模型".repeat(8), "模型".repeat(8))));
        assert_eq!(found.iter().map(|line| &line[..3]).collect::<Vec<_>>(), ["60:"], "65 columns");
    }
}
