//! Errors that say where in the file they are.

use std::fmt;

/// A place in a text; both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// An error in a configuration: its description, its place, and a hint on how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    position: Option<Position>,
    plugin: Option<String>,
    field: Option<String>,
    /// The message doesn't say of which field it speaks.
    about_value: bool,
    message: String,
    hint: Option<String>,
    /// `true` if it may pass without a change of the file.
    temporary: bool,
}

impl ConfigError {
    /// An error that applies to the whole file until it is placed.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            position: None,
            plugin: None,
            field: None,
            about_value: false,
            message: message.into(),
            hint: None,
            temporary: false,
        }
    }

    /// An error about a value; the caller adds the field's name.
    pub(super) fn of_value(message: impl Into<String>) -> Self {
        Self { about_value: true, ..Self::new(message) }
    }

    /// An error at a place.
    pub fn at(position: Position, message: impl Into<String>) -> Self {
        Self { position: Some(position), ..Self::new(message) }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Marks an error that may pass without a change of the file: what it lacks room for others use now, and will give
    /// back.
    #[must_use]
    pub fn temporary(mut self) -> Self {
        self.temporary = true;
        self
    }

    /// Returns `true` if it may pass without a change of the file.
    pub fn is_temporary(&self) -> bool {
        self.temporary
    }

    /// Asks whether a similar word was meant, if there is one.
    #[must_use]
    pub fn did_you_mean<'a>(self, word: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(word, known) {
            Some(similar) => self.hint(format!("did you mean `{similar}`?")),
            None => self,
        }
    }

    /// Places the error unless it has a place already: the innermost is the most exact.
    #[must_use]
    pub fn or_at(mut self, position: Position) -> Self {
        self.position.get_or_insert(position);
        self
    }

    /// Names the plugin that the error is about, unless it is named already.
    #[must_use]
    pub fn in_plugin(mut self, name: &str) -> Self {
        self.plugin.get_or_insert_with(|| name.to_owned());
        self
    }

    /// The error with another name wherever it names this.
    pub(super) fn with_name(self, name: &str, other: &str) -> Self {
        let renamed = |text: String| text.replace(name, other);
        Self {
            plugin: self.plugin.map(renamed),
            message: renamed(self.message),
            hint: self.hint.map(renamed),
            ..self
        }
    }

    /// Names the field whose value is wrong, unless the message does so.
    pub(super) fn in_field(mut self, name: &str) -> Self {
        if std::mem::take(&mut self.about_value) {
            self.field = Some(name.to_owned());
        }
        self
    }

    /// Position of the error, unless it applies to the whole file.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// The plugin that it is about.
    pub fn plugin(&self) -> Option<&str> {
        self.plugin.as_deref()
    }

    /// Hint on how to fix it, if there is one.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Description of the error with plugin and field, without place and hint.
    pub fn message(&self) -> String {
        let plugin = self.plugin.as_ref().map(|name| format!("plugin '{name}': "));
        let field = self.field.as_ref().map(|name| format!("{name}: "));
        format!("{}{}{}", plugin.unwrap_or_default(), field.unwrap_or_default(), self.message)
    }

    /// One line as compilers write it: `FILE:LINE:COLUMN: message (hint)`.
    pub fn in_file(&self, file: &str) -> String {
        let place = self.position.map_or_else(String::new, |p| format!("{}:{}:", p.line, p.column));
        format!("{file}:{place} {}", self.with_hint())
    }

    /// On one line, whatever the names that it quotes hold.
    fn with_hint(&self) -> String {
        let text = match &self.hint {
            Some(hint) => format!("{} ({hint})", self.message()),
            None => self.message(),
        };
        text.replace(char::is_control, " ")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Position { line, column }) = self.position {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.with_hint())
    }
}

impl std::error::Error for ConfigError {}

/// The known word that needs the fewest edits, if they are few for its length; else the
/// only one that begins or ends with this one, as `data` begins `dataLayer`.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let length = word.chars().count();
    let limit = (length / 3).clamp(1, 4);
    let mut best = None;
    let (mut part_of, mut parts) = (None, 0);
    for candidate in known {
        let lower = candidate.to_lowercase();
        let distance = edits(&word, &lower);
        if distance <= limit && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
        if lower.starts_with(&word) || lower.ends_with(&word) {
            part_of = Some(candidate);
            parts += 1;
        }
    }
    let part_of = part_of.filter(|_| parts == 1 && length >= LEAST_PART);
    best.map(|(_, candidate)| candidate).or(part_of)
}

/// Characters from which a part of a word says which one was meant.
const LEAST_PART: usize = 4;

/// Levenshtein distance with swaps of neighbours counted as one edit.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_words_are_found() {
        let known = ["weight", "pluginRef", "maxNumOfEndpoints"];
        assert_eq!(nearest("wieght", known), Some("weight"));
        assert_eq!(nearest("maxnumofendpoint", known), Some("maxNumOfEndpoints"));
        assert_eq!(nearest("ref", known), None);
        assert_eq!(nearest("endpoints", known), Some("maxNumOfEndpoints"));
        assert_eq!(nearest("data", ["dataLayer", "plugins"]), Some("dataLayer"));
        assert_eq!(nearest("data", ["dataLayer", "dataSource"]), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, count) in
            [("", "", 0), ("", "abc", 3), ("abc", "abc", 0), ("ab", "ba", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(a, b), count, "{a} {b}");
            assert_eq!(edits(b, a), count, "{b} {a}");
        }
    }

    #[test]
    fn first_position_of_an_error_is_kept() {
        let position = |line| Position { line, column: 1 };
        let error = ConfigError::at(position(3), "bad").or_at(position(1)).hint("do it well").in_plugin("p");
        assert_eq!(error.in_file("f.yaml"), "f.yaml:3:1: plugin 'p': bad (do it well)");
        assert_eq!(error.to_string(), "line 3, column 1: plugin 'p': bad (do it well)");
        assert_eq!(ConfigError::new("empty").in_file("f.yaml"), "f.yaml: empty");
        assert_eq!(ConfigError::new("a\nb\u{1b}c").to_string(), "a b c");
    }
}
