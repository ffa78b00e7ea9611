//! Counts of prompts that a server was asked to render.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_core::metrics::register;

use super::failure::Failure;

/// Time between warnings.
const PAUSE: Duration = Duration::from_secs(60);

/// The family, shared by all producers.
#[derive(Debug)]
pub(super) struct RenderFamilies {
    prompts: IntCounterVec,
}

/// Counts of one producer.
#[derive(Debug)]
pub(super) struct RenderCounts {
    /// The tokens are known.
    pub(super) rendered: IntCounter,
    /// The server can't be reached, refused, or told no tokens.
    pub(super) failed: IntCounter,
    /// No response in time.
    pub(super) late: IntCounter,
    plugin: String,
    told: Mutex<Option<Instant>>,
}

impl RenderFamilies {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "usher_tokens_rendered_total",
            "Requests whose tokens a server was asked for, by result: rendered, failed, late.",
        );
        let prompts = IntCounterVec::new(opts, &["plugin_name", "result"])?;
        Ok(Self { prompts: register(registry, prompts, None)? })
    }

    pub(super) fn counts(&self, name: &str) -> RenderCounts {
        let [rendered, failed, late] =
            ["rendered", "failed", "late"].map(|result| self.prompts.with_label_values(&[name, result]));
        RenderCounts { rendered, failed, late, plugin: name.to_owned(), told: Mutex::default() }
    }
}

impl RenderCounts {
    /// Warns of a failure, unless there was a warning in the last minute.
    pub(super) fn tell(&self, failure: &Failure) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= PAUSE) {
            *told = Some(Instant::now());
            tracing::warn!(plugin = self.plugin, %failure, "no tokens from the server that renders prompts");
        }
    }
}
