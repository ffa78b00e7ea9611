//! Lines with titles, below a first line.

use std::fmt::Write as _;

use usher_terminal::fit;

/// Columns of titles, with those before and after them.
const TITLE: usize = 15;

/// Text for a terminal of so many columns.
pub(super) struct Lines {
    text: String,
    width: Option<usize>,
}

impl Lines {
    /// A text that begins with this line.
    pub(super) fn new(first: String, width: Option<usize>) -> Self {
        Self { text: first + "\n", width }
    }

    /// Adds a text behind a title, the lines that follow as far in as the first.
    pub(super) fn add(&mut self, title: &str, text: &str) {
        let mut title = format!("  {title:<12} ");
        for line in fit(text, self.width, TITLE) {
            // Writing to a string can't fail.
            let _ = writeln!(self.text, "{title:TITLE$}{line}");
            title.clear();
        }
    }

    /// The whole text.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}
