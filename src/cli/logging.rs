//! Logs of the process: to stderr, as text or JSON.

use std::io::{IsTerminal, stderr};

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::settings::LogSettings;

/// Starts logging. Without effect when the process logs already.
pub(super) fn start(settings: LogSettings) {
    // What libraries tell in detail is for their authors, and may quote what we don't log.
    let filter = Targets::new()
        .with_default(settings.level.min(Level::WARN))
        .with_target(env!("CARGO_CRATE_NAME"), settings.level);
    // Which module of the program writes a line is of no use to who reads it.
    let layer = fmt::layer().with_writer(stderr).with_target(false);
    let layer = if settings.json {
        layer.json().flatten_event(true).with_filter(filter).boxed()
    } else {
        layer.with_ansi(stderr().is_terminal()).with_filter(filter).boxed()
    };
    // Fails only when there is a subscriber already.
    let _ = registry().with(layer).try_init();
}
