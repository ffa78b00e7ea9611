//! The tables of docs/guide/migrate-from-llm-d.md.

/// A row: the name, the older name where its table has one, and what becomes of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) older: Option<String>,
    pub(crate) is: String,
}

const WORDS: [&str; 4] = ["same", "better", "missing", "ours"];

/// The table below a heading. Every row has to say one of the four words.
pub(crate) fn table(heading: &str) -> Vec<Row> {
    let guide = std::fs::read_to_string("docs/guide/migrate-from-llm-d.md").unwrap();
    let (_, section) = guide.split_once(&format!("\n## {heading}\n")).expect(heading);
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows: Vec<Row> = lines.skip(1).take_while(|line| line.starts_with("| ")).map(row).collect();
    assert!(!rows.is_empty(), "{heading}");
    rows
}

fn row(line: &str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let name = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let word = cells.iter().position(|cell| WORDS.contains(cell)).unwrap_or_else(|| panic!("{line}"));
    let older = (word == 2).then(|| name(cells[1])).flatten();
    Row { name: name(cells[0]).unwrap_or_else(|| panic!("{line}")), older, is: cells[word].to_owned() }
}

/// Asserts that the table has each of these names once, and no other.
#[track_caller]
pub(crate) fn assert_names<'a>(rows: &[Row], names: impl IntoIterator<Item = &'a str>) {
    let mut expected: Vec<&str> = names.into_iter().collect();
    let mut found: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    expected.sort_unstable();
    found.sort_unstable();
    let lacks: Vec<_> = expected.iter().filter(|name| !found.contains(name)).collect();
    let surplus: Vec<_> = found.iter().filter(|name| !expected.contains(name)).collect();
    assert_eq!(found, expected, "without a row: {lacks:?}; unknown: {surplus:?}");
}
