//! Usher, an endpoint picker for LLM inference.
//!
//! A gateway asks over Envoy's ext_proc protocol, for every request, which model
//! server should answer it.

pub mod cli;
pub mod config;
pub mod discovery;
pub mod endpoints;
pub mod extproc;
pub mod flow;
pub mod metrics;
pub mod observe;
pub mod request;
pub mod schedule;
pub mod scrape;
pub mod sim;

use std::sync::Arc;

use config::settings::ServeSettings;
use extproc::health::HealthState;
use extproc::listen::Listeners;
use extproc::router::Unimplemented;
use extproc::server::{Ended, Server, ServerOptions, StartError};
use extproc::stop::Stops;
use observe::http::{HttpServer, Routes};

/// Why a server did not start, or did not end well. One line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings or the configuration are wrong.
    #[error("{0}")]
    Config(String),
    /// Something outside failed.
    #[error("{0}")]
    Failed(String),
    /// A second stop came while streams were open.
    #[error("stopped twice, open streams were closed; one signal lets them finish")]
    Forced,
}

impl From<StartError> for RunError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Tls(_) => Self::Config(error.to_string()),
            StartError::System(_) => Self::Failed(error.to_string()),
        }
    }
}

/// Serves on `listeners` until told to stop.
///
/// # Errors
/// When the server can't start, or was stopped twice.
pub async fn run(settings: ServeSettings, listeners: Listeners, mut stops: Stops) -> Result<(), RunError> {
    for unused in settings.unused_flags(settings.endpoints_file.is_some()) {
        tracing::warn!(flag = unused.flag, reason = unused.reason, "flag has no effect");
    }
    let health = Arc::new(HealthState::new(settings.pool.leader_election));
    let options = ServerOptions {
        threads: settings.worker_threads,
        tls: settings.tls,
        drain_timeout: settings.drain_timeout,
    };
    let server = Server::start(listeners.extproc, listeners.health, Unimplemented, health, options)?;

    let metrics = HttpServer::start(listeners.metrics, Routes::new().with_metrics(String::new));
    let metrics = metrics.map_err(StartError::System)?;
    let admin = listeners.admin.map(|listener| HttpServer::start(listener, Routes::new().with_index()));
    let admin = admin.transpose().map_err(StartError::System)?;
    let ended = server.run(&mut stops).await;
    metrics.stop().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    match ended {
        Ended::Gracefully => Ok(()),
        Ended::Forced => Err(RunError::Forced),
    }
}
