//! Collects all errors of a document from a reader that stops at the first.

use super::error::ConfigError;
use super::left_out::LeftOut;
use super::node::Node;

/// Most errors reported of a document.
const MOST_ERRORS: usize = 50;

/// Most reads of a document. An error may have many consequences.
const MOST_READS: usize = 500;

/// Result of repeated reads of a document, each without the parts that the reads before refused.
///
/// A part that is left out may be missed elsewhere. An error is taken for such a consequence, and not
/// reported, if it is about a place around something that was left out and names it, or names a plugin
/// that was.
#[derive(Debug)]
pub struct Survey<T> {
    /// The value of the document; with errors, that of the rest of it, if it could be read.
    pub value: Option<T>,
    /// Errors, in the order of the file. If there are more than can be shown, the last one says so, without
    /// a place.
    pub errors: Vec<ConfigError>,
    left_out: LeftOut,
}

impl<T> Survey<T> {
    /// Reads a document until the rest of it has no error.
    pub fn of(root: &Node, mut read: impl FnMut(&Node) -> Result<T, ConfigError>) -> Self {
        let mut survey = Self { value: None, errors: Vec::new(), left_out: LeftOut::default() };
        let mut rest = None;
        let mut reads = 0;
        let has_more = loop {
            if reads == MOST_READS {
                break true;
            }
            reads += 1;
            let error = match read(rest.as_ref().unwrap_or(root)) {
                Ok(value) => {
                    survey.value = Some(value);
                    break false;
                }
                Err(error) => error,
            };
            let rest = rest.get_or_insert_with(|| root.clone());
            let is_consequence = survey.left_out.explains(&error);
            if !is_consequence && survey.errors.len() == MOST_ERRORS {
                break true;
            }
            let is_left_out = survey.left_out.add(rest, &error);
            if !is_consequence {
                survey.errors.push(survey.left_out.as_written(error));
            }
            if !is_left_out {
                break false;
            }
        };
        survey.errors.sort_by_key(ConfigError::position);
        if has_more {
            let shown = survey.errors.len();
            let message = format!("there are more errors than the {shown} that are shown");
            survey.errors.push(ConfigError::new(message).hint("correct these first"));
        }
        survey
    }

    /// Returns `true` if an error may be a consequence of what was left out.
    pub fn is_consequence(&self, error: &ConfigError) -> bool {
        self.left_out.explains(error)
    }

    /// The value, or all errors.
    ///
    /// # Errors
    /// Every `ConfigError` that was found, at least one.
    pub fn result(self) -> Result<T, Vec<ConfigError>> {
        match self.value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EndpointPickerConfig, Position};

    fn errors(text: &str) -> Vec<String> {
        let root = Node::parse(text).unwrap();
        let errors = Survey::of(&root, EndpointPickerConfig::of).errors;
        errors.iter().map(|error| error.in_file("f")).collect()
    }

    #[test]
    fn every_error_is_found_in_the_order_of_the_file() {
        let text = "\
featureGates: [flow, flowControl=perhaps]
plugins:
- name: a
  tpye: queue-scorer
- typ: queue-scorer
  type: queue-scorer
  weight: 2
- {name: [], type: random-picker}
schedulingProfiles:
- name: main
  plugins:
  - {pluginRef: a, wieght: 2}
  - {pluginRef: b, weight: .nan}
  - {pluginRef: c, weight: heavy}
surprise: true
";
        let found = errors(text);
        let starts = [
            "f:1:16: unknown feature gate 'flow'",
            "f:1:22: feature gate 'flowControl': \"perhaps\" is not a boolean",
            "f:4:3: plugin 'a': unknown field 'tpye'",
            "f:5:3: plugin 'queue-scorer': unknown field 'typ'",
            "f:7:3: plugin 'queue-scorer': unknown field 'weight'",
            "f:8:10: name: expected text, found a list",
            "f:12:20: unknown field 'wieght'",
            "f:13:28: a weight has to be a finite number",
            "f:14:28: weight: expected a number, found 'heavy'",
            "f:15:1: unknown field 'surprise'",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (found, start) in found.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}, not {start}");
        }
    }

    #[test]
    fn consequences_are_not_reported() {
        // The type that is missing is the one that is misspelt.
        let found = errors("plugins:\n- name: a\n  tpye: queue-scorer\n");
        assert_eq!(found.len(), 1, "{found:?}");
        let found = errors("dataLayer:\n  sources:\n  - pluginReef: a\n");
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn valid_document_is_read_once() {
        let root = Node::parse("plugins: []\n").unwrap();
        let mut reads = 0;
        let survey = Survey::of(&root, |root| {
            reads += 1;
            EndpointPickerConfig::of(root)
        });
        assert!(survey.result().is_ok());
        assert_eq!(reads, 1);
    }

    #[test]
    fn error_without_position_or_at_the_root_ends_survey() {
        let root = Node::parse("a: 1\nb: 2\n").unwrap();
        for error in [ConfigError::new("bad"), ConfigError::at(root.at, "bad")] {
            let mut reads = 0;
            let survey = Survey::<()>::of(&root, |_| {
                reads += 1;
                Err(error.clone())
            });
            assert_eq!((reads, survey.errors.len(), survey.value), (1, 1, None));
        }
    }

    #[test]
    fn the_number_of_errors_is_bounded() {
        let text: String = (0..200).map(|number| format!("key{number}: 1\n")).collect();
        let found = errors(&text);
        assert_eq!(found.len(), MOST_ERRORS + 1);
        let last = "f: there are more errors than the 50 that are shown (correct these first)";
        assert_eq!(found.last().map(String::as_str), Some(last));
        let text: String = (0..MOST_ERRORS).map(|number| format!("key{number}: 1\n")).collect();
        assert_eq!(errors(&text).len(), MOST_ERRORS, "these are all");
    }

    /// Errors of a reader that finds these messages at these places, as long as these keys are there.
    fn errors_at(text: &str, found: &[(&str, (u32, u32), &str)]) -> Vec<String> {
        fn has(node: &Node, key: &str) -> bool {
            node.entries().iter().any(|entry| entry.key == key || has(&entry.value, key))
                || node.items().iter().any(|item| has(item, key))
        }
        let root = Node::parse(text).unwrap();
        let survey = Survey::of(&root, |root| {
            let error = found.iter().find(|(key, _, _)| has(root, key));
            error.map_or(Ok(()), |(_, (line, column), message)| {
                Err(ConfigError::at(Position { line: *line, column: *column }, *message))
            })
        });
        survey.errors.iter().map(ConfigError::message).collect()
    }

    #[test]
    fn error_in_an_enclosing_item_is_reported() {
        let text = "list:\n- first: 1\n  second: {third: 2}\n";
        let third = ("third", (3, 12), "third is wrong");
        let around = [third, ("first", (2, 3), "this item is there twice")];
        assert_eq!(errors_at(text, &around), ["this item is there twice", "third is wrong"]);
        let missed = [third, ("first", (2, 3), "'third' is missing")];
        assert_eq!(errors_at(text, &missed), ["third is wrong"], "it was left out");
    }

    #[test]
    fn error_in_a_duplicate_plugin_is_reported() {
        let text = "plugins:\n- type: a\n- type: a\n  parameters: {b: 1}\n";
        let root = Node::parse(text).unwrap();
        let survey = Survey::of(&root, |root| {
            let config = EndpointPickerConfig::of(root)?;
            let wrong = config.plugins.iter().find_map(|plugin| {
                let entry = plugin.parameters.entries().first()?;
                Some(ConfigError::at(entry.at, "unknown field 'b'").in_plugin(&plugin.name))
            });
            wrong.map_or(Ok(()), Err)
        });
        let found: Vec<String> = survey.errors.iter().map(|error| error.in_file("f")).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("f:3:9: duplicate plugin name 'a'"), "{found:?}");
        assert_eq!(found[1], "f:4:16: plugin 'a': unknown field 'b'");
    }
}
