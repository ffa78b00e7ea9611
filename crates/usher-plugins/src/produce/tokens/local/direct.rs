//! The tokenizer on the calling thread.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use usher_core::config::{ConfigError, Node, Position};
use usher_core::request::{Api, Body};
use usher_plugin::data::PromptTokenIds;
use xxhash_rust::xxh3::Xxh3Builder;

use super::fast::Words;
use super::files::Files;
use super::model::LocalModel;
use super::params::LocalParams;

/// A model's tokenizer and chat template on the calling thread, without queue and deadline: for benchmarks.
pub struct DirectTokenizer {
    model: LocalModel,
    words: Words,
}

impl DirectTokenizer {
    /// Reads the files of a model, and remembers so many bytes of texts and tokens.
    ///
    /// # Errors
    /// Files that are missing or that can't be understood.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self, ConfigError> {
        let params = LocalParams { path: path.to_owned(), cache_bytes, ..LocalParams::default() };
        let node = Node::empty_map(Position { line: 1, column: 1 });
        let model = LocalModel::read(Files::of(&params), &params, &node, &Arc::default())?;
        Ok(Self { model, words: Words::with_hasher(Xxh3Builder::new()) })
    }

    /// The tokens of the prompts in a request's body; `None` where it can't be understood.
    pub fn tokens(&mut self, api: Api, body: Body) -> Option<PromptTokenIds> {
        self.model.tokens(api, body, &mut self.words, &|| false).ok().map(|(found, _)| found)
    }
}

impl fmt::Debug for DirectTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectTokenizer").field("model", &self.model).finish_non_exhaustive()
    }
}
