//! The real scheduler against simulated servers in virtual time: what would change if the
//! configuration did?
//!
//! [`run`] gives the same requests, of a [`trace`](of_trace) or of a generated
//! [`Workload`], to several policies. Each has servers of its own, which are the
//! simulator's engines ([`crate::sim`]), and a clock that needs no waiting. A
//! configuration is built as `usher serve` builds it: its parsers read the requests'
//! bodies, its dispatcher decides and books, its endpoints are scraped at the configured
//! interval, so it decides by numbers as old as in production, and its plugins follow the
//! responses. Sockets are all that is missing: the network and the picker take no time.
//!
//! 1. `servers` and `workload` (or `generate`) say who serves what; `capacity` estimates
//!    how much that is.
//! 2. `policy` decides, and `world` lets everything happen in its order.
//! 3. `summary` counts.
//!
//! A [`Recording`] has the requests and servers of production, and constants for the servers.
//!
//! A [`Script`] has the same requests for servers in real time.
//!
//! [`compare_sizes`] lets a capacity policy start and end the servers, too (`scale`).
//!
//! Everything follows from the seed.

mod capacity;
mod configured;
mod demand;
mod draw;
mod error;
mod generate;
mod policy;
mod recording;
mod reference;
mod requests;
mod scale;
mod script;
mod servers;
mod settings;
mod suite;
mod summary;
mod workload;
mod world;

use std::sync::Arc;

use serde::Serialize;

pub use capacity::{utilization, utilize};
pub use configured::{Build, BuildError, Configured, Reading, ResponseObserver, Route};
pub use error::ReplayError;
pub use generate::Workload;
pub use policy::{Picker, Policy};
pub use recording::{Constants, Fit, Fixed, Member, ReadError, Recorded, Recording, Slower, fit};
pub use reference::Formula;
pub use requests::Requests;
pub use scale::{ScaleComparison, ScaleSettings, ScaleSummary, compare_sizes};
pub use script::{Script, Seen, summarize};
pub use servers::{MOST_SERVERS, Server, parse as parse_servers};
pub use settings::Settings;
pub use suite::{Case, Cell, Size};
pub use summary::{ClassGoodput, Goodput, Latency, ServerSummary, Summary};
pub use workload::{Arrival, LatencyClass, Piece, classify, of_trace, repeat, speed_up};
pub use world::{Events, Interconnect, RequestOutcome, RequestOutcomes, World};

use error::LONGEST;
use summary::Measure;

/// Name of what was measured, among the policies of a comparison.
pub const RECORDED: &str = "recorded";

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of requests.
    pub requests: u64,
    /// Seconds from the first to the last arrival.
    pub seconds: f64,
    /// Requests per second; `None` when all came at once.
    pub per_second: Option<f64>,
    /// Share of the servers' capacity that is asked for; see [`utilization`].
    pub utilization: Option<f64>,
    /// Number of servers.
    pub servers: u64,
    /// Until then a first token is in time, in seconds.
    pub ttft_limit_s: f64,
    /// Mean milliseconds between two tokens up to which a response is fast enough.
    pub tpot_limit_ms: f64,
    /// One per policy, in their order.
    pub policies: Vec<Summary>,
    /// Notes on configurations that the user should know, with the policies that have them; equal notes
    /// of several configurations are one.
    pub notes: Vec<Note>,
}

/// Note for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The policies that it is about.
    pub policies: Vec<String>,
    /// One sentence.
    pub text: String,
}

/// Runs all policies over the same requests, one after the other. `progress` is called after
/// each request with how many there were, over all policies.
///
/// # Errors
/// `ReplayError` if a configuration or a server is not valid, or something is missing.
pub fn run(
    settings: &Settings,
    build: &Build<'_>,
    progress: impl FnMut(usize),
) -> Result<Comparison, ReplayError> {
    run_beside(settings, None, build, progress)
}

/// Runs the policies and compares them with measured outcomes of the same requests, under the name
/// [`RECORDED`], and their decisions with the recorded ones.
///
/// # Errors
/// Same as [`run`].
pub fn run_beside(
    settings: &Settings,
    recorded: Option<&RequestOutcomes>,
    build: &Build<'_>,
    mut progress: impl FnMut(usize),
) -> Result<Comparison, ReplayError> {
    let Settings { servers, arrivals, policies, seed, .. } = settings;
    let empty =
        [(servers.is_empty(), "server"), (arrivals.is_empty(), "request"), (policies.is_empty(), "policy")];
    if let Some((_, what)) = empty.into_iter().find(|(empty, _)| *empty) {
        return Err(ReplayError::Nothing(what));
    }
    let last = arrivals.iter().map(|arrival| arrival.at).max().unwrap_or_default();
    if last > LONGEST {
        return Err(ReplayError::TooLong(last));
    }
    let (interval, max_age) = (settings.scrape_interval, settings.metrics_staleness);
    let reading = Reading { interval, max_age, dialect: settings.dialect };
    let requests = Arc::new(Requests::new(arrivals, servers, settings.streams));
    let has_targets = arrivals.iter().any(|arrival| arrival.class.is_some_and(|class| class.is_named));
    let mut notes: Vec<Note> = Vec::new();
    let mut pickers = Vec::with_capacity(policies.len());
    for (name, policy) in policies {
        let (picker, said) =
            Picker::new(policy, servers, reading, *seed, build).map_err(|error| match error {
                BuildError::Config(error) => {
                    ReplayError::Config { policy: name.clone(), error: Box::new(error) }
                }
                BuildError::Metrics(error) => ReplayError::Metrics(error.to_string()),
            })?;
        let idle = picker.idle(servers, has_targets);
        said.into_iter().chain(idle).for_each(|text| note(&mut notes, name, text));
        pickers.push(picker);
    }
    let mut count = 0;
    let mut all: Vec<RequestOutcomes> = Vec::with_capacity(pickers.len());
    for picker in pickers {
        let world = World::new(picker, servers, settings.interconnect.clone(), Arc::clone(&requests))?;
        all.push(world.with_gateway_delay(settings.gateway_delay).run(|| {
            count += 1;
            progress(count);
        }));
    }
    let by = Measure { ttft_limit: settings.ttft_limit, tpot_limit: settings.tpot_limit };
    let summary = |name: &str, outcomes: &RequestOutcomes| {
        let first = recorded.or(all.first()).unwrap_or(outcomes);
        Summary::new(name.to_owned(), servers, outcomes, first, by)
    };
    let measured = recorded.map(|outcomes| summary(RECORDED, outcomes));
    let replayed = policies.iter().zip(&all).map(|((name, _), outcomes)| summary(name, outcomes));
    let open = arrivals.iter().all(|arrival| !arrival.follows());
    Ok(Comparison {
        requests: arrivals.len() as u64,
        seconds: all.first().map_or(last, RequestOutcomes::span).as_secs_f64(),
        per_second: open.then(|| capacity::offered_rate(arrivals)).flatten(),
        utilization: open.then(|| utilization(arrivals, servers)).flatten(),
        servers: servers.len() as u64,
        ttft_limit_s: settings.ttft_limit.as_secs_f64(),
        tpot_limit_ms: settings.tpot_limit.as_secs_f64() * 1e3,
        policies: measured.into_iter().chain(replayed).collect(),
        notes,
    })
}

fn note(notes: &mut Vec<Note>, policy: &str, text: String) {
    let at = notes.iter().position(|note| note.text == text).unwrap_or_else(|| {
        notes.push(Note { policies: Vec::new(), text });
        notes.len() - 1
    });
    if let Some(note) = notes.get_mut(at).filter(|note| note.policies.iter().all(|known| known != policy)) {
        note.policies.push(policy.to_owned());
    }
}
