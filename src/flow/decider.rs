//! Decides for a request among its candidates, books, and records what led there.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use rand::Rng;

use crate::endpoints::health::RequestClass;
use crate::endpoints::{Candidates, Clock, Snapshot};
use crate::recorder::Recorder;
use crate::records::{Draft, Records, Refusal, Sinks, Subject, Trace};
use crate::request::{Api, Request};
use crate::schedule::{
    Context, Decision, Effects, Facts, Gathered, Record, RequestContext, ScheduleError, Scratch,
};

use super::concurrent::{Bookings, SMALL_BODY};
use super::outliers::{Attempt, Choice, OutlierFilter};
use super::policy::Policy;
use super::routed::{Sent, is_pair};
use super::{Attempts, Code, Permit, Rejection, Routed};
use super::{conditional, legacy_admission, spread};

thread_local! {
    /// A thread decides one request at a time, so its buffers can be reused.
    static SCRATCH: RefCell<(Scratch, Facts)> = RefCell::default();
}

/// The part of a pool's decisions that is the same under all its policies.
#[derive(Debug)]
pub(super) struct Decider {
    /// Order of the bookings: profiles that read requests in flight count those before, also those
    /// that were decided by an earlier policy.
    bookings: Bookings,
    clock: Clock,
    attempts: Arc<Attempts>,
    /// `None`: no outlier ejection.
    pub(super) outlier_filter: Option<OutlierFilter>,
    /// `None`: nothing is recorded.
    pub(super) records: Option<Arc<Records>>,
    /// Records decisions into a file; `None`: there is none.
    pub(super) recorder: Option<Arc<Recorder>>,
}

/// A decision by one policy, whichever is in effect when it ends.
#[derive(Clone, Copy)]
pub(super) struct Deciding<'a> {
    decider: &'a Decider,
    policy: &'a Policy,
}

/// A decision, not yet booked.
struct Chosen {
    decision: Decision,
    /// `true` if it is the probe of an ejected endpoint.
    probes: bool,
    /// `true` if it was made among all candidates although some are ejected.
    overrules: bool,
}

impl Decider {
    /// A decider without outlier ejection and records.
    pub(super) fn new(clock: Clock, attempts: Arc<Attempts>) -> Self {
        let bookings = Bookings::default();
        Self { bookings, clock, attempts, outlier_filter: None, records: None, recorder: None }
    }

    /// Decisions by a policy.
    pub(super) fn by<'a>(&'a self, policy: &'a Policy) -> Deciding<'a> {
        Deciding { decider: self, policy }
    }

    /// Looks at those of a pool that requests are not kept from.
    pub(super) fn with_room<T>(&self, pool: &Candidates, look: impl FnOnce(&Candidates) -> T) -> T {
        let healthy = self.outlier_filter.as_ref().and_then(|outlier_filter| outlier_filter.healthy(pool));
        look(healthy.as_ref().unwrap_or(pool))
    }

    /// Records a request that was refused while it waited, with the candidates of its pool, where these
    /// are known.
    pub(super) fn record_waiting(
        &self,
        request: &Request,
        rejection: &Rejection,
        pool: impl FnOnce() -> Option<Candidates>,
    ) {
        let sinks = self.sinks();
        if sinks.is_none() {
            return;
        }
        let candidates = pool().unwrap_or_else(|| Arc::new(Snapshot::new(0, Vec::new())).all());
        let (trace, now_ms) = (&Trace::default(), self.clock.now_ms());
        let (candidates, at) = (&candidates, Instant::now());
        let subject = Subject::new(request, candidates, trace, now_ms, at);
        record_refusal(sinks, &subject, rejection);
    }

    /// Ring and file that decisions are recorded in.
    fn sinks(&self) -> Sinks<'_> {
        Sinks { records: self.records.as_ref(), recorder: self.recorder.as_ref() }
    }
}

impl Deciding<'_> {
    /// Finds a destination for a request that may go.
    pub(super) fn place(
        &self,
        mut permit: Permit,
        request: &Request,
        candidates: &Candidates,
        gathered: Vec<Gathered>,
        rng: &mut dyn Rng,
    ) -> Result<Routed, Rejection> {
        let mut routed = self.decide(request, candidates, gathered, permit.spreads(), rng)?;
        permit.placed();
        routed.hold(permit);
        Ok(routed)
    }

    /// Decides a request, about which gatherers may have found out something.
    pub(super) fn decide(
        &self,
        request: &Request,
        candidates: &Candidates,
        gathered: Vec<Gathered>,
        spread: bool,
        rng: &mut dyn Rng,
    ) -> Result<Routed, Rejection> {
        let routed = SCRATCH.with_borrow_mut(|(scratch, facts)| {
            // Before and behind: should a plugin panic, its request's facts stay with it.
            facts.clear();
            gathered.into_iter().for_each(|add| add(candidates, facts));
            scratch.trace_mut().clear();
            let mut routed = self.route(request, candidates, spread, rng, scratch, facts);
            let sinks = self.decider.sinks();
            if !sinks.is_none() {
                self.record(sinks, request, candidates, scratch, facts, &mut routed);
            }
            facts.clear();
            routed
        });
        match &routed {
            Ok(routed) => {
                self.decider.attempts.success(&request.target_model, routed.decision().primary_endpoint());
            }
            Err(_) => self.decider.attempts.failure(&request.target_model),
        }
        routed
    }

    /// Records a decision, or why there is none.
    fn record(
        &self,
        sinks: Sinks<'_>,
        request: &Request,
        candidates: &Candidates,
        scratch: &Scratch,
        facts: &Facts,
        routed: &mut Result<Routed, Rejection>,
    ) {
        let stages = &self.policy.stages;
        let subject = Subject {
            request,
            candidates,
            prefix: stages.prefix().and_then(|key| facts.get(key)),
            kv_events: stages.kv_events().and_then(|key| facts.get(key)),
            input_tokens: stages.tokens().and_then(|key| facts.get(key)).map(|tokens| tokens.count),
            trace: scratch.trace(),
            now_ms: self.decider.clock.now_ms(),
            at: Instant::now(),
        };
        match routed {
            Ok(routed) => {
                let draft = Draft::new(sinks, &subject, Some(routed.decision()), None);
                routed.record_as(draft);
            }
            Err(rejection) => record_refusal(sinks, &subject, rejection),
        }
    }

    /// The stages of a request, one after the other.
    fn route(
        &self,
        request: &Request,
        candidates: &Candidates,
        spread: bool,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
        facts: &mut Facts,
    ) -> Result<Routed, Rejection> {
        let now_ms = self.decider.clock.now_ms();
        let detector = self.policy.stages.sheds_by().filter(|_| request.priority < 0);
        if let Some(detector) = detector {
            self.decider.with_room(candidates, |room| legacy_admission::check(detector, room, now_ms))?;
        }
        if candidates.is_empty() {
            return Err(Rejection::no_endpoints());
        }
        let mut effects = Effects::default();
        let cx = RequestContext { request, now_ms, max_age: self.policy.max_age };
        let screened = self.policy.stages.screen(&cx, candidates, rng, &mut effects);
        let candidates = screened.as_ref().unwrap_or(candidates);
        if candidates.is_empty() {
            return Err(Rejection::screened());
        }
        let is_page_request = is_page_request(request);
        let among = self.decider.outlier_filter.as_ref().and_then(|outlier_filter| {
            outlier_filter.choice(candidates, !self.policy.stages.screens(), !is_page_request, now_ms, rng)
        });
        // About all of them: should nobody else do, those that are ejected have to.
        self.policy.stages.produce(&cx, candidates, facts);
        let context = Context { facts, ..Context::new(request, cx.now_ms, cx.max_age) };
        self.policy
            .stages
            .admit(&context, among.as_ref().map_or(candidates, |choice| &choice.healthy), rng)
            .map_err(|denied| Rejection::saturated(format!("request cannot be admitted: {denied}")))?;
        let mut choose = || self.choose(&context, candidates, among.as_ref(), spread, rng, scratch);
        let (chosen, _begun) = if self.policy.stages.books() || spread {
            let is_small = request.body.len() <= SMALL_BODY && !request.is_uploading;
            // Where a filter has a limit, every booking counts.
            let counts_small = self.policy.scheduler.drops_the_busy();
            let (chosen, begun) = self.decider.bookings.decide(
                (is_small, counts_small),
                |chosen: &Chosen| &chosen.decision,
                choose,
            )?;
            (chosen, Some(begun))
        } else {
            (choose()?, None)
        };
        if let Some(outlier_filter) = self.decider.outlier_filter.as_ref().filter(|_| chosen.overrules) {
            outlier_filter.count_fallback();
        }
        let attempt = among.and_then(|choice| choice.attempt).filter(|_| chosen.probes);
        let probe = attempt.map(|attempt| attempt.probe.used());
        let class = class_of(request);
        // Of a pair either may be the one that hangs, so that nobody is blamed.
        let uploading = request.is_uploading;
        let awaited = (self.decider.outlier_filter.is_some()
            && !uploading
            && !is_page_request
            && !is_pair(&chosen.decision))
        .then(|| chosen.decision.primary_endpoint().health().awaits(class, now_ms))
        .flatten();
        let clock = Some(self.decider.clock.clone());
        let sent =
            Sent { at_ms: now_ms, uploading, is_page_request, probe, class, awaited, unproven: false, clock };
        Ok(self.book(&context, chosen.decision, effects, sent))
    }

    /// Decides among those that are well, or lets the request be the probe of one that
    /// isn't. May be called again: it changes nothing.
    fn choose(
        &self,
        context: &Context<'_>,
        all: &Candidates,
        among: Option<&Choice>,
        spread: bool,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
    ) -> Result<Chosen, Rejection> {
        let Policy { scheduler, stages, record, .. } = self.policy;
        // The log of decisions names totals.
        let is_logged = *record == Record::No && tracing::enabled!(tracing::Level::DEBUG);
        let record = if is_logged { Record::Scores } else { *record };
        let is_recorded = self.decider.records.is_some();
        let mut decide = |context: &Context<'_>, among: &Candidates, spread: bool, is_result: bool| {
            scratch.trace_mut().set(is_recorded && is_result);
            let mut decide = |among: &Candidates| scheduler.decide(context, among, rng, scratch, record);
            match spread.then(|| spread::least_busy(among)) {
                // Those who are left may not be those whom the filters leave.
                Some(few) => decide(&few).or_else(|_| decide(among)),
                None => decide(among),
            }
        };
        let check = |decision: &Decision| conditional::check(context, decision, stages.prefix());
        let (mut healthy, mut overrules) = (None, false);
        if let Some(Choice { healthy: candidates, relief, attempt }) = among {
            if let Some(Attempt { position, among, .. }) = attempt {
                let decision = decide(context, among, false, true).ok().filter(|decision| {
                    decision.primary().picks.first() == Some(position) && check(decision).is_ok()
                });
                // Otherwise the filters, or the client, won't have it: the place is given back.
                if let Some(mut decision) = decision {
                    if self.decider.outlier_filter.as_ref().is_some_and(OutlierFilter::may_fall_back)
                        && let Ok(others) = decide(context, candidates, false, false)
                    {
                        decision.fall_back_on(&others);
                    }
                    return Ok(Chosen { decision, probes: true, overrules: false });
                }
            }
            if let Some(among) = relief
                && let Some(mut decision) =
                    decide(context, among, false, true).ok().filter(|decision| check(decision).is_ok())
            {
                if self.decider.outlier_filter.as_ref().is_some_and(OutlierFilter::may_fall_back)
                    && let Ok(others) = decide(context, candidates, false, false)
                {
                    decision.fall_back_on(&others);
                }
                return Ok(Chosen { decision, probes: false, overrules: true });
            }
            let despite_load = Context { despite_load: true, ..*context };
            healthy = match decide(context, candidates, spread, true) {
                // Only if they wouldn't do with room either. Those who fail are idle, and would
                // get all that is too much for the others.
                Err(ScheduleError::Drained | ScheduleError::NoPair)
                    if decide(&despite_load, candidates, false, false).is_err() =>
                {
                    None
                }
                decided => Some(decided),
            };
            overrules = healthy.is_none();
        }
        let decision =
            healthy.unwrap_or_else(|| decide(context, all, spread, true)).map_err(|error| refusal(&error))?;
        check(&decision)?;
        // Where all that do a part of the work are ejected, and not the one that was to have it.
        let is_short = among.is_some_and(|choice| choice.relief.is_some());
        overrules |= is_short && decision.primary_endpoint().health().is_ejected();
        Ok(Chosen { decision, probes: false, overrules })
    }

    fn book(&self, context: &Context<'_>, decision: Decision, mut effects: Effects, sent: Sent) -> Routed {
        self.policy.stages.act(context, &decision, &mut effects);
        Routed::book(decision, effects, self.policy.record, sent)
    }
}

fn record_refusal(sinks: Sinks<'_>, subject: &Subject<'_>, rejection: &Rejection) {
    let records = sinks.records.filter(|records| records.takes_refusal(subject.at));
    let sinks = Sinks { records, ..sinks };
    if sinks.is_none() {
        return;
    }
    let body = rejection.body();
    let refusal = Refusal::new(rejection.code.status(), rejection.reason, &body);
    let id = subject.request.headers.name("x-request-id").map(String::from_utf8_lossy).unwrap_or_default();
    Draft::new(sinks, subject, None, Some(refusal)).keep(&id);
}

/// Requests like this one, as far as its body tells.
fn class_of(request: &Request) -> RequestClass {
    let class = RequestClass::of(request.body.len(), request.stream, request.max_output_tokens);
    let has_media = request.api == Api::ImageGenerations || request.prompt.is_multimodal();
    if has_media { class.with_media() } else { class }
}

/// Returns `true` if a request asks for a page only. A server that can't generate anything
/// may well answer it, so that says nothing good about a server.
fn is_page_request(request: &Request) -> bool {
    let method = || request.headers.get(":method");
    request.body.is_empty()
        && !request.is_uploading
        && matches!(method(), Some(b"GET" | b"HEAD" | b"OPTIONS"))
}

/// Every failure to schedule is 429, as in llm-d-router, but for one that it can't have:
/// endpoints that don't fit together are as good as none. A client may try again soon
/// where the pool is only full.
fn refusal(error: &ScheduleError) -> Rejection {
    let reason = error.dropped_reason();
    let (code, retry_after) = match error {
        ScheduleError::NoPair => (Code::ServiceUnavailable, None),
        _ => (Code::ResourceExhausted, reason.map(|_| 1)),
    };
    Rejection { reason, retry_after, ..Rejection::new(code, error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_to_schedule_is_429() {
        let drained = refusal(&ScheduleError::Drained);
        assert_eq!(
            (drained.code.status(), drained.reason, drained.retry_after),
            (429, Some("rejected-saturated"), Some(1))
        );
        assert_eq!(
            drained.body(),
            "inference error: ResourceExhausted - no endpoints available for the given request"
        );
        let no_pair = refusal(&ScheduleError::NoPair);
        assert_eq!(
            (no_pair.code.status(), no_pair.reason, no_pair.retry_after),
            (503, Some("rejected-no-pair"), None)
        );
        let no_target = refusal(&ScheduleError::NoTarget("x".into()));
        assert_eq!((no_target.code.status(), no_target.reason, no_target.retry_after), (429, None, None));
    }
}
