//! Builds a configuration that is to replace another.

use prometheus::Registry;

use super::active::{Active, Parts};
use super::fixed;
use crate::config::{ConfigError, EndpointPickerConfig};
use crate::endpoints::Clock;
use crate::registry::Pipeline;
use crate::schedule::{SchedulerMetrics, State};

/// Reads the configuration of a text, which is to replace `active`, and builds it on trial: with metrics
/// and state of its own, so that one that is refused leaves no series, no index and no thread behind,
/// however many are.
///
/// # Errors
/// `ConfigError` if the configuration is not valid, or changes a part that requires a restart.
pub(super) fn check(parts: &Parts, text: &str, active: &Active) -> Result<EndpointPickerConfig, ConfigError> {
    if text.trim().is_empty() {
        let error = ConfigError::new("the file is empty");
        return Err(error.hint("write the configuration; the built-in one runs after a restart only"));
    }
    let config = EndpointPickerConfig::parse(text)?;
    let fixed = fixed::changes(active, &trial(parts, &config)?);
    if !fixed.is_empty() {
        let message = format!("{} can't change while usher runs", fixed.join(", "));
        return Err(ConfigError::new(message).hint("restart usher, or take this part of the change back"));
    }
    Ok(config)
}

/// Builds a configuration that has been checked.
///
/// # Errors
/// A [temporary](ConfigError::is_temporary) `ConfigError` if there is no room beside the memory of the
/// running configuration. Others come from the parts that a trial leaves out: it reads no tokenizer.
pub(super) fn build(parts: &Parts, config: &EndpointPickerConfig) -> Result<Pipeline, ConfigError> {
    let allowed = parts.settings.allow_experimental_plugins;
    let mut pipeline =
        Pipeline::build_with(&parts.types, Some(config), allowed, &parts.metrics, &parts.state)?;
    let stale = pipeline.notes_on_staleness(Some(parts.settings.refresh_metrics_interval));
    pipeline.notes.extend(stale);
    Ok(pipeline)
}

/// Builds a configuration apart from everything that runs.
fn trial(parts: &Parts, config: &EndpointPickerConfig) -> Result<Pipeline, ConfigError> {
    let metrics = SchedulerMetrics::register(&Registry::new());
    let metrics = metrics.map_err(|error| ConfigError::new(error.to_string()))?;
    // State with a stopped clock starts no threads.
    let state = State::new(Clock::stopped());
    Pipeline::build_with(
        &parts.types,
        Some(config),
        parts.settings.allow_experimental_plugins,
        &metrics,
        &state,
    )
}
