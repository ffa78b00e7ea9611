//! Parts of a document that were left out, and the errors that follow from that.

use std::collections::{HashMap, HashSet};

use super::error::{ConfigError, Position};
use super::node::{Entry, Node, Value};

/// Start of the message about a plugin's name that another has already.
const DUPLICATE: &str = "duplicate plugin name '";

/// Parts of a document that were left out.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Their places, and the places of what they were in; each with the keys that are missed there.
    places: HashMap<Position, HashSet<String>>,
    /// Names of plugins that are not declared any more.
    plugins: HashSet<String>,
    /// Plugins that got a name of their own, as another has theirs.
    renamed: Vec<Renamed>,
}

/// A plugin under another name than in the file.
#[derive(Debug)]
struct Renamed {
    at: Position,
    written: String,
    now: String,
}

impl LeftOut {
    /// Returns `true` if an error may follow from a part that was left out.
    pub(super) fn explains(&self, error: &ConfigError) -> bool {
        let message = error.message();
        let misses = |keys: &HashSet<String>| words(&message).any(|word| keys.contains(word));
        error.position().and_then(|at| self.places.get(&at)).is_some_and(misses)
            // It may be the plugin that was left out.
            || !self.plugins.is_empty() && message.starts_with("no profile handler")
            || self.plugins.iter().any(|name| message.contains(&format!("'{name}'")))
            // A second plugin of a name may be one too many.
            || self.renamed.iter().any(|renamed| error.position() == Some(renamed.at))
    }

    /// The error with the names of the file.
    pub(super) fn as_written(&self, error: ConfigError) -> ConfigError {
        let renamed = self.renamed.iter();
        renamed.fold(error, |error, Renamed { written, now, .. }| error.with_name(now, written))
    }

    /// Leaves out the innermost part that begins where an error is. Returns whether there is one.
    pub(super) fn add(&mut self, root: &mut Node, error: &ConfigError) -> bool {
        let Some(at) = error.position() else { return false };
        let message = error.message();
        if message.starts_with(DUPLICATE) && self.rename(root, at) {
            return true;
        }
        let before = plugin_names(root);
        let mut around = Vec::new();
        let Some(path) = take_out(root, at, &message, &mut around) else { return false };
        let key = path.iter().find(|key| key.parse::<usize>().is_err());
        let meant = error.hint_text().and_then(|hint| hint.split('`').nth(1));
        let missed = key.map(String::as_str).into_iter().chain(meant);
        for place in around {
            self.places.entry(place).or_default().extend(missed.clone().map(str::to_owned));
        }
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

    /// Gives the plugin whose name or type is at a place a name that no file has, so that the rest of it is
    /// read. Returns whether there is one.
    fn rename(&mut self, root: &mut Node, at: Position) -> bool {
        let Some(Node { value: Value::List(items), .. }) = root.get_mut("plugins") else { return false };
        let is_there = |item: &&mut Node| {
            ["name", "type"].iter().any(|key| item.get(key).is_some_and(|value| value.at == at))
        };
        let Some(plugin) = items.iter_mut().find(is_there) else { return false };
        let Some(written) = name_of(plugin) else { return false };
        let now = format!("{written}\u{1}{}", self.renamed.len());
        self.renamed.push(Renamed { at: plugin.at, written, now: now.clone() });
        let value = Node { at, value: Value::Text(now) };
        if let Some(name) = plugin.get_mut("name") {
            *name = value;
        } else if let Value::Map(entries) = &mut plugin.value {
            entries.push(Entry { key: "name".to_owned(), at, value });
        }
        true
    }
}

/// Takes out the innermost part that begins at a place. Returns the keys that lead there, the last one
/// first, and adds the places of the part and of all around it.
fn take_out(node: &mut Node, at: Position, message: &str, around: &mut Vec<Position>) -> Option<Vec<String>> {
    let start = node.at;
    let path = match &mut node.value {
        Value::Map(entries) => {
            let inner = entries.iter_mut().find_map(|entry| {
                let mut path = take_out(&mut entry.value, at, message, around)?;
                around.extend([entry.at, entry.value.at]);
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
                around.extend([entry.at, entry.value.at]);
                Some(vec![entry.key])
            })
        }
        Value::List(items) => {
            let inner = items.iter_mut().enumerate().find_map(|(index, item)| {
                let mut path = take_out(item, at, message, around)?;
                path.push(index.to_string());
                Some(path)
            });
            inner.or_else(|| {
                let index = items.iter().position(|item| item.at == at)?;
                around.push(items.remove(index).at);
                Some(vec![index.to_string()])
            })
        }
        _ => None,
    };
    if path.is_some() {
        around.push(start);
    }
    path
}

/// Words of a message, with the signs that keys may have.
fn words(message: &str) -> impl Iterator<Item = &str> {
    message.split(|char: char| !char.is_alphanumeric() && !"-_/".contains(char))
}

/// Names of the declared plugins.
fn plugin_names(root: &Node) -> HashSet<String> {
    let declared = root.get("plugins").map(Node::items).unwrap_or_default().iter();
    declared.filter_map(name_of).collect()
}

fn name_of(plugin: &Node) -> Option<String> {
    let name = plugin.get("name").and_then(Node::text).filter(|name| !name.is_empty());
    name.or_else(|| plugin.get("type")?.text()).map(str::to_owned)
}
