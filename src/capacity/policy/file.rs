//! Policies of a file: one or several documents.

use std::collections::BTreeMap;

use super::Policy;
use super::spec::Document;
use super::validate::{Problem, problems};
use crate::config::{ConfigError, Node, Position, Value};

/// A policy of a file.
#[derive(Clone, Debug)]
pub struct Read {
    /// What it means.
    pub policy: Policy,
    /// What looks wrong and may be meant, with its place.
    pub warnings: Vec<ConfigError>,
}

/// Reads the policies of a file.
///
/// # Errors
/// All that is wrong, in the order of the file; at least one. What can't be read as YAML or as a policy
/// hides the rest of its document.
pub fn parse(text: &str) -> Result<Vec<Read>, Vec<ConfigError>> {
    let documents = Node::parse_all(text).map_err(|error| vec![error])?;
    if documents.is_empty() {
        return Err(vec![ConfigError::new("there is no policy in it").hint("write one document per policy")]);
    }
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    let mut names: BTreeMap<String, Position> = BTreeMap::new();
    for node in &documents {
        let document: Document = match node.decode() {
            Ok(document) => document,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let found = problems(&document);
        let place = |problem: &Problem| {
            let error = ConfigError::at(
                position(node, &problem.path),
                format!("{} {}", problem.path, problem.message),
            );
            (error, problem.is_error)
        };
        let (wrong, warnings): (Vec<_>, Vec<_>) =
            found.iter().map(place).partition(|(_, is_error)| *is_error);
        errors.extend(wrong.into_iter().map(|(error, _)| error));
        let name = document.metadata.name.clone();
        if let Some(first) = names.insert(name.clone(), node.at) {
            let hint = format!("the first one begins in line {}", first.line);
            errors.push(ConfigError::at(node.at, format!("a second policy is called '{name}'")).hint(hint));
        }
        let warnings = warnings.into_iter().map(|(warning, _)| warning).collect();
        read.push(Read { policy: Policy::of(&document), warnings });
    }
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

/// The place of a path, or of the innermost part of it that is there.
fn position(node: &Node, path: &str) -> Position {
    let mut at = node.at;
    let mut node = node;
    let mut rest = path;
    while !rest.is_empty() {
        // Names may have dots in them, so the longest key that fits is meant.
        let key = match &node.value {
            Value::Map(entries) => entries
                .iter()
                .filter(|entry| {
                    rest == entry.key || rest.strip_prefix(&entry.key).is_some_and(|r| r.starts_with('.'))
                })
                .max_by_key(|entry| entry.key.len())
                .map(|entry| (entry.key.len(), entry.at, &entry.value)),
            Value::List(items) => {
                let end = rest.find('.').unwrap_or(rest.len());
                rest[..end]
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| items.get(index))
                    .map(|item| (end, item.at, item))
            }
            _ => None,
        };
        let Some((length, place, next)) = key else { break };
        (at, node) = (place, next);
        rest = rest.get(length + 1..).unwrap_or_default();
    }
    at
}
