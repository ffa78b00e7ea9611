//! Parameters of the tokenizer in this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};

use super::super::durations::{DEADLINE, duration, shown};

/// Threads at most.
const MAX_WORKERS: u32 = 256;

/// A tokenizer in this process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalParams {
    /// The model's tokenizer.json, or the folder that it is in.
    pub(super) path: PathBuf,
    /// File with the chat template, in Jinja, as an engine's --chat-template. Empty: chat_template.jinja beside
    /// tokenizer.json, or that in tokenizer_config.json there.
    #[serde(skip_serializing_if = "is_empty")]
    pub(super) chat_template: PathBuf,
    /// Content of messages for the template, as an engine's --chat-template-content-format: string, openai (a
    /// list of parts) or auto (as the template looks).
    pub(super) chat_template_content_format: FormatParam,
    /// Time that a request waits for its tokens; then the approximate match counts, if there is one.
    #[serde(serialize_with = "shown", deserialize_with = "duration")]
    #[schemars(with = "String", extend("default" = "50ms"))]
    pub(super) timeout: Duration,
    /// Threads that tokenize, beside those that serve requests.
    pub(super) workers_count: u32,
    /// Bytes of texts and their tokens that are remembered.
    pub(super) cache_bytes: u64,
}

/// Content of messages for a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FormatParam {
    #[default]
    Auto,
    String,
    Openai,
}

impl Default for LocalParams {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            chat_template: PathBuf::new(),
            chat_template_content_format: FormatParam::Auto,
            timeout: DEADLINE,
            workers_count: 2,
            cache_bytes: 32 << 20,
        }
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

impl LocalParams {
    /// Time that a request waits.
    pub(in super::super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Refuses what can't be.
    ///
    /// # Errors
    /// `ConfigError` for a missing path, and for a time or a number of threads of 0.
    pub(in super::super) fn check(&self, node: &Node) -> Result<(), ConfigError> {
        let refuse = |key: &str, message: &str, hint: &str| {
            let key = format!("local.{key}");
            let error = ConfigError::at(node.position_of(&key), format!("{key} {message}"));
            Err(error.hint(hint.to_owned()))
        };
        if is_empty(&self.path) {
            return refuse("path", "is missing", "write where the model's tokenizer.json is");
        }
        if self.timeout.is_zero() {
            return refuse("timeout", "can't be 0", "the default is 50ms");
        }
        if !(1..=MAX_WORKERS).contains(&self.workers_count) {
            return refuse("workersCount", "has to be from 1 to 256", "the default is 2");
        }
        Ok(())
    }
}
