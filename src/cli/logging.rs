//! Logs of the process: to stderr, as text or JSON.

use std::io::{IsTerminal, stderr};

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry, reload};

use crate::observe::log_level::LogLevel;
use crate::settings::LogSettings;

/// Libraries that warn of what clients send, each time and in the clients' words: of an illegal name in a TLS handshake,
/// of an acknowledgement that nobody asked for. What ends a connection is logged by us.
const SERVING: [&str; 8] = ["axum", "h2", "hyper", "hyper_util", "rustls", "tokio_rustls", "tonic", "tower"];

/// Starts logging, and returns what changes its level. Without effect when the process logs already.
pub(super) fn start(settings: LogSettings) -> LogLevel {
    let (filter, handle) = reload::Layer::new(targets(settings.level));
    // Which module of the program writes a line is of no use to who reads it.
    let layer = fmt::layer().with_writer(stderr).with_target(false);
    let layer = if settings.json {
        layer.json().flatten_event(true).with_filter(filter).boxed()
    } else {
        layer.with_ansi(stderr().is_terminal()).with_filter(filter).boxed()
    };
    // Fails only when there is a subscriber already.
    let _ = registry().with(layer).try_init();
    LogLevel::new(settings.level, move |level| {
        handle.reload(targets(level)).map_err(|error| format!("the log can't be changed: {error}\n"))
    })
}

/// Events of this level and above, if they are ours.
fn targets(level: Level) -> Targets {
    // What libraries log in detail is for their authors, and may quote what we don't log.
    Targets::new()
        .with_default(level.min(Level::WARN))
        .with_targets(SERVING.map(|library| (library, level.min(Level::ERROR))))
        .with_target(env!("CARGO_CRATE_NAME"), level)
}
