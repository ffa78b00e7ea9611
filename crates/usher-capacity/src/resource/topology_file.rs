//! Files with ClusterTopologies, as `kubectl apply` takes them.

use std::collections::BTreeMap;

use serde::Deserialize;
use usher_core::config::{ConfigError, FileKind, Node, Position, Survey};

use super::topology::TopologyObjectSpec;
use super::{GROUP, VERSION};
use crate::policy::file::position;
use crate::policy::spec::Metadata;
use crate::policy::validate::{Problem, layer_problems};

/// Kind of topologies.
const KIND: &str = "ClusterTopology";

/// A ClusterTopology of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTopology {
    /// Name, by which policies name it.
    pub name: String,
    /// Keys of node labels, from the smallest domains to the largest.
    pub layers: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    api_version: String,
    #[allow(dead_code, reason = "it is what a document was chosen by")]
    kind: String,
    metadata: Metadata,
    spec: TopologyObjectSpec,
}

/// Returns `true` for a document that says that it is a ClusterTopology.
pub fn is_topology(document: &Node) -> bool {
    matches!(FileKind::of(document), Some((FileKind::Topology, _)))
}

/// Reads documents that are ClusterTopologies.
///
/// # Errors
/// All errors in the order of the documents, at least one.
pub fn read(documents: &[Node]) -> Result<Vec<ClusterTopology>, Vec<ConfigError>> {
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    let mut names: BTreeMap<String, Position> = BTreeMap::new();
    for node in documents {
        let mut survey = Survey::of(node, Node::decode::<Document>);
        let mut wrong = std::mem::take(&mut survey.errors);
        if let Some(document) = survey.value.take() {
            for Problem { path, message, .. } in problems(&document) {
                let error = ConfigError::at(position(node, &path), format!("{path} {message}"));
                if !survey.is_consequence(&error) {
                    wrong.push(error);
                }
            }
            let Document { metadata: Metadata { name, .. }, spec: TopologyObjectSpec { layers }, .. } =
                document;
            if !name.is_empty()
                && let Some(first) = names.insert(name.clone(), node.at)
            {
                let hint = format!("the first one begins in line {}", first.line);
                wrong.push(
                    ConfigError::at(node.at, format!("a second topology is called '{name}'")).hint(hint),
                );
            }
            read.push(ClusterTopology { name, layers });
        }
        errors.append(&mut wrong);
    }
    errors.sort_by_key(|error: &ConfigError| (error.position().is_none(), error.position()));
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

/// All problems of a document, in the order of its fields.
fn problems(document: &Document) -> Vec<Problem> {
    let error = |path: &str, message: String| Problem { path: path.to_owned(), message, is_error: true };
    let mut found = Vec::new();
    if document.api_version != format!("{GROUP}/{VERSION}") {
        let message = format!("is {:?}; write {GROUP}/{VERSION}", document.api_version);
        found.push(error("apiVersion", message));
    }
    if document.metadata.name.is_empty() {
        found.push(error("metadata.name", format!("is missing; name the {KIND}")));
    }
    let layers = &document.spec.layers;
    if layers.is_empty() {
        let message = "is empty; write keys of node labels, from the smallest domains to the largest";
        found.push(error("spec.layers", message.to_owned()));
    }
    found.extend(layer_problems("spec.layers", layers));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<ClusterTopology>, Vec<String>> {
        let documents = Node::parse_all(text).unwrap();
        assert!(documents.iter().all(is_topology));
        read(&documents).map_err(|errors| errors.iter().map(|error| error.in_file("f")).collect())
    }

    #[test]
    fn topologies_are_read_in_the_order_of_their_documents() {
        let document = |name: &str, layers: &str| {
            format!(
                "apiVersion: usher.dev/v1alpha1\nkind: ClusterTopology\nmetadata: {{name: {name}, labels: {{a: b}}}}\n\
                 spec:\n  layers: {layers}\n---\n"
            )
        };
        let text = document("racks", "[host, rack]") + &document("zones", "[zone]");
        let expected = [("racks", vec!["host", "rack"]), ("zones", vec!["zone"])].map(|(name, layers)| {
            ClusterTopology { name: name.to_owned(), layers: layers.into_iter().map(str::to_owned).collect() }
        });
        assert_eq!(read_text(&text), Ok(expected.to_vec()));
        let twice = read_text(&(document("racks", "[a]") + &document("racks", "[b]"))).unwrap_err();
        assert_eq!(twice, ["f:7:1: a second topology is called 'racks' (the first one begins in line 1)"]);
    }

    #[test]
    fn every_error_of_a_topology_is_found() {
        let long = "x".repeat(318);
        let text = format!(
            "apiVersion: usher.dev/v1\nkind: ClusterTopology\nmetadata: {{nmae: a}}\nspec:\n  layers: [host, '', host, {long}]\n  layer: host\n"
        );
        let found = read_text(&text).unwrap_err();
        let starts = [
            "f:1:1: apiVersion is \"usher.dev/v1\"; write usher.dev/v1alpha1",
            "f:3:12: unknown field 'nmae'",
            "f:5:18: spec.layers.1 is empty; write the key of a node label",
            "f:5:22: spec.layers.2 'host' is a duplicate",
            "f:5:28: spec.layers.3 has more than 317 characters",
            "f:6:3: unknown field 'layer'",
        ];
        for (found, start) in found.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}, not {start}");
        }
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        let none = "kind: ClusterTopology\napiVersion: usher.dev/v1alpha1\nmetadata: {name: a}\nspec: {layers: []}\n";
        let found = read_text(none).unwrap_err();
        assert!(found.len() == 1 && found[0].starts_with("f:4:8: spec.layers is empty"), "{found:?}");
        let many: Vec<String> = (0..17).map(|layer| layer.to_string()).collect();
        let many = none.replace("[]", &format!("['{}']", many.join("', '")));
        assert_eq!(read_text(&many).unwrap_err().len(), 1);
    }
}
