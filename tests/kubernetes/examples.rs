//! The objects in `docs/` and `deploy/`: Usher reads all that they say, and a real API
//! server takes them.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use usher::discovery::kubernetes::types::{InferenceModelRewrite, InferenceObjective, InferencePool};

use crate::objects::{least, send};
use crate::server::Server;

/// An object and where it is written.
struct Example {
    place: String,
    object: Value,
}

/// Everything that looks like an object of Kubernetes. Templates of charts are no YAML yet.
fn examples() -> Vec<Example> {
    let mut found = Vec::new();
    for folder in ["docs", "deploy"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for path in files(&root.join(folder)) {
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let extension = path.extension().and_then(|extension| extension.to_str());
            let texts: Vec<&str> = match extension {
                Some("md") => {
                    text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
                }
                Some("yaml") if !text.contains("{{") => vec![&text],
                _ => Vec::new(),
            };
            for document in texts.iter().flat_map(|text| text.split("\n---\n")) {
                let place = path.strip_prefix(root).unwrap().display().to_string();
                let Ok(object) = serde_saphyr::from_str::<Value>(document) else { continue };
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

/// What is left of an object when it was read and is written again.
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
fn nothing_that_an_example_says_is_lost() {
    let mut kinds = Vec::new();
    for Example { place, object } in examples() {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_takes_every_example_of_ours() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    let client = server.client().await;
    for Example { place, mut object } in examples() {
        let plural = match object["kind"].as_str() {
            Some("InferencePool") => "inferencepools",
            Some("InferenceObjective") => "inferenceobjectives",
            Some("InferenceModelRewrite") => "inferencemodelrewrites",
            _ => continue,
        };
        let group = object["apiVersion"].as_str().unwrap();
        let path = format!("/apis/{group}/namespaces/{}/{plural}", space.name);
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        // Nothing that it says may be unknown.
        let dry = format!("{path}?dryRun=All&fieldValidation=Strict");
        send(&client, "POST", &dry, &object).await.unwrap_or_else(|error| panic!("{place}: {error}"));
        object["spec"]["unheardOf"] = true.into();
        assert!(send(&client, "POST", &dry, &object).await.is_err(), "{place}: strict");
    }
}
