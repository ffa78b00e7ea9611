//! Collects all errors of a document from a reader that stops at the first.

use std::collections::HashSet;

use super::error::{ConfigError, Position};
use super::node::{Node, Value};

/// Most errors reported of a document.
const MOST_ERRORS: usize = 50;

/// Most reads of a document. An error may have many consequences.
const MOST_READS: usize = 500;

/// Result of repeated reads of a document, each without the parts that the reads before refused.
///
/// A part that is left out may cause further errors. One is not reported if its position encloses a
/// part that was left out, or if it names a plugin that was.
#[derive(Debug)]
pub struct Survey<T> {
    /// The value of the document; with errors, that of the rest of it, if it could be read.
    pub value: Option<T>,
    /// Errors, in the order of the file.
    pub errors: Vec<ConfigError>,
    left_out: LeftOut,
}

impl<T> Survey<T> {
    /// Reads a document until the rest of it has no error.
    pub fn of(root: &Node, mut read: impl FnMut(&Node) -> Result<T, ConfigError>) -> Self {
        let mut survey = Self { value: None, errors: Vec::new(), left_out: LeftOut::default() };
        let mut rest = None;
        for _ in 0..MOST_READS {
            let error = match read(rest.as_ref().unwrap_or(root)) {
                Ok(value) => {
                    survey.value = Some(value);
                    break;
                }
                Err(error) => error,
            };
            let rest = rest.get_or_insert_with(|| root.clone());
            let is_consequence = survey.left_out.explains(&error);
            let is_left_out =
                error.position().is_some_and(|at| survey.left_out.add(rest, at, &error.message()));
            if !is_consequence {
                survey.errors.push(error);
            }
            if !is_left_out || survey.errors.len() == MOST_ERRORS {
                break;
            }
        }
        survey.errors.sort_by_key(ConfigError::position);
        survey
    }

    /// `true` if an error at this position may be a consequence of a part that was left out.
    pub fn is_consequence(&self, at: Position) -> bool {
        self.left_out.places.contains(&at)
    }

    /// The value, or all errors.
    ///
    /// # Errors
    /// All that were found, at least one.
    pub fn result(self) -> Result<T, Vec<ConfigError>> {
        match self.value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.errors),
        }
    }
}

/// Parts of a document that were left out.
#[derive(Debug, Default)]
struct LeftOut {
    /// Their places, and the places of what they were in.
    places: HashSet<Position>,
    /// Names of plugins that are not declared any more.
    plugins: HashSet<String>,
}

impl LeftOut {
    fn explains(&self, error: &ConfigError) -> bool {
        let message = error.message();
        error.position().is_some_and(|at| self.places.contains(&at))
            // It may be the plugin that was left out.
            || !self.plugins.is_empty() && message.starts_with("no profile handler")
            || self.plugins.iter().any(|name| message.contains(&format!("'{name}'")))
    }

    /// Leaves out the innermost part that begins at a place. Returns whether there is one.
    fn add(&mut self, root: &mut Node, at: Position, message: &str) -> bool {
        let before = plugin_names(root);
        let Some(path) = self.take_out(root, at, message) else { return false };
        // Under another name, or without a type, a plugin would be another one.
        if let [key, last, section] = &path[..]
            && section == "plugins"
            && (key == "name" || key == "type")
            && let Some(Node { value: Value::List(items), .. }) = root.get_mut(section)
            && let Ok(index) = last.parse::<usize>()
        {
            items.remove(index);
        }
        let after = plugin_names(root);
        self.plugins.extend(before.into_iter().filter(|name| !after.contains(name)));
        true
    }

    /// The same of a node. Returns the keys that lead there, the last one first.
    fn take_out(&mut self, node: &mut Node, at: Position, message: &str) -> Option<Vec<String>> {
        let start = node.at;
        let path = match &mut node.value {
            Value::Map(entries) => {
                let inner = entries.iter_mut().find_map(|entry| {
                    let mut path = self.take_out(&mut entry.value, at, message)?;
                    self.places.extend([entry.at, entry.value.at]);
                    path.push(entry.key.clone());
                    Some(path)
                });
                inner.or_else(|| {
                    let index = entries.iter().position(|entry| {
                        // A map in lines begins where its first key does.
                        let is_key = entry.at == at
                            && (entry.at != start || message.contains(&format!("'{}'", entry.key)));
                        is_key || entry.value.at == at
                    })?;
                    let entry = entries.remove(index);
                    self.places.extend([entry.at, entry.value.at]);
                    Some(vec![entry.key])
                })
            }
            Value::List(items) => {
                let inner = items.iter_mut().enumerate().find_map(|(index, item)| {
                    let mut path = self.take_out(item, at, message)?;
                    path.push(index.to_string());
                    Some(path)
                });
                inner.or_else(|| {
                    let index = items.iter().position(|item| item.at == at)?;
                    self.places.insert(items.remove(index).at);
                    Some(vec![index.to_string()])
                })
            }
            _ => None,
        };
        if path.is_some() {
            self.places.insert(start);
        }
        path
    }
}

/// Names of the declared plugins.
fn plugin_names(root: &Node) -> HashSet<String> {
    let declared = root.get("plugins").map(Node::items).unwrap_or_default().iter();
    let name = |plugin: &Node| {
        let name = plugin.get("name").and_then(Node::text).filter(|name| !name.is_empty());
        name.or_else(|| plugin.get("type")?.text()).map(str::to_owned)
    };
    declared.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EndpointPickerConfig;

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
    fn what_is_right_is_read_once() {
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
    fn an_error_without_a_place_and_one_of_the_whole_end_it() {
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
        assert_eq!(errors(&text).len(), MOST_ERRORS);
    }
}
