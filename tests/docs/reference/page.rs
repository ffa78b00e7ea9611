//! A page whose end is written from the code.

/// Set: pages are written instead of compared.
const ACCEPT: &str = "USHER_ACCEPT";

/// Asserts that a page says what the code says behind the marker, or writes it where [`ACCEPT`] is set.
/// `source` is where the marker says that it comes from.
#[track_caller]
pub(crate) fn assert_written(path: &str, source: &str, text: &str) {
    let marker = format!("<!-- From here on `make docs-accept` writes, from {source}. -->");
    let page = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (before, _) = page.split_once(&marker).unwrap_or_else(|| panic!("{path} lacks {marker}"));
    let written = format!("{before}{marker}\n\n{text}");
    if std::env::var_os(ACCEPT).is_some() {
        std::fs::write(path, written).unwrap();
        return;
    }
    let (now, then): (Vec<&str>, Vec<&str>) = (page.lines().collect(), written.lines().collect());
    let differing = (0..now.len().max(then.len())).find(|&line| now.get(line) != then.get(line));
    let shown = |lines: &[&str], line: usize| lines.get(line).map_or("(nothing)", |text| text).to_owned();
    let differing = differing
        .map(|line| format!("line {}:\n- {}\n+ {}", line + 1, shown(&now, line), shown(&then, line)));
    assert!(
        page == written,
        "{path} is not what the code says; `make docs-accept` writes it anew\n{}",
        differing.unwrap_or_default()
    );
}

/// A row of a table.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> String {
    let cells = cells.map(|cell| match cell {
        "" => String::new(),
        cell => format!(" {}", cell.replace('|', "\\|")),
    });
    format!("|{} |\n", cells.join(" |"))
}
