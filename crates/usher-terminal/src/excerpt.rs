//! The line of a file that an error is about, with a caret under the place.

use std::fmt::Write as _;

use crate::cells::{cells, cells_of};

/// Columns of the source that are shown.
const WIDTH: usize = 100;

/// Columns of the source that are shown at least, however narrow the terminal.
const LEAST: usize = 20;

/// Columns before the place that a long line is shown from.
const BEFORE: usize = 40;

/// Parts of keys whose values are not to be shown, misspelt ones included.
const SECRET: [&str; 7] = ["passw", "pasw", "pwd", "secret", "credential", "apikey", "token:"];

/// The line of a text and a line with carets under the word at a column, both counted from 1 and in
/// characters. Empty if the text has no such line. Of a line with a secret, or with a URL that may have one, only
/// that word is shown. On a terminal of `width` columns no line is longer.
pub fn excerpt(text: &str, line: u32, column: u32, width: Option<usize>) -> String {
    let index = |number: u32| (number as usize).saturating_sub(1);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(source) = text.lines().nth(index(line)) else { return String::new() };
    let is_secret = {
        let lower = source.to_lowercase();
        let has_credentials = lower.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
        has_credentials || SECRET.iter().any(|part| lower.contains(part))
    };
    // A tab is one column, so that the caret stands under its place.
    let source: Vec<char> = source.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let at = index(column).min(source.len());
    let is_word = |char: &&char| char.is_alphanumeric() || "-_./".contains(**char);
    let word = source[at..].iter().take_while(is_word).count();
    let number = line.to_string();
    let margin = number.len();
    // Beside the number, and an ellipsis on both sides.
    let room = width.map_or(WIDTH, |width| width.saturating_sub(margin + 7).clamp(LEAST, WIDTH));
    let (start, end) = if is_secret {
        // A word that no colon follows may be the secret itself.
        let is_key = source.get(at + word) == Some(&':');
        (at, if is_key { at + word } else { at })
    } else {
        let is_short = cells_of(&source) <= room;
        let start = if is_short { 0 } else { at - fitting(source[..at].iter().rev(), BEFORE.min(room / 2)) };
        (start, start + fitting(source[start..].iter(), room))
    };
    let carets = cells_of(&source[at..end.min(at + word)]).max(1);
    let (before, after) = (if start > 0 { "…" } else { "" }, if end < source.len() { "…" } else { "" });
    let shown: String = source[start..end].iter().collect();
    let indent = cells_of(&source[start..at]) + before.chars().count();
    let mut excerpt = format!("  {number} | {before}{}{after}\n", shown.trim_end());
    // Writing to a string can't fail.
    let _ = writeln!(excerpt, "  {:margin$} | {:indent$}{}", "", "", "^".repeat(carets));
    excerpt
}

/// Number of the first characters that fit into so many columns.
fn fitting<'a>(chars: impl Iterator<Item = &'a char>, columns: usize) -> usize {
    let mut taken = 0;
    chars
        .take_while(|char| {
            taken += cells(**char);
            taken <= columns
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets_are_under_the_word() {
        let text = "plugins:\n- type: max-score-picker, x: 1\n";
        assert_eq!(excerpt(text, 1, 1, None), "  1 | plugins:\n    | ^^^^^^^\n");
        let expected = "  2 | - type: max-score-picker, x: 1\n    |         ^^^^^^^^^^^^^^^^\n";
        assert_eq!(excerpt(text, 2, 9, None), expected);
        assert_eq!(excerpt(text, 2, 2, None), "  2 | - type: max-score-picker, x: 1\n    |  ^\n");
    }

    #[test]
    fn position_beyond_the_text_is_clamped() {
        assert_eq!(excerpt("a: [", 1, 9, None), "  1 | a: [\n    |     ^\n");
        assert_eq!(excerpt("a: [", 2, 1, None), "");
        assert_eq!(excerpt("", 1, 1, None), "");
    }

    #[test]
    fn tabs_and_control_characters_take_one_column() {
        assert_eq!(excerpt("\ta:\u{1b}1\n", 1, 2, None), "  1 |  a: 1\n    |  ^\n");
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = "- {address: 'r:6379', password: hunter2, tttl: 3s}\n";
        assert_eq!(excerpt(text, 1, 42, None), "  1 | …tttl…\n    |  ^^^^\n");
        assert_eq!(excerpt(text, 1, 33, None), "  1 | ……\n    |  ^\n");
        assert_eq!(excerpt("pasword: hunter2", 1, 1, None), "  1 | pasword…\n    | ^^^^^^^\n");
        assert_eq!(excerpt("pasword: hunter2", 1, 10, None), "  1 | ……\n    |  ^\n");
        assert_eq!(excerpt("address: rediss://:hunter2@a", 1, 10, None), "  1 | …rediss…\n    |  ^^^^^^\n");
        assert_eq!(excerpt("address: rediss://:hunter2@a", 1, 20, None), "  1 | ……\n    |  ^\n");
    }

    /// The column that the first caret stands in, and the carets, of what a terminal shows.
    fn under(excerpt: &str) -> (usize, usize, String) {
        let (source, carets) = excerpt.split_once('\n').unwrap();
        let from = carets.find('^').unwrap();
        let count = carets.trim_end().len() - from;
        let mut column = 0;
        let beneath = source.chars().filter(|char| {
            let start = column;
            column += cells(*char);
            (from..from + count).contains(&start)
        });
        (from, count, beneath.collect())
    }

    #[test]
    fn carets_account_for_wide_and_combining_characters() {
        for (text, column) in [
            ("- {name: 模型, tpye: a}", 14),
            ("- {name: 🚀🚀, tpye: a}", 14),
            ("- {name: e\u{301}ab, tpye: a}", 16),
            ("- {name:\tab, tpye: a}", 14),
        ] {
            let shown = excerpt(text, 1, column, None);
            let (_, count, beneath) = under(&shown);
            assert_eq!((count, beneath.as_str()), (4, "tpye"), "{shown}");
        }
    }

    #[test]
    fn word_of_wide_characters_has_two_carets_each() {
        assert_eq!(excerpt("模型: a", 1, 1, None), "  1 | 模型: a\n    | ^^^^\n");
    }

    #[test]
    fn long_line_of_wide_characters_fits() {
        let text = format!("{}word{}", "模 ".repeat(100), " 模".repeat(100));
        let shown = excerpt(&text, 1, 201, None);
        let (_, _, beneath) = under(&shown);
        assert_eq!(beneath, "word", "{shown}");
        let widest = shown.lines().map(|line| line.chars().map(cells).sum::<usize>()).max();
        assert!(widest < Some(110), "{shown}");
    }

    #[test]
    fn byte_order_mark_takes_no_column() {
        assert_eq!(excerpt("\u{feff}kin: a", 1, 1, None), "  1 | kin: a\n    | ^^^\n");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let text = format!("{}word{}", "- ".repeat(100), " -".repeat(100));
        let shown = excerpt(&text, 1, 201, None);
        let lines: Vec<&str> = shown.lines().collect();
        let under: Vec<char> =
            lines[0].chars().skip(lines[1].find('^').unwrap_or_default()).take(4).collect();
        assert_eq!(under, ['w', 'o', 'r', 'd'], "{shown}");
        assert!(lines[0].chars().count() < 110, "{shown}");
        assert!(lines[1].ends_with(" ^^^^"), "{shown}");
    }

    #[test]
    fn excerpt_fits_a_narrow_terminal() {
        let text = format!("{}word{}", "- ".repeat(30), " -".repeat(30));
        let shown = excerpt(&text, 1, 61, Some(60));
        assert!(shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
        assert_eq!(under(&shown).2, "word", "{shown}");
        let short = format!("{}word", "- ".repeat(20));
        assert_eq!(excerpt(&short, 1, 41, Some(60)), excerpt(&short, 1, 41, None));
    }
}
