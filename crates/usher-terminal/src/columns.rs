//! Tables of columns that are as wide as what is in them.

use std::fmt::Write as _;

use crate::cells::{columns_of, padded};
use crate::wrap::wrap;

/// Spaces between two columns.
const GAP: usize = 2;

/// Columns that sentences in a table have at least.
const LEAST: usize = 30;

/// Spaces before the lines below a row's first cell.
const INDENT: usize = 2;

/// A space at which no line is broken.
const UNBROKEN: char = '\u{a0}';

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column<'a> {
    title: &'a str,
    /// Title above its own and those of its neighbours with the same group.
    group: &'a str,
    is_number: bool,
}

impl<'a> Column<'a> {
    /// A column that is aligned to the left.
    pub const fn text(title: &'a str) -> Self {
        Self { title, group: "", is_number: false }
    }

    /// A column that is aligned to the right.
    pub const fn number(title: &'a str) -> Self {
        Self { title, group: "", is_number: true }
    }

    /// The column as one of a group of neighbours, whose title stands above theirs.
    pub const fn of(self, group: &'a str) -> Self {
        Self { group, ..self }
    }

    fn align(self, cell: &str, width: usize) -> String {
        if self.is_number {
            format!("{}{cell}", " ".repeat(width.saturating_sub(columns_of(cell))))
        } else {
            padded(cell, width)
        }
    }

    /// A cell after the title; a number stays beside it.
    fn titled(self, cell: &str) -> String {
        let text = format!("{} {cell}", self.title);
        let text = text.trim();
        if self.is_number { text.replace(' ', &UNBROKEN.to_string()) } else { text.to_owned() }
    }
}

/// A table. Where the lines would be longer than `width`, the text of the last column is broken. Where there is
/// too little room for that, a row is a line with its first cell, and below it the others with their titles. A
/// column without a title and with empty cells alone is left out.
pub fn table(columns: &[Column<'_>], rows: &[Vec<String>], width: Option<usize>) -> String {
    let is_used = |at: &usize| {
        let title = columns.get(*at).map_or("", |column| column.title);
        !title.is_empty() || rows.iter().any(|row| row.get(*at).is_some_and(|cell| !cell.is_empty()))
    };
    let used: Vec<usize> = (0..columns.len()).filter(is_used).collect();
    let columns: Vec<Column<'_>> = used.iter().filter_map(|at| columns.get(*at).copied()).collect();
    let cell = |row: &Vec<String>, at: usize| row.get(at).cloned().unwrap_or_default();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| used.iter().map(|at| cell(row, *at)).collect()).collect();
    let mut widths = widths(&columns, &rows);
    let all = span(&widths);
    if let Some(width) = width.filter(|width| all > *width) {
        let taken = all - widths.last().copied().unwrap_or(0);
        match room(&columns, &rows, width.saturating_sub(taken)).zip(widths.last_mut()) {
            Some((room, last)) => *last = room,
            None => return rows.iter().map(|row| stacked(&columns, row, width)).collect(),
        }
    }
    let mut text = groups(&columns, &widths);
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let has_titles = titles.iter().any(|title| !title.is_empty());
    for row in has_titles.then_some(&titles).into_iter().chain(&rows) {
        let last = row.last().map_or("", String::as_str);
        let lines = wrap(last, widths.last().copied().unwrap_or(0));
        for at in 0..lines.len().max(1) {
            let cell = |column: usize, cell: &String| match (column + 1 == columns.len(), at) {
                (true, _) => lines.get(at).cloned().unwrap_or_default(),
                (false, 0) => cell.clone(),
                (false, _) => String::new(),
            };
            let cells = columns.iter().zip(row).zip(&widths).enumerate();
            let cells = cells.map(|(n, ((column, text), width))| column.align(&cell(n, text), *width));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            // Writing to a string can't fail.
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

/// Columns in which the text of the last column can be broken; `None`: there are too few.
fn room(columns: &[Column<'_>], rows: &[Vec<String>], left: usize) -> Option<usize> {
    let is_text = columns.last().is_some_and(|column| !column.is_number && columns_of(column.title) <= left);
    let words = rows.iter().filter_map(|row| row.last()).flat_map(|cell| cell.split(' '));
    let longest = words.map(columns_of).max().unwrap_or(0);
    (is_text && columns.len() > 1 && left >= LEAST && longest <= left).then_some(left)
}

/// Widths of the columns. A group whose title is longer than its columns makes the first of these wider.
fn widths(columns: &[Column<'_>], rows: &[Vec<String>]) -> Vec<usize> {
    let of = |at: usize, column: &Column<'_>| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| columns_of(cell));
        cells.max().unwrap_or(0).max(columns_of(column.title))
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(|(at, column)| of(at, column)).collect();
    let mut start = 0;
    for group in columns.chunk_by(|one, other| one.group == other.group) {
        let span = span(widths.get(start..start + group.len()).unwrap_or(&[]));
        let title = group.first().map_or(0, |column| columns_of(column.group));
        if let Some(first) = widths.get_mut(start) {
            *first += title.saturating_sub(span);
        }
        start += group.len();
    }
    widths
}

/// Width of neighbours with the gaps between them.
fn span(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// The line above the titles; empty without groups.
fn groups(columns: &[Column<'_>], widths: &[usize]) -> String {
    if columns.iter().all(|column| column.group.is_empty()) {
        return String::new();
    }
    let (mut start, mut cells) = (0, Vec::new());
    for group in columns.chunk_by(|one, other| one.group == other.group) {
        let span = span(widths.get(start..start + group.len()).unwrap_or(&[]));
        cells.extend(group.first().map(|column| column.align(column.group, span)));
        start += group.len();
    }
    format!("{}\n", cells.join(&" ".repeat(GAP)).trim_end())
}

/// A row below its first cell, in lines that are no longer than `width` where no word is. Each group of
/// columns begins a line.
fn stacked(columns: &[Column<'_>], row: &[String], width: usize) -> String {
    let mut text = String::new();
    if let Some((column, name)) = columns.iter().zip(row).next().filter(|(_, name)| !name.is_empty()) {
        // A number alone says nothing.
        let name = if column.is_number { column.titled(name) } else { name.clone() };
        text = name.replace(UNBROKEN, " ") + "\n";
    }
    let cells: Vec<(&Column<'_>, &String)> = columns.iter().zip(row).skip(1).collect();
    for group in cells.chunk_by(|(one, _), (other, _)| one.group == other.group) {
        let filled = group.iter().filter(|(_, cell)| !cell.is_empty());
        let parts: Vec<String> = filled.map(|(column, cell)| column.titled(cell)).collect();
        if parts.is_empty() {
            continue;
        }
        let title = group.first().map_or("", |(column, _)| column.group);
        let title = if title.is_empty() { String::new() } else { format!("{title}: ") };
        let line = format!("{title}{}", parts.join(", "));
        let indent = " ".repeat(INDENT);
        for line in wrap(&line, width.saturating_sub(INDENT)) {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{indent}{}", line.replace(UNBROKEN, " "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<'_>; 3] = [Column::text("name"), Column::text("n"), Column::text("state")];

    fn rows() -> Vec<Vec<String>> {
        [["a", "1", "fine"], ["longer", "100", "not so fine"]]
            .map(|row| row.map(str::to_owned).to_vec())
            .to_vec()
    }

    #[test]
    fn columns_fit_their_content() {
        let expected = "name    n    state\na       1    fine\nlonger  100  not so fine\n";
        for width in [None, Some(24)] {
            assert_eq!(table(&COLUMNS, &rows(), width), expected);
        }
    }

    #[test]
    fn numbers_align_right_and_empty_columns_go() {
        let columns = [Column::text("name"), Column::text(""), Column::number("n"), Column::text("state")];
        let rows: Vec<Vec<String>> = rows()
            .into_iter()
            .map(|row| vec![row[0].clone(), String::new(), row[1].clone(), row[2].clone()])
            .collect();
        let expected = "name      n  state\na         1  fine\nlonger  100  not so fine\n";
        assert_eq!(table(&columns, &rows, None), expected);
    }

    #[test]
    fn narrow_terminal_shows_rows_as_lines() {
        let expected = "a\n  n 1, state fine\nlonger\n  n 100, state not\n  so fine\n";
        assert_eq!(table(&COLUMNS, &rows(), Some(19)), expected);
    }

    #[test]
    fn last_column_wraps_where_there_is_room() {
        let rows = [["a", "10", "it asks for more than may be added in the period"], ["b", "7", "fine"]]
            .map(|row| row.map(str::to_owned).to_vec());
        let columns = [Column::text("name"), Column::number("n"), Column::text("why")];
        let expected = "name   n  why\na     10  it asks for more than may be\n          added in the period\n\
                        b      7  fine\n";
        assert_eq!(table(&columns, &rows, Some(40)), expected);
        assert!(table(&columns, &rows, Some(39)).starts_with("a\n  n 10, why it asks"));
    }

    #[test]
    fn wide_characters_keep_columns_aligned() {
        let rows =
            [["模型模型", "1", "好"], ["model", "100", "fine"]].map(|row| row.map(str::to_owned).to_vec());
        let expected = "name      n    state\n模型模型  1    好\nmodel     100  fine\n";
        assert_eq!(table(&COLUMNS, &rows, Some(20)), expected);
        assert!(table(&COLUMNS, &rows, Some(19)).starts_with("模型模型\n"));
        let numbers = [Column::number("n")];
        let rows = [["模型"], ["1"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&numbers, &rows, None), "   n\n模型\n   1\n");
    }

    #[test]
    fn a_group_has_its_title_above_its_columns() {
        let columns = [
            Column::text(""),
            Column::number("p50").of("first token, s"),
            Column::number("p90").of("first token, s"),
            Column::number("p90").of("all, s"),
        ];
        let row = ["a", "0.1", "0.25", "1.5"].map(str::to_owned).to_vec();
        let rows = [row];
        let expected = "   first token, s  all, s\n        p50   p90     p90\na       0.1  0.25     1.5\n";
        assert_eq!(table(&columns, &rows, Some(80)), expected);
        let narrow = "a\n  first token, s:\n  p50 0.1, p90 0.25\n  all, s: p90 1.5\n";
        assert_eq!(table(&columns, &rows, Some(22)), narrow);
    }
}
