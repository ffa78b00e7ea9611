//! Follows `--config-file` and puts what it says into effect without a restart.
//!
//! The file is read once a second. Text that was seen twice in a row is checked apart from what runs,
//! built, and swapped in: one pointer, which a decision loads once. State of plugins is found again by
//! their names ([`State`]). Text that can't be used leaves everything as it is.

mod active;
mod build;
mod event;
mod fixed;
mod status;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::MissedTickBehavior;

use super::pool::Swap;
use crate::config::{ConfigError, source};
use crate::registry::{ResolvedPlugin, changes};
use crate::settings::ConfigSource;
use crate::tls::{RELOAD_INTERVAL, Seen, Watch};

pub(super) use active::{Active, Parts};
pub(super) use event::Events;
pub(super) use status::Status;

/// Changes that the log names; of others it says how many there are.
const LOGGED_CHANGES: usize = 40;

/// Keeps the configuration of a pool that of its file.
pub(super) struct Reloader {
    path: PathBuf,
    file: String,
    parts: Parts,
    swap: Swap,
    watch: Watch<String>,
    active: Active,
    status: Arc<Status>,
    events: Events,
    /// The file can't be used, and the log said so.
    failing: bool,
    /// A valid text for which there was no room.
    waiting: Option<String>,
    /// Another configuration has been built, so that there may be state that no plugin holds.
    tidies: bool,
}

impl Reloader {
    /// Follows the file of the settings from this text on, which runs; `None`: there is no file, or it is
    /// a pipe, which can be read only once.
    pub(super) fn new(
        parts: Parts,
        swap: Swap,
        (active, text): (Active, String),
        status: Arc<Status>,
        events: Events,
    ) -> Option<Self> {
        let ConfigSource::File(path) = &parts.settings.config else { return None };
        if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            tracing::info!(path = %path.display(), "the configuration is no regular file; changes to it need a restart");
            return None;
        }
        let (path, file) = (path.clone(), path.display().to_string());
        let watch = Watch::new(text);
        Some(Self {
            path,
            file,
            parts,
            swap,
            watch,
            active,
            status,
            events,
            failing: false,
            waiting: None,
            tidies: false,
        })
    }

    /// Looks at the file again and again; never returns.
    pub(super) async fn follow(mut self) {
        let mut ticks = tokio::time::interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Away from the runtime: the folder may be on a network, and building takes a moment.
            let looked = tokio::task::spawn_blocking(move || {
                // Whatever a plugin's build function left, the next text replaces it.
                if catch_unwind(AssertUnwindSafe(|| self.look())).is_err() {
                    self.failed(&ConfigError::new("building the configuration panicked").hint("report this"));
                }
                self
            });
            // The runtime is shutting down.
            let Ok(same) = looked.await else { return };
            self = same;
            self.events.send().await;
        }
    }

    /// Reads the file, and takes it if it has changed.
    fn look(&mut self) {
        if self.tidies {
            self.swap.tidy();
        }
        match self.watch.see(read(&self.path), |text| Ok::<_, ConfigError>(text.clone())) {
            Seen::Nothing => self.try_again(),
            Seen::Usable(text) if status::hash(&text) == self.active.hash => {
                self.waiting = None;
                self.restored();
            }
            Seen::Usable(text) => match self.take(&text) {
                Ok(changed) => self.succeeded(&changed),
                Err(error) => self.failed(&error),
            },
            Seen::Problem(error) => {
                self.waiting = None;
                self.failed(&error);
            }
        }
    }

    /// Takes a valid text that had no room beside the requests of earlier configurations, once they have ended.
    fn try_again(&mut self) {
        let Some(text) = self.waiting.take() else { return };
        if let Ok(changed) = self.take(&text) {
            self.succeeded(&changed);
        }
    }

    /// Puts a text into effect, or nothing of it. Returns what changed.
    fn take(&mut self, text: &str) -> Result<Vec<String>, ConfigError> {
        self.waiting = None;
        let config = build::check(&self.parts, text, &self.active)?;
        self.tidies = true;
        let pipeline = build::build(&self.parts, &config)
            .inspect_err(|error| self.waiting = error.is_temporary().then(|| text.to_owned()))?;
        let active = Active::new(&pipeline, text);
        let changed = changes(&self.active.resolved, &active.resolved);
        for warning in &pipeline.warnings {
            tracing::warn!(warning, "configuration warning");
        }
        for note in &pipeline.notes {
            tracing::info!(note, "configuration note");
        }
        self.swap.reconfigure(&self.parts.settings, pipeline);
        for ResolvedPlugin { name, plugin_type, .. } in &self.active.resolved.plugins {
            let is_it = |new: &ResolvedPlugin| new.name == *name && new.plugin_type == *plugin_type;
            if !active.resolved.plugins.iter().any(is_it) {
                self.parts.metrics.forget(plugin_type, name);
            }
        }
        self.active = active;
        Ok(changed)
    }

    fn succeeded(&mut self, changed: &[String]) {
        self.failing = false;
        let generation = self.status.succeeded(&self.active.hash, changed);
        let (path, sha256) = (&self.file, &self.active.hash);
        tracing::info!(path, generation, sha256, changes = changed.len(), "configuration reloaded");
        for change in changed.iter().take(LOGGED_CHANGES) {
            tracing::info!(change, "configuration changed");
        }
        if let Some(omitted) = changed.len().checked_sub(LOGGED_CHANGES).filter(|omitted| *omitted > 0) {
            tracing::info!(omitted, "more changes of the configuration");
        }
        let text = format!("{path}: generation {generation} runs, {} changes", changed.len());
        self.events.reloaded(&text);
    }

    /// The file has the text that runs, again.
    fn restored(&mut self) {
        if std::mem::replace(&mut self.failing, false) {
            self.status.restored();
            tracing::info!(
                path = self.file,
                "the configuration file is the same as the running configuration again"
            );
        }
    }

    fn failed(&mut self, error: &ConfigError) {
        self.failing = true;
        let error = error.in_file(&self.file);
        self.status.failed(&error);
        let sha256 = &self.active.hash;
        tracing::error!(
            error,
            sha256,
            "configuration reload failed; the previous configuration stays in use"
        );
        self.events.refused(&error);
    }
}

/// The text of the file. What else there may be at its place is not opened: a pipe would wait for its
/// writer.
fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error| source::unreadable("configuration", &error);
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(ConfigError::new("the configuration is no regular file").hint("put the file back"));
    }
    source::read_file(path)
}

#[cfg(test)]
mod tests;
