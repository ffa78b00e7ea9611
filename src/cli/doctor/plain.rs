//! Words of others.

use crate::records::is_unprintable;

/// Words of others on one line: what a terminal would take for a command, or not show, is left out.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }).collect()
}
