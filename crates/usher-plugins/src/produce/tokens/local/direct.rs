//! The tokenizer on the calling thread.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use usher_core::config::{ConfigError, Node, Position};
use usher_core::request::{Api, Body};
use usher_plugin::data::PromptTokenIds;
use xxhash_rust::xxh3::Xxh3Builder;

use super::super::room::Room;
use super::encoder::Turn;
use super::fast::Words;
use super::files::Files;
use super::model::LocalModel;
use super::params::LocalParams;

/// A model's tokenizer and chat template on the calling thread, without queue and deadline: for benchmarks and tests.
pub struct DirectTokenizer {
    model: LocalModel,
    words: Words,
}

impl DirectTokenizer {
    /// Reads the files of a model, and remembers so many bytes of texts and tokens.
    ///
    /// # Errors
    /// `ConfigError` for files that are missing or malformed.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self, ConfigError> {
        Self::with_template(path, Path::new(""), cache_bytes)
    }

    /// Opens a tokenizer with the chat template of another file.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub fn with_template(path: &Path, template: &Path, cache_bytes: u64) -> Result<Self, ConfigError> {
        let (path, chat_template) = (path.to_owned(), template.to_owned());
        let params = LocalParams { path, chat_template, cache_bytes, ..LocalParams::default() };
        let node = Node::empty_map(Position { line: 1, column: 1 });
        let model = LocalModel::read(Files::of(&params), &params, &node, &Arc::default())?;
        Ok(Self { model, words: Words::with_hasher(Xxh3Builder::new()) })
    }

    /// The text of a chat completion's body; `None` where it can't be understood.
    pub fn text(&self, body: &Bytes) -> Option<String> {
        self.model.chat(body).ok()?.0.pop()
    }

    /// The tokens of a text by the tokenizer alone, with special tokens around it or not: an oracle.
    pub fn plain(&self, text: &str, special: bool) -> Option<Vec<u32>> {
        self.model.plain(text, special)
    }

    /// Estimated bytes of the tokenizer, which count against a memory budget.
    pub fn bytes(&self) -> u64 {
        self.model.bytes()
    }

    /// The tokens of the prompts in a request's body; `None` where it can't be understood.
    pub fn tokens(&mut self, api: Api, body: Body) -> Option<PromptTokenIds> {
        let mut room = Room::new(&Arc::default());
        let turn = &mut Turn { words: &mut self.words, is_over: &|| false, room: &mut room };
        self.model.tokens(api, body, turn).ok().map(|(found, _)| found)
    }
}

impl fmt::Debug for DirectTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectTokenizer").field("model", &self.model).finish_non_exhaustive()
    }
}
