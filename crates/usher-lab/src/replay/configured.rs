//! A configuration at work, as far as a replay sees it. The server implements it: this package doesn't
//! know how a configuration is built.

use std::time::Duration;

use rand::rngs::StdRng;
use usher_core::config::{ConfigError, EndpointPickerConfig};
use usher_core::endpoints::health::Verdict;
use usher_core::request::usage::Usage;
use usher_core::request::{ParseError, Parsers, Rejection, Request, Served};
use usher_plugins::latency::Report;

use super::servers::Server;
use crate::sim::{Dialect, Engine};

/// Reading of numbers where the configuration doesn't say.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Time between two scrapes of a server.
    pub interval: Duration,
    /// Age from which numbers no longer count.
    pub max_age: Duration,
    /// Kind of server whose histograms are read.
    pub dialect: Dialect,
}

/// Builds a configuration over these servers, numbered from 0. Returns with it what the user should know.
pub type Build<'a> = dyn Fn(
        Option<&EndpointPickerConfig>,
        &[Server],
        Reading,
        StdRng,
    ) -> Result<(Box<dyn Configured>, Vec<String>), BuildError>
    + Sync
    + 'a;

/// Error of a configuration that can't be run.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration is not valid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Metrics can't be registered.
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Destination of a request.
#[derive(Debug)]
pub struct Route {
    /// Number of the server that responds.
    pub server: usize,
    /// Number of the one that computes the prompt for it.
    pub prefiller: Option<usize>,
    /// Observer of the response for the plugins of a configuration.
    pub observer: Option<Box<dyn ResponseObserver>>,
}

/// Observes the response to a request; dropping it releases what the request holds.
pub trait ResponseObserver: std::fmt::Debug {
    /// The response's headers came.
    fn response_headers(&mut self, served: &Served, verdict: Verdict, is_stream: bool);

    /// The first generated token is there.
    fn first_token(&mut self);

    /// The response is complete.
    fn response_complete(&mut self, usage: &Usage);
}

/// A configuration that decides about requests to simulated servers. Its clock is set from outside.
pub trait Configured: std::fmt::Debug {
    /// Decides about a request at this time since the start, which `read` reads with the
    /// configuration's parsers.
    ///
    /// # Errors
    /// `Rejection` if the request can't be parsed, or no endpoint may serve it.
    fn pick(
        &mut self,
        now: Duration,
        read: &mut dyn FnMut(&Parsers) -> Result<Request, ParseError>,
    ) -> Result<Route, Rejection>;

    /// From now on there are these servers, each under its number.
    fn set_servers(&mut self, servers: &[(usize, Server)]);

    /// Sets the time of everything that happens next.
    fn set_clock(&self, now: Duration);

    /// Time between two scrapes of a server; `None`: no scrapes.
    fn scrape_interval(&self) -> Option<Duration>;

    /// Time at which the server with this number is scraped first.
    fn first_scrape(&self, number: usize) -> Duration;

    /// Reads what the server with this number says, now.
    fn scrape(&self, number: usize, engine: &Engine);

    /// Drops what is of no more use, as the server does now and then.
    fn sweep(&self);

    /// The latency model, where the configuration has one.
    fn latency(&self) -> Option<Report>;

    /// A sentence about plugins and profiles that can never act on these servers, and on requests that name
    /// latency targets or don't. `None`: all may act.
    fn idle(&self, servers: &[Server], has_targets: bool) -> Option<String>;

    /// `host:port` of the server with this number.
    fn address(&self, number: usize) -> String;
}
