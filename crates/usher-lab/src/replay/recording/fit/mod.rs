//! Constants with which simulated engines take the times that a recording measured.
//!
//! [`regress`] gives a first estimate from the work of the engines while each request was there, and
//! [`refine`] improves it by replays of the recorded picks. A request counts with the prompt tokens that
//! were computed, so no cache is simulated. [`engine`] has what the constants are in each model.

mod constants;
mod engine;
mod observe;
mod refine;
mod regress;

use serde::Serialize;

use self::engine::{apply, constants_of};
use self::observe::observe;
use self::refine::{MOST_STEPS, Trial};
use super::recorded::Recording;
use crate::replay::servers::Server;
use crate::replay::world::Interconnect;
use crate::sim::ModelKind;

pub use self::constants::{Constants, Fixed};

/// Streamed responses below which nothing is fitted.
const FEWEST: usize = 50;

/// Error above which constants are poor.
const POOR: f64 = 0.2;

/// A server that takes longer, or less long, than the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slower {
    /// Name of the server.
    pub server: String,
    /// Times as long as the median server.
    pub slower: f64,
}

/// A fit, and how good it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Streamed responses with measured times.
    pub measured: u64,
    /// Responses among them that were replayed with the recorded picks; of a long recording the first.
    pub replayed: u64,
    /// Responses among those that the engines refused, as too large for their KV caches. Their errors are endless.
    pub refused: u64,
    /// Constants, fitted or given.
    pub constants: Constants,
    /// Servers that clearly differ.
    pub slower: Vec<Slower>,
    /// Reason that nothing was fitted; `None`: it was.
    pub unfitted: Option<String>,
    /// Median error of the first tokens' times in a replay of the recorded picks, as a share of the measured; `None` if
    /// there is none, or it has no end.
    pub ttft_error: Option<f64>,
    /// Median error of the times per output token, likewise.
    pub tpot_error: Option<f64>,
    /// An error is above 20 %, or has no end.
    pub is_poor: bool,
}

/// Fits these servers, which are those of the recording, to what it measured, and sets their constants. `given`: the
/// constants where nothing can be fitted; `fixed`: those that stay.
pub fn fit(
    recording: &Recording,
    servers: &mut [Server],
    interconnect: &Interconnect,
    given: Constants,
    fixed: Fixed,
) -> Fit {
    let observed = observe(recording);
    let mut slower = vec![1.0; servers.len()];
    let is_linear = servers.iter().all(|server| server.engine.model.kind() == ModelKind::Linear);
    // Constants of other models are drawn.
    let given = servers
        .first()
        .filter(|_| !is_linear)
        .map_or(given, |server| constants_of(&server.engine, observed.computed_context, given.delay_ms));
    let all = Trial::of_all(&observed, servers, interconnect);
    // Whether a request fits into a cache depends on no constant.
    let fitting = all.as_ref().map(|trial| trial.errors(&given, &slower)).unwrap_or_default();
    let those = if is_linear { "those of the flags" } else { "those that were drawn" };
    let unfitted = match observed.usable().count() {
        count if count < FEWEST => Some(format!(
            "{count} streamed responses have measured times, and a fit needs {FEWEST}; the constants are {those}"
        )),
        _ if fitting.refused * 2 > fitting.replayed => Some(format!(
            "the engines refuse {} of {} recorded picks, as larger than the KV caches that the endpoints reported, or than --num-blocks; the constants are {those}",
            fitting.refused, fitting.replayed
        )),
        _ => None,
    };
    let mut constants = given;
    if unfitted.is_none() {
        (constants, slower) = regress::estimate(&observed, given, fixed);
        if let Some(trial) = Trial::of_window(&observed, servers, interconnect) {
            constants = refine::refine(&trial, constants, &mut slower, fixed, MOST_STEPS);
        }
    }
    let errors = match all {
        Some(trial) if unfitted.is_none() => trial.errors(&constants, &slower),
        _ => fitting,
    };
    if unfitted.is_none() || is_linear {
        for (server, slower) in servers.iter_mut().zip(&slower) {
            apply(server, &constants, *slower, observed.context);
        }
    }
    let differs = |(server, slower): (&Server, &f64)| {
        (*slower != 1.0).then(|| Slower { server: server.name.clone(), slower: *slower })
    };
    Fit {
        measured: observed.usable().count() as u64,
        constants,
        slower: servers.iter().zip(&slower).filter_map(differs).collect(),
        unfitted,
        replayed: errors.replayed,
        refused: errors.refused,
        ttft_error: errors.ttft,
        tpot_error: errors.tpot,
        is_poor: errors.is_over(POOR),
    }
}
