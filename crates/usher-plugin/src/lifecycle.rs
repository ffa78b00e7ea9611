//! Interfaces of the plugins around a decision, in call order: request header processors,
//! gatherers, screeners, data producers, admitters; then the decision and its effects. Only an
//! admitter can reject a request.

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

/// Reads the headers of a request, before all other plugins.
pub trait RequestHeaderProcessor: Send + Sync {
    /// Sets fields of the request from its headers.
    fn process(&self, request: &mut Request);
}

/// Narrows the candidates, before producers run.
pub trait Screener: Send + Sync {
    /// Removes from `kept` (positions in the snapshot, all candidates) the endpoints that the
    /// request must not use. May only remove, and keeps the order. With several screeners the
    /// intersection remains.
    fn screen(
        &self,
        cx: &RequestContext<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        kept: &mut Vec<u32>,
        effects: &mut Effects,
    );
}

/// A request before the decision, without facts.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext<'a> {
    /// The request to place.
    pub request: &'a Request,
    /// Now, on the clock that stamps the readings of a load; never 0.
    pub now_ms: u64,
    /// Age from which a reading counts as missing.
    pub max_age: Duration,
}

/// Result of a gatherer for a request: adds to the facts, given the candidates of the decision.
pub type Gathered = Box<dyn FnOnce(&Candidates, &mut Facts) + Send>;

/// Batches requests: holds each until those that arrive with it are known, or awaits data about
/// it, before producers run.
pub trait Gatherer: Send + Sync {
    /// Holds a request; `None` for one that needn't be held. The future ends within a configured
    /// time, on a runtime with timers. Dropping it removes the request from the batch.
    fn gather(
        &self,
        cx: &RequestContext<'_>,
        candidates: &Candidates,
    ) -> Option<BoxFuture<'static, Gathered>>;
}

/// Produces facts about a request and its candidates.
pub trait DataProducer: Send + Sync {
    /// Adds to the facts, if there are any to add. Producers whose facts this one reads have run.
    fn produce(&self, cx: &RequestContext<'_>, candidates: &Candidates, facts: &mut Facts);
}

/// Rejects requests that the pool can't take now.
pub trait Admitter: Send + Sync {
    /// Admits or rejects the request.
    ///
    /// # Errors
    /// The reason, for the client.
    fn admit(&self, cx: &Context<'_>, candidates: &Candidates, rng: &mut dyn Rng) -> Result<(), Denied>;
}

/// Message of an admitter that denies a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub Cow<'static, str>);

/// Acts on a decision: headers, bookings and observers of the response.
pub trait PreRequest: Send + Sync {
    /// Adds the effects of `decision`. Called under the pool's lock where a profile reads what is
    /// in flight, so it has to be quick.
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects);
}
