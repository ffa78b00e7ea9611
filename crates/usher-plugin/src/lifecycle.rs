//! The interfaces of the plugins around a decision, in the order in which a request
//! meets them: header processors, gatherers, screeners, producers, admitters; then the decision;
//! then what follows from it. Only an admitter can say no.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::Rng;
use usher_core::endpoints::Candidates;
use usher_core::request::Request;

use super::context::Context;
use super::decision::Decision;
use super::effects::Effects;
use super::facts::Facts;

/// Reads the headers of a request before anything else happens to it.
pub trait HeaderProcessor: Send + Sync {
    /// Notes in the request what its headers say.
    fn process(&self, request: &mut Request);
}

/// Narrows the candidates before anything is learned about them.
pub trait Screener: Send + Sync {
    /// Removes from `kept` (positions in the snapshot, all candidates) what the
    /// request must not see. May only remove, and keeps the order. What several
    /// screeners keep is intersected.
    fn screen(
        &self,
        cx: &Situation<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        kept: &mut Vec<u32>,
        effects: &mut Effects,
    );
}

/// A request before anything was learned about it.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The request to place.
    pub request: &'a Request,
    /// Now, on the clock that stamps the readings of a load; never 0.
    pub now_ms: u64,
    /// Age from which a reading counts as missing.
    pub max_age: Duration,
}

/// Result of a gatherer for a request, for its facts. The candidates are those of
/// the decision.
pub type Finding = Box<dyn FnOnce(&Candidates, &mut Facts) + Send>;

/// Batches requests: holds each until it has seen those that come with it, before
/// anything else is learned about it.
pub trait Gatherer: Send + Sync {
    /// Holds a request; `None` for one that it has no reason to hold. The future ends after
    /// a time that the configuration says, on a runtime with timers. Dropping it takes the
    /// request out.
    fn gather(&self, cx: &Situation<'_>, candidates: &Candidates) -> Option<BoxFuture<'static, Finding>>;
}

/// Learns something about a request and its candidates.
pub trait Producer: Send + Sync {
    /// Adds to the facts. Producers whose facts this one reads have run. A producer
    /// that has nothing to say adds nothing.
    fn produce(&self, cx: &Situation<'_>, candidates: &Candidates, facts: &mut Facts);
}

/// Refuses requests that the pool can't take now.
pub trait Admitter: Send + Sync {
    /// Lets the request through or says why not.
    ///
    /// # Errors
    /// The reason, for the client.
    fn admit(&self, cx: &Context<'_>, candidates: &Candidates, rng: &mut dyn Rng) -> Result<(), Denied>;
}

/// Message of an admitter that denies a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub Cow<'static, str>);

/// Acts on a decision: everything that follows from it happens here.
pub trait PreRequest: Send + Sync {
    /// The request goes where `decision` says. Called under the pool's lock where a
    /// profile reads what is in flight, so it has to be quick.
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects);
}
