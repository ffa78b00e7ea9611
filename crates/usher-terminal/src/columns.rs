//! Tables of columns that are as wide as what is in them.

use std::fmt::Write as _;

/// Spaces between two columns.
const GAP: usize = 2;

/// Columns of the terminal that standard output is; `None` if it is none.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0))
}

/// A table. Where the lines would be longer than `width`, a row is a line with its first cell, and below it
/// the others with their headings.
pub fn table(heading: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    let length = |text: &str| text.chars().count();
    let mut widths: Vec<usize> = heading.iter().map(|title| length(title)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(length(cell));
        }
    }
    let all = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    if width.is_some_and(|width| all > width) {
        return rows.iter().map(|row| stacked(heading, row, width.unwrap_or(all))).collect();
    }
    let titles: Vec<String> = heading.iter().map(|title| (*title).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let cells: String =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP)).collect();
        // Writing to a string can't fail.
        let _ = writeln!(text, "{}", cells.trim_end());
    }
    text
}

/// A row below its first cell, in lines that are no longer than `width` where no word is.
fn stacked(heading: &[&str], row: &[String], width: usize) -> String {
    let mut text = row.first().map(|name| format!("{name}\n")).unwrap_or_default();
    let parts: Vec<String> =
        heading.iter().zip(row).skip(1).map(|(title, cell)| format!("{title} {cell}")).collect();
    let mut line = String::from(" ");
    for word in parts.join(", ").split(' ') {
        if line.len() > 1 && line.chars().count() + 1 + word.chars().count() > width {
            let _ = writeln!(text, "{line}");
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Vec<String>> {
        [["a", "1", "fine"], ["longer", "100", "not so fine"]]
            .map(|row| row.map(str::to_owned).to_vec())
            .to_vec()
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let expected = "name    n    state\na       1    fine\nlonger  100  not so fine\n";
        for width in [None, Some(24)] {
            assert_eq!(table(&["name", "n", "state"], &rows(), width), expected);
        }
    }

    #[test]
    fn a_narrow_terminal_gets_rows_in_lines() {
        let expected = "a\n  n 1, state fine\nlonger\n  n 100, state not\n  so fine\n";
        assert_eq!(table(&["name", "n", "state"], &rows(), Some(19)), expected);
    }
}
