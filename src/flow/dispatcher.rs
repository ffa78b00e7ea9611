//! Finds a destination: a place in the pool, candidates, and then a decision.

use std::pin::Pin;
use std::sync::Arc;

use rand::Rng;

use crate::endpoints::health::OutlierDetector;
use crate::endpoints::{CachedLocator, Candidates, Clock, SubsetHint};
use crate::recorder::Recorder;
use crate::records::Records;
use crate::request::Request;
use crate::schedule::flow_control::FlowControlSpec;
use crate::schedule::{Gathered, RequestContext};

use super::decider::Decider;
use super::outliers::OutlierFilter;
use super::policy::{ActivePolicy, Policy};
use super::{Attempts, Demand, Gate, Rejection, Routed};

/// Sends requests where the scheduler says.
#[derive(Debug)]
pub struct Dispatcher {
    locator: CachedLocator,
    policy: ActivePolicy,
    decider: Decider,
    clock: Clock,
    /// Gate that requests wait at; `None`: they don't wait.
    gate: Option<Arc<Gate>>,
}

/// A request on its way to a destination.
pub enum Entered {
    /// Destination of the request, or why it has none.
    Decided(Result<Routed, Rejection>),
    /// Queued: for candidates, for room, or for other requests.
    Waits(Pin<Box<dyn Future<Output = Result<Routed, Rejection>> + Send>>),
}

impl Entered {
    /// The destination, once it is decided.
    ///
    /// # Errors
    /// `Rejection` that is sent to the client.
    pub async fn decided(self) -> Result<Routed, Rejection> {
        match self {
            Self::Decided(decided) => decided,
            Self::Waits(decision) => decision.await,
        }
    }
}

impl Dispatcher {
    /// A dispatcher without flow control.
    pub fn new(locator: CachedLocator, policy: Policy, clock: Clock, attempts: Arc<Attempts>) -> Self {
        Self {
            locator,
            policy: ActivePolicy::new(policy),
            decider: Decider::new(clock.clone(), attempts),
            clock,
            gate: None,
        }
    }

    /// Keeps requests from endpoints that this detector has ejected.
    #[must_use]
    pub fn watched(mut self, outliers: Arc<OutlierDetector>) -> Self {
        self.decider.outlier_filter = Some(OutlierFilter::new(outliers));
        self
    }

    /// Records decisions there.
    #[must_use]
    pub fn recorded(mut self, records: Arc<Records>) -> Self {
        self.decider.records = Some(records);
        self
    }

    /// Records decisions into a file, too.
    #[must_use]
    pub fn recorded_by(mut self, recorder: Arc<Recorder>) -> Self {
        self.decider.recorder = Some(recorder);
        self
    }

    /// Lets requests wait where the pool has no room for them.
    #[must_use]
    pub fn with_gate(mut self, gate: Arc<Gate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Gate that requests wait at, if they do.
    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.as_ref()
    }

    /// The policy in effect.
    pub fn policy(&self) -> &ActivePolicy {
        &self.policy
    }

    /// Decides by this policy from now on, and lets requests wait by these rules. Decisions under way
    /// end by the policy with which they began; requests that wait are decided by the new one. Rules
    /// without a gate, and a gate without rules, are as they were.
    pub fn reconfigure(&self, policy: Policy, flow_control: Option<&FlowControlSpec>) {
        self.policy.replace(policy);
        if let (Some(gate), Some(flow_control)) = (&self.gate, flow_control) {
            gate.reconfigure(flow_control);
        }
    }

    /// Requests that wait, by priority and model; none without a gate.
    pub fn demand(&self) -> Demand {
        self.gate.as_ref().map(|gate| gate.demand()).unwrap_or_default()
    }

    /// Finds a destination for a request: at once where it can, or else in a future. Dropping that takes the
    /// request back.
    pub fn enter(self: &Arc<Self>, request: &Arc<Request>, subset: &SubsetHint) -> Entered {
        if let Some(decided) = self.decide_now(request, subset, &mut rand::rng()) {
            return Entered::Decided(decided);
        }
        let (dispatcher, request, subset) = (Arc::clone(self), Arc::clone(request), subset.clone());
        Entered::Waits(Box::pin(async move { dispatcher.wait(&request, &subset).await }))
    }

    /// Finds a destination without waiting, with a random source of the caller's: the part of [`Self::enter`] for
    /// simulations, which have no runtime and whose decisions follow from a seed. `None` if the candidates are
    /// not in the cache, the request has to wait, or a plugin holds requests.
    pub fn decide_now(
        &self,
        request: &Request,
        subset: &SubsetHint,
        rng: &mut dyn Rng,
    ) -> Option<Result<Routed, Rejection>> {
        let policy = self.policy.load();
        if policy.stages.gathers() {
            return None;
        }
        let deciding = self.decider.by(&policy);
        let candidates = self.locator.peek(subset)?;
        let Some(gate) = self.gate_of(request, subset) else {
            return Some(deciding.decide(request, &candidates, Vec::new(), false, rng));
        };
        let entered = match subset {
            SubsetHint::Missing => {
                self.decider.with_room(&candidates, |pool| gate.try_enter(request, pool))?
            }
            SubsetHint::Only(_) => {
                let pool = self.locator.peek(&SubsetHint::Missing)?;
                self.decider.with_room(&pool, |pool| gate.try_enter(request, pool))?
            }
        };
        let entered = entered.inspect_err(|rejection| self.record_waiting(request, rejection));
        Some(entered.and_then(|permit| deciding.place(permit, request, &candidates, Vec::new(), rng)))
    }

    /// Records a request that was refused while it waited.
    fn record_waiting(&self, request: &Request, rejection: &Rejection) {
        self.decider.record_waiting(request, rejection, || self.locator.peek(&SubsetHint::Missing));
    }

    /// Finds a destination, when there is room for the request. Dropping the future takes
    /// the request back.
    ///
    /// # Errors
    /// `Rejection` that is sent to the client.
    async fn wait(&self, request: &Request, subset: &SubsetHint) -> Result<Routed, Rejection> {
        let Some(gate) = self.gate_of(request, subset) else {
            let policy = self.policy.load_full();
            let (candidates, gathered) = self.gather(&policy, request, subset).await;
            let deciding = self.decider.by(&policy);
            return deciding.decide(request, &candidates, gathered, false, &mut rand::rng());
        };
        let mut since = None;
        loop {
            let pool = self.room().await;
            let entered = gate.enter(request, since, &pool).await;
            let permit = entered.inspect_err(|rejection| self.record_waiting(request, rejection))?;
            // Asked again, as a request may have waited for these very endpoints.
            // What gatherers find is kept under keys of their policy: the decision keeps to it.
            let policy = self.policy.load_full();
            let (candidates, gathered) = self.gather(&policy, request, subset).await;
            if !candidates.is_empty() || !self.locator.locate(&SubsetHint::Missing).await.is_empty() {
                let deciding = self.decider.by(&policy);
                return deciding.place(permit, request, &candidates, gathered, &mut rand::rng());
            }
            // The endpoints are gone again: back to where it stood.
            since = Some(permit.since());
        }
    }

    /// The endpoints whose room counts.
    pub(super) async fn room(&self) -> Candidates {
        let pool = self.locator.locate(&SubsetHint::Missing).await;
        self.decider.with_room(&pool, Candidates::clone)
    }

    /// The candidates' cache, for its metrics.
    pub fn locator(&self) -> &CachedLocator {
        &self.locator
    }

    /// Drops what is out of date, endpoints that are gone with it, and what was unused for
    /// long.
    pub fn sweep(&self) {
        self.locator.sweep();
        if let Some(outlier_filter) = &self.decider.outlier_filter {
            outlier_filter.sweep();
        }
        if let Some(gate) = &self.gate {
            gate.sweep();
        }
    }

    /// The gate, for requests that may wait: not those without a body, which are for no
    /// model, nor those that may go nowhere however long they wait.
    fn gate_of(&self, request: &Request, subset: &SubsetHint) -> Option<&Arc<Gate>> {
        let may_wait = !request.skips_queue && *subset != SubsetHint::Only([].into());
        self.gate.as_ref().filter(|_| may_wait)
    }

    /// The candidates of a request, and what gatherers find out about them while they
    /// hold it.
    async fn gather(
        &self,
        policy: &Policy,
        request: &Request,
        subset: &SubsetHint,
    ) -> (Candidates, Vec<Gathered>) {
        let candidates = self.locator.locate(subset).await;
        if !policy.stages.gathers() || candidates.is_empty() {
            return (candidates, Vec::new());
        }
        let max_age = policy.max_age;
        let cx = RequestContext { request, now_ms: self.clock.now_ms(), max_age };
        let gathered = policy.stages.gather(&cx, &candidates).await;
        // The pool may have changed while the request was held.
        (self.locator.locate(subset).await, gathered)
    }
}
