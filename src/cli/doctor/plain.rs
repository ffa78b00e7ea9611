//! Words of others.

/// Words of others on one line: what a terminal would take for a command is left out.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
