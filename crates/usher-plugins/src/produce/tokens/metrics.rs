//! Counts of prompts whose tokens were asked for.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_core::metrics::register;

use super::failure::Failure;

/// Time between warnings.
const PAUSE: Duration = Duration::from_secs(60);

/// The families, shared by all producers.
#[derive(Debug)]
pub(super) struct RenderFamilies {
    prompts: IntCounterVec,
    texts: IntCounterVec,
}

/// Counts of one producer.
#[derive(Debug)]
pub(super) struct RenderCounts {
    /// The tokens are known.
    pub(super) rendered: IntCounter,
    /// The server can't be reached, refused, or returned no tokens; or the tokenizer can't do it.
    pub(super) failed: IntCounter,
    /// Late.
    pub(super) late: IntCounter,
    /// Not tried or given up, as too many others are under way or memory is short.
    pub(super) busy: IntCounter,
    plugin: String,
    warned: Mutex<Option<Instant>>,
}

/// Bytes of text that one producer tokenized.
#[derive(Debug)]
pub(super) struct LocalCounts {
    /// Their tokens were known from earlier prompts.
    pub(super) cached: IntCounter,
    pub(super) encoded: IntCounter,
}

impl RenderFamilies {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "usher_tokens_rendered_total",
            "Requests whose tokens a server or the tokenizer in this process was asked for, by result: rendered, failed, late, busy.",
        );
        let prompts = IntCounterVec::new(opts, &["plugin_name", "result"])?;
        let opts = Opts::new(
            "usher_tokens_text_bytes_total",
            "Bytes of prompts whose tokens are known to this process, by where they came from: cache, tokenizer.",
        );
        let texts = IntCounterVec::new(opts, &["plugin_name", "source"])?;
        Ok(Self { prompts: register(registry, prompts, None)?, texts: register(registry, texts, None)? })
    }

    pub(super) fn counts(&self, name: &str) -> RenderCounts {
        let [rendered, failed, late, busy] = ["rendered", "failed", "late", "busy"]
            .map(|result| self.prompts.with_label_values(&[name, result]));
        RenderCounts { rendered, failed, late, busy, plugin: name.to_owned(), warned: Mutex::default() }
    }

    pub(super) fn local(&self, name: &str) -> LocalCounts {
        let [cached, encoded] =
            ["cache", "tokenizer"].map(|source| self.texts.with_label_values(&[name, source]));
        LocalCounts { cached, encoded }
    }
}

impl RenderCounts {
    /// Counts a prompt without tokens, and warns of what should not be.
    pub(super) fn count_failure(&self, failure: &Failure, request_id: &str) {
        match failure {
            Failure::NoRoom => self.busy.inc(),
            _ => {
                self.failed.inc();
                self.warn(failure, request_id);
            }
        }
    }

    /// Warns of a failure, unless there was a warning in the last minute.
    fn warn(&self, failure: &Failure, request_id: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= PAUSE) {
            *warned = Some(Instant::now());
            tracing::warn!(request_id, plugin = self.plugin, %failure, "prompt not tokenized; its tokens are estimated");
        }
    }
}
