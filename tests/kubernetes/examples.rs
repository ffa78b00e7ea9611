//! The objects that are written down in `docs/` and `deploy/`, and of those that Usher reads
//! itself: it reads all that they say. `manifests.rs` shows all of them to an API server.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use usher::discovery::kubernetes::types::{InferenceModelRewrite, InferenceObjective, InferencePool};

use crate::tools::{Helm, documents, possible_documents, root, values_files};

/// An object and where it is written.
pub(crate) struct Example {
    pub(crate) place: String,
    pub(crate) object: Value,
}

/// Everything that looks like an object of Kubernetes, patches for kustomize apart. Templates
/// of charts are no YAML yet.
pub(crate) fn examples() -> Vec<Example> {
    let mut found = Vec::new();
    let root = root();
    for folder in ["docs", "deploy"] {
        for path in files(&root.join(folder)) {
            let is_patch = path.to_string_lossy().contains("/kustomize/") && path.ends_with("patch.yaml");
            if is_patch || path.starts_with(root.join("deploy/chart/templates")) {
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let extension = path.extension().and_then(|extension| extension.to_str());
            let found_here: Vec<Value> = match extension {
                Some("md") => {
                    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
                    // Half of an object may be an example of something else, a broken one is none.
                    let read = |block: &str| -> Vec<Value> {
                        let is_whole = block.contains("apiVersion:");
                        if is_whole {
                            documents(block).collect()
                        } else {
                            possible_documents(block).collect()
                        }
                    };
                    blocks.flat_map(read).collect()
                }
                Some("yaml") => documents(&text).collect(),
                _ => Vec::new(),
            };
            for object in found_here {
                let place = path.strip_prefix(root).unwrap().display().to_string();
                let is_object = object["apiVersion"].is_string() && object["metadata"]["name"].is_string();
                if is_object {
                    found.push(Example { place, object });
                }
            }
        }
    }
    found
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// The object after it was read as a `T` and written again: the fields that `T` keeps.
fn again<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(object.clone()).unwrap()).unwrap()
}

/// Everything of `part` is in `whole`, which may say more.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| holds(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| holds(whole, part))
        }
        _ => whole == part,
    }
}

#[test]
fn every_field_of_the_examples_is_read() {
    let mut kinds = Vec::new();
    let mut all = examples();
    // Without helm what is written down is enough.
    if let Some(helm) = Helm::find() {
        for values in values_files() {
            let of = |object| Example { place: format!("chart with {values}"), object };
            all.extend(helm.rendered(&values).into_iter().map(of));
        }
    }
    for Example { place, object } in all {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let read = match kind.as_str() {
            "InferencePool" => again::<InferencePool>(&object),
            "InferenceObjective" => again::<InferenceObjective>(&object),
            "InferenceModelRewrite" => again::<InferenceModelRewrite>(&object),
            _ => continue,
        };
        assert!(holds(&read, &object), "{place}: {object} became {read}");
        kinds.push(kind);
    }
    for kind in ["InferencePool", "InferenceObjective", "InferenceModelRewrite"] {
        assert!(kinds.iter().any(|known| known == kind), "no example of {kind}");
    }
}
