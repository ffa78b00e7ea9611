//! The tables of docs/guide/migrate-from-llm-d.md. What has no row there is the same.

const PAGE: &str = "docs/guide/migrate-from-llm-d.md";

/// A row: a name, or a prefix of names that ends in `…`, and the word for its support.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) is: String,
}

impl Row {
    /// Returns `true` if the row covers this name.
    fn covers(&self, name: &str) -> bool {
        matches(&self.name, name)
    }
}

/// Returns `true` if a name equals a written one, or begins with one that ends in `…`.
pub(crate) fn matches(written: &str, name: &str) -> bool {
    written.strip_suffix('…').map_or(written == name, |start| name.starts_with(start))
}

const WORDS: [&str; 4] = ["same", "better", "missing", "ours"];

/// The text below a heading.
pub(crate) fn section(heading: &str) -> String {
    let guide = std::fs::read_to_string(PAGE).unwrap();
    let (_, section) = guide.split_once(&format!("\n## {heading}\n")).expect(heading);
    section.split("\n## ").next().unwrap_or_default().to_owned()
}

/// The table below a heading. Every row has to say one of the four words.
pub(crate) fn table(heading: &str) -> Vec<Row> {
    let section = section(heading);
    let lines = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows: Vec<Row> = lines.skip(1).take_while(|line| line.starts_with("| ")).map(row).collect();
    assert!(!rows.is_empty(), "{heading}");
    rows
}

fn row(line: &str) -> Row {
    let mut cells = line.trim_matches('|').split(" | ").map(str::trim);
    let name = cells.next().and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
    let is = cells.next().filter(|cell| WORDS.contains(cell));
    let (Some(name), Some(is)) = (name, is) else { panic!("{line}") };
    Row { name: name.to_owned(), is: is.to_owned() }
}

/// Word of the row that covers this name; `same` without one.
#[track_caller]
pub(crate) fn becomes<'a>(rows: &'a [Row], name: &str) -> &'a str {
    let mut of = rows.iter().filter(|row| row.covers(name));
    let is = of.next().map_or("same", |row| row.is.as_str());
    assert!(of.next().is_none(), "{name} has two rows");
    is
}

/// Asserts that every row is of one of these names.
#[track_caller]
pub(crate) fn assert_known(rows: &[Row], names: &[&str]) {
    for row in rows {
        assert!(names.iter().any(|name| row.covers(name)), "unknown: {row:?}");
    }
}
