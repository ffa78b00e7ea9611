//! Context of a decision that is being made, and how a decision fails.

use std::sync::Arc;
use std::time::Duration;

use usher_core::endpoints::{Candidates, Endpoint};
use usher_core::request::Request;

use super::decision::Run;
use super::facts::Facts;

/// The decision under way, as every plugin sees it.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The request to place.
    pub request: &'a Request,
    /// Facts that producers learned about it.
    pub facts: &'a Facts,
    /// The endpoint that another profile picked and that this profile's pick will
    /// work with, in a disaggregated pool.
    pub peer: Option<&'a Arc<Endpoint>>,
    /// The part of the request that this profile's pick would serve.
    pub part: Part,
    /// Now, on the clock that stamps the readings of a load; never 0.
    pub now_ms: u64,
    /// Age from which a reading counts as missing (`--metrics-staleness-threshold`).
    pub max_age: Duration,
    /// `true` if candidates are taken however busy they are: filters that [drop the
    /// busy](super::Filter::drops_the_busy) don't run.
    pub despite_load: bool,
}

impl<'a> Context<'a> {
    /// A context without facts and without a peer.
    pub fn new(request: &'a Request, now_ms: u64, max_age: Duration) -> Self {
        Self {
            request,
            facts: Facts::NONE,
            peer: None,
            part: Part::Whole,
            now_ms,
            max_age,
            despite_load: false,
        }
    }
}

/// Part of a request that an endpoint serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it, or that isn't known yet.
    #[default]
    Whole,
    /// Prompt: another endpoint responds.
    Prefill,
    /// Response: another endpoint computes the prompt.
    Decode,
}

/// Reason that no endpoint was chosen. `Display` is the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The filters of a profile left no candidate.
    #[error("no endpoints available for the given request")]
    Drained,
    /// Endpoints were picked, but no two of them may work together.
    #[error("no prefill and decode endpoints are available that may work together")]
    NoPair,
    /// The profile handler had no profile with a result.
    #[error("failed to find target endpoint: {0}")]
    NoTarget(String),
}

impl ScheduleError {
    /// The value of `x-llm-d-request-dropped-reason`, if the response carries one.
    pub fn dropped_reason(&self) -> Option<&'static str> {
        match self {
            Self::Drained => Some("rejected-saturated"),
            Self::NoPair => Some("rejected-no-pair"),
            Self::NoTarget(_) => None,
        }
    }
}

/// Outcome of a profile in the decision under way.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The profile has not run.
    Waiting,
    /// The profile picked at least one endpoint.
    Picked(Run),
    /// The profile found no endpoint.
    Failed(ScheduleError),
}

/// The profiles of a scheduler and what became of each so far. Profiles are
/// known by their position in the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    names: &'a [Arc<str>],
    outcomes: &'a [Outcome],
    candidates: &'a Candidates,
}

impl<'a> Runs<'a> {
    /// The profiles of these names with their outcomes.
    pub fn new(names: &'a [Arc<str>], outcomes: &'a [Outcome], candidates: &'a Candidates) -> Self {
        Self { names, outcomes, candidates }
    }

    /// Number of configured profiles.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns `true` if no profile is configured.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The position of the profile with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| **known == *name)
    }

    /// The name of a profile; empty for a position that doesn't exist.
    pub fn name(&self, profile: usize) -> &'a str {
        self.names.get(profile).map_or("", |name| name)
    }

    /// Outcome of a profile; one that doesn't exist never ran.
    #[inline]
    pub fn outcome(&self, profile: usize) -> &'a Outcome {
        self.outcomes.get(profile).unwrap_or(&Outcome::Waiting)
    }

    /// Candidates of the profiles.
    #[inline]
    pub fn candidates(&self) -> &'a Candidates {
        self.candidates
    }

    /// The best pick of a profile that ran, as a position in the snapshot.
    #[inline]
    pub fn position(&self, profile: usize) -> Option<u32> {
        match self.outcome(profile) {
            Outcome::Picked(run) => run.picks.first().copied(),
            _ => None,
        }
    }

    /// The best pick of a profile that ran.
    #[inline]
    pub fn picked(&self, profile: usize) -> Option<&'a Arc<Endpoint>> {
        self.candidates.snapshot().endpoints().get(self.position(profile)? as usize)
    }
}
