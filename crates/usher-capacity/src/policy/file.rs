//! Policy files with one or several documents.

use std::collections::BTreeMap;

use super::Policy;
use super::spec::{Document, KIND, group};
use super::validate::{Problem, problems};
use usher_core::config::{ConfigError, FileKind, Node, Position, Survey, Value};

/// A policy of a file.
#[derive(Clone, Debug)]
pub struct Read {
    /// Resolved policy.
    pub policy: Policy,
    /// ClusterTopology that it names. Its layers are unknown here: [`Policy::of`] used the built-in ones.
    pub cluster_topology: Option<String>,
    /// Warnings about suspicious values, each with its position.
    pub warnings: Vec<ConfigError>,
}

/// Reads the policies of a file.
///
/// # Errors
/// All errors in the order of the file, at least one. Invalid YAML hides later ones.
pub fn parse(text: &str) -> Result<Vec<Read>, Vec<ConfigError>> {
    let documents = Node::parse_all(text).map_err(|error| vec![error])?;
    if documents.is_empty() {
        return Err(vec![ConfigError::new("there is no policy in it").hint("write one document per policy")]);
    }
    read(&documents)
}

/// Reads the policies of some documents of a file.
///
/// # Errors
/// All errors in the order of the documents, at least one.
pub fn read(documents: &[Node]) -> Result<Vec<Read>, Vec<ConfigError>> {
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    let mut names: BTreeMap<String, Position> = BTreeMap::new();
    let mut targets = BTreeMap::new();
    for node in documents {
        match FileKind::of(node) {
            Some((FileKind::Other(kind), at)) => {
                let error = ConfigError::at(at, format!("kind '{kind}' is not known"));
                errors.push(error.hint(format!("write kind: {KIND}")));
                continue;
            }
            Some((kind @ (FileKind::Config | FileKind::Topology | FileKind::Endpoints), at)) => {
                errors.push(kind.instead_of(&FileKind::Policy, at));
                continue;
            }
            Some((FileKind::Policy, _)) | None => {}
        }
        let mut survey = Survey::of(node, Node::decode::<Document>);
        let mut wrong = std::mem::take(&mut survey.errors);
        let Some(document) = survey.value.take() else {
            errors.append(&mut wrong);
            continue;
        };
        let mut warnings = Vec::new();
        for Problem { path, message, is_error } in problems(&document) {
            let at = position(node, &path);
            let error = ConfigError::at(at, format!("{path} {message}"));
            match is_error {
                true if survey.is_consequence(&error) => {}
                true => wrong.push(error),
                false => warnings.push(error),
            }
        }
        errors.append(&mut wrong);
        let name = document.metadata.name.clone();
        if !name.is_empty()
            && let Some(first) = names.insert(name.clone(), node.at)
        {
            let hint = format!("the first one begins in line {}", first.line);
            errors.push(ConfigError::at(node.at, format!("a second policy is called '{name}'")).hint(hint));
        }
        for (role, spec) in &document.spec.roles {
            let Some(target) = &spec.scale_target_ref else { continue };
            let at = position(node, &format!("spec.roles.{role}.scaleTargetRef"));
            // Policies of a file scale targets in the picker's namespace, whatever their own.
            let key = (group(&target.api_version).to_owned(), target.kind.clone(), target.name.clone());
            if let Some((first, of)) = targets.insert(key, (role.clone(), name.clone())) {
                let (kind, target) = (&target.kind, &target.name);
                let what = format!(
                    "{kind} '{target}' is scaled by role '{role}', and by '{first}' of policy '{of}'"
                );
                errors.push(ConfigError::at(at, what).hint("keep a role in one policy"));
            }
        }
        let topology = document.spec.deploy.as_ref().and_then(|deploy| deploy.topology.as_ref());
        let cluster_topology = topology.and_then(|topology| topology.cluster_topology.clone());
        read.push(Read { policy: Policy::of(&document), cluster_topology, warnings });
    }
    // An error without a position reports further ones.
    errors.sort_by_key(|error| (error.position().is_none(), error.position()));
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

/// Position of a path, or of its innermost existing part.
pub(crate) fn position(node: &Node, path: &str) -> Position {
    let mut at = node.at;
    let mut node = node;
    let mut rest = path;
    while !rest.is_empty() {
        // Names may contain dots, so the longest matching key wins.
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
