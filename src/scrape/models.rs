//! The list of models that a server has.

use std::hash::Hasher;
use std::sync::Arc;

use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3Default;

use crate::endpoints::{Load, Model};

/// A longer list is refused, so that no server can occupy more than this for each endpoint.
pub(super) const MAX_MODELS: usize = 1024;

/// An identifier that is longer than this is refused.
const MAX_NAME_BYTES: usize = 1 << 10;

/// Error of a list that can't be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ModelsError {
    #[error("this is no list of models: {0}; is the path /v1/models?")]
    Json(#[from] serde_json::Error),
    #[error("there are more than {MAX_MODELS} models, or a name has more than {MAX_NAME_BYTES} bytes")]
    TooMany,
}

/// List of models in the format of the OpenAI API, as far as it is used.
#[derive(Deserialize)]
struct List {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    parent: Option<String>,
}

/// A page of models, as far as it has arrived.
#[derive(Debug, Default)]
pub(super) struct ModelPage {
    bytes: Vec<u8>,
    /// Hash of the last page that was applied: an equal one changes nothing.
    applied: Option<u64>,
}

impl ModelPage {
    pub(super) fn feed(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    pub(super) fn restart(&mut self) {
        self.bytes = Vec::new();
    }

    /// Writes what the page says.
    pub(super) fn apply(&mut self, load: &Load, now_ms: u64) -> Result<(), ModelsError> {
        let bytes = std::mem::take(&mut self.bytes);
        let mut hasher = Xxh3Default::new();
        hasher.write(&bytes);
        let hash = hasher.finish();
        if self.applied != Some(hash) {
            let models = read(&bytes)?;
            load.models.store(Some(Arc::new(models)));
            self.applied = Some(hash);
        }
        let count = load.models.load().as_ref().map_or(0, |models| models.len());
        load.models_read.set(count as f64, now_ms);
        Ok(())
    }
}

fn read(bytes: &[u8]) -> Result<Vec<Model>, ModelsError> {
    let List { data } = serde_json::from_slice(bytes)?;
    let long =
        |entry: &Entry| entry.id.len().max(entry.parent.as_ref().map_or(0, String::len)) > MAX_NAME_BYTES;
    if data.len() > MAX_MODELS || data.iter().any(long) {
        return Err(ModelsError::TooMany);
    }
    Ok(data
        .into_iter()
        .map(|Entry { id, parent }| Model { id, parent: parent.filter(|p| !p.is_empty()) })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> ModelPage {
        let mut page = ModelPage::default();
        text.as_bytes().chunks(3).for_each(|piece| page.feed(piece));
        page
    }

    #[test]
    fn models_and_their_parents_are_parsed() {
        let load = Load::default();
        let text = r#"{"object":"list","data":[{"id":"llama","object":"model","parent":null,"created":1},
            {"id":"sql","parent":"llama"},{"id":"x","parent":""}]}"#;
        let mut first = page(text);
        first.apply(&load, 5).unwrap();
        let model = |id: &str, parent: Option<&str>| Model { id: id.into(), parent: parent.map(Into::into) };
        let want = vec![model("llama", None), model("sql", Some("llama")), model("x", None)];
        let models = load.models.load_full().unwrap();
        assert_eq!((&*models, load.models_read.last()), (&want, 3.0));
        first.feed(text.as_bytes());
        first.apply(&load, 9).unwrap();
        assert!(Arc::ptr_eq(&models, &load.models.load_full().unwrap()), "unchanged, nothing replaced");
        assert_eq!(load.models_read.read_at_ms(), Some(9));
    }

    #[test]
    fn invalid_model_list_changes_nothing() {
        let load = Load::default();
        page(r#"{"data":[{"id":"a"}]}"#).apply(&load, 5).unwrap();
        let many = format!(r#"{{"data":[{}{{"id":"z"}}]}}"#, r#"{"id":"a"},"#.repeat(MAX_MODELS));
        let long = format!(r#"{{"data":[{{"id":"{}"}}]}}"#, "a".repeat(MAX_NAME_BYTES + 1));
        for bad in ["", "[]", "{}", r#"{"data":[{"name":"b"}]}"#, r#"{"data":[{"id":"b"}]"#, &many, &long] {
            assert!(page(bad).apply(&load, 9).is_err(), "{bad:.50}");
            assert_eq!((load.models.load_full().unwrap().len(), load.models_read.read_at_ms()), (1, Some(5)));
        }
    }
}
