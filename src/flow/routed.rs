//! A request that has its destination.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};

use crate::endpoints::health::{AwaitedByte, Failure, Probe, RequestClass, Verdict};
use crate::endpoints::{Booking, Clock, Endpoint};
use crate::records::Draft;
use crate::request::usage::Usage;
use crate::schedule::{
    Attribute, Decision, Effects, Header, Record, ResponseHead, ResponseObservers, Served,
};

use super::Permit;

/// A decision, what it booked and what followed from it. Dropping it gives back
/// everything.
#[derive(Debug)]
pub struct Routed {
    decision: Decision,
    record: Record,
    booking: Booking,
    sent: Sent,
    /// Endpoint whose good response has begun.
    server: Option<Arc<Endpoint>>,
    /// `None` where no plugin wants anything: most streams wait, and hold this.
    observed: Option<Box<Observed>>,
    /// Record of the decision, until the request has its id.
    draft: Option<Box<Draft>>,
    /// The room that it takes, with flow control. Last, so that it is given back when all
    /// else has been, and who gets it finds the pool as it is then.
    permit: Option<Box<Permit>>,
}

/// Circumstances of a request's dispatch.
#[derive(Debug)]
pub(super) struct Sent {
    /// Time on the clock of the readings.
    pub(super) at_ms: u64,
    /// `true` while the body is on its way: no response is late before its end.
    pub(super) uploading: bool,
    /// `true` if it only asks for a page: a good response says nothing about the server.
    pub(super) is_page_request: bool,
    /// Probe of the first choice, if the request is one.
    pub(super) probe: Option<Probe>,
    /// Requests like it.
    pub(super) class: RequestClass,
    /// The first byte of the response is waited for.
    pub(super) awaited: Option<AwaitedByte>,
    /// A good response has begun, and what it is good for comes with its first token: a
    /// server may send headers and then hang.
    pub(super) unproven: bool,
    /// The clock that shows when the first token has passed; `None` once it has, and where it isn't
    /// seen as it comes.
    pub(super) clock: Option<Clock>,
}

/// Effects and observers that plugins asked for.
#[derive(Debug)]
struct Observed {
    effects: Effects,
    observers: ResponseObservers,
    /// The first token of the response has passed.
    begun: bool,
}

impl Routed {
    /// Books the decision's first choice.
    pub(super) fn book(decision: Decision, mut effects: Effects, record: Record, sent: Sent) -> Self {
        let booking = decision.primary_endpoint().load().book();
        let observed = (!effects.is_empty()).then(|| {
            let observers = effects.take_observers();
            Box::new(Observed { effects, observers, begun: false })
        });
        Self { decision, record, booking, sent, server: None, observed, draft: None, permit: None }
    }

    /// Keeps a record of the decision, which has no id yet.
    pub(super) fn record_as(&mut self, draft: Draft) {
        self.draft = Some(Box::new(draft));
    }

    /// The record of the decision, once, where decisions are recorded.
    pub fn take_draft(&mut self) -> Option<Box<Draft>> {
        self.draft.take()
    }

    /// Keeps the room that the request takes until its end.
    pub(super) fn hold(&mut self, permit: Permit) {
        self.permit = Some(Box::new(permit));
    }

    /// Ready when the request is given up for another: its stream has to end.
    pub fn poll_revoked(&self, context: &mut Context<'_>) -> Poll<()> {
        self.permit.as_ref().map_or(Poll::Pending, |permit| permit.poll_revoked(context))
    }

    /// The decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// `host:port` of the picks, the first choice first, separated by commas.
    pub fn destination(&self) -> Bytes {
        let (picks, port) = (self.decision.endpoints(), self.port());
        let mut text = BytesMut::with_capacity(24 * picks.len());
        for (position, pick) in picks.enumerate() {
            if position > 0 {
                text.put_u8(b',');
            }
            match port {
                None => text.put_slice(pick.authority().as_bytes()),
                Some(port) => text.put_slice(SocketAddr::new(pick.ip(), port).to_string().as_bytes()),
            }
        }
        text.freeze()
    }

    /// Headers that plugins set on the request.
    pub fn headers(&self) -> &[Header] {
        self.observed.as_ref().map_or(&[], |observed| observed.effects.headers())
    }

    /// Total score of every candidate that the filters left, where it was asked for
    /// and the destination is the endpoints' own. They are gone then: a request may take
    /// minutes, and they are larger than all else that is kept of it.
    pub fn take_scores(&mut self) -> Option<Vec<(Arc<str>, f64)>> {
        let recorded = self.record != Record::No && self.port().is_none();
        let score = |(endpoint, score): (&Arc<str>, f64)| (Arc::clone(endpoint), score);
        let scores = recorded.then(|| self.decision.scores().map(score).collect());
        self.decision.forget_scores();
        scores
    }

    /// The response begins. What was booked moves to the endpoint that served it; an
    /// address that the pool doesn't know changes nothing. `verdict`: what the response's
    /// head says about the server; `is_stream`: it is a stream of tokens, which are seen
    /// as they come. Returns headers to set on the response.
    pub fn response_begins(&mut self, served: &Served, verdict: Verdict, is_stream: bool) -> Vec<Header> {
        let named = self.named(served);
        self.report(served, named.as_ref(), verdict, is_stream);
        if let Some(endpoint) = &named {
            self.booking.move_to(endpoint.load());
        }
        if !is_stream || std::mem::take(&mut self.sent.uploading) {
            self.sent.clock = None;
        }
        let Some(observed) = &mut self.observed else { return Vec::new() };
        let first = self.decision.primary_endpoint();
        let endpoint = named.as_ref().unwrap_or(first);
        let (head, mut headers) = (ResponseHead { served, endpoint, is_stream }, Vec::new());
        if Arc::ptr_eq(endpoint, first) {
            observed.observers.response_headers(&head, &mut headers);
        } else {
            observed.observers.rerouted_response_headers(&head, &mut headers);
        }
        headers
    }

    /// Reports the request's outcome to the endpoints. Those that the gateway was to try before
    /// the one that served have failed; a response of somebody whom the pool doesn't know
    /// says nothing.
    fn report(&mut self, served: &Served, named: Option<&Arc<Endpoint>>, verdict: Verdict, is_stream: bool) {
        let mut awaited = self.sent.awaited.take();
        if named.is_none() && matches!(served, Served::By(_)) {
            awaited.map(AwaitedByte::forget);
            return;
        }
        let Sent { at_ms, is_page_request, .. } = self.sent;
        let verdict = if is_page_request && verdict == Verdict::Good { Verdict::Unclear } else { verdict };
        let first = self.decision.primary_endpoint();
        let server = named.unwrap_or(first);
        if named.is_some() {
            server.health().named_as_server();
        }
        let same = |one: &Arc<Endpoint>| one.slot().number() == server.slot().number();
        // A request that took too long is one failure, whatever becomes of it.
        let ends = !same(first) || matches!(verdict, Verdict::Failed(_) | Verdict::Unclear);
        let failed = awaited.take_if(|_| ends).is_some_and(AwaitedByte::forget);
        for skipped in self.decision.endpoints().take_while(|pick| !same(pick)) {
            if !(failed && Arc::ptr_eq(skipped, first)) {
                skipped.health().failed(Failure::Elsewhere, at_ms);
            }
        }
        let is_good = verdict == Verdict::Good;
        self.sent.unproven = is_good && is_stream;
        if self.sent.unproven {
            self.sent.awaited = match same(first) {
                true => awaited,
                false if self.sent.uploading => None,
                false => server.health().awaits(self.sent.class, at_ms),
            };
        } else {
            if let Some((awaited, clock)) = awaited.zip(self.sent.clock.as_ref()) {
                awaited.came(clock.now_ms());
            }
            if !(failed && same(first)) {
                server.health().ended(verdict, at_ms);
            }
        }
        self.server = is_good.then(|| Arc::clone(server));
        let answered = !same(first) || !(verdict == Verdict::Unclear || self.sent.unproven);
        if let Some(probe) = self.sent.probe.take_if(|_| answered) {
            probe.answered();
        }
    }

    /// Counts a good response as a success: its stream has begun, or it has ended.
    fn count_success(&mut self) {
        if !std::mem::take(&mut self.sent.unproven) {
            return;
        }
        if let Some((awaited, clock)) = self.sent.awaited.take().zip(self.sent.clock.as_ref()) {
            awaited.came(clock.now_ms());
        }
        if let Some(server) = &self.server {
            server.health().succeeded(self.sent.at_ms);
        }
        if let Some(probe) = self.sent.probe.take() {
            probe.answered();
        }
    }

    /// Counts relayed bytes of a body that is not parsed, as tokens.
    pub fn relayed(&mut self, bytes: usize) {
        if let Some(permit) = &mut self.permit {
            permit.relayed(bytes);
        }
    }

    /// All of a body, so many bytes, has gone to the gateway that nobody reads: the response is waited
    /// for.
    pub fn body_sent(&mut self, bytes: usize) {
        if !std::mem::take(&mut self.sent.uploading) {
            return;
        }
        self.sent.class = RequestClass::of(bytes, false, None);
        let Some(clock) = &self.sent.clock else { return };
        self.sent.at_ms = clock.now_ms();
        if !self.sent.is_page_request && !is_pair(&self.decision) {
            let first = self.decision.primary_endpoint();
            self.sent.awaited = first.health().awaits(self.sent.class, self.sent.at_ms);
        }
    }

    /// A part of the response has come.
    pub fn goes_on(&self) {
        if let Some(server) = &self.server {
            server.health().lives();
        }
    }

    /// The request is given up, which says nothing about its endpoint.
    pub fn withdraw(mut self) {
        self.sent.awaited.take().map(AwaitedByte::forget);
    }

    /// The first token of the response has passed; of a response whose content isn't recognised, the
    /// first bytes of its body. Counts once.
    pub fn first_token(&mut self) {
        self.count_success();
        self.learn_first_token();
        if let Some(observed) = self.observed.as_mut().filter(|observed| !observed.begun) {
            observed.begun = true;
            observed.observers.first_token();
            if let Some(permit) = &self.permit {
                // The prompt's tokens are counted no more.
                permit.lighter();
            }
        }
    }

    /// Notes how long the first token took, at who responds and who computed the prompt.
    fn learn_first_token(&mut self) {
        let Some(clock) = self.sent.clock.take() else { return };
        let Some(server) = &self.server else { return };
        let now_ms = clock.now_ms();
        let seconds = now_ms.saturating_sub(self.sent.at_ms) as f64 / 1000.0;
        let decision = &self.decision;
        let computed = decision.prefill().and_then(|run| decision.endpoints_of(run).next());
        let other = computed.filter(|other| other.slot().number() != server.slot().number());
        for endpoint in other.into_iter().chain([server]) {
            endpoint.load().first_token.blend(seconds, now_ms);
        }
    }

    /// The response is complete. It had so many `generated` tokens as it looked. Returns numbers for the
    /// gateway.
    pub fn response_ends(&mut self, usage: &Usage, generated: u64) -> Vec<Attribute> {
        let mut attributes = Vec::new();
        self.count_success();
        if let Some(server) = self.server.take() {
            server.health().finished();
        }
        if let Some(permit) = &mut self.permit {
            permit.used(usage, generated, true);
        }
        if let Some(observed) = &mut self.observed {
            observed.observers.response_complete(usage, &mut attributes);
        }
        attributes
    }

    /// The response was cut off after so many `generated` tokens, as it looked, or never came.
    pub fn cut_off(&mut self, usage: &Usage, generated: u64) {
        if let Some(permit) = &mut self.permit {
            permit.used(usage, generated, false);
        }
    }

    /// The port to use instead of the endpoints' own.
    fn port(&self) -> Option<u16> {
        self.observed.as_ref().and_then(|observed| observed.effects.port())
    }

    /// The endpoint that the gateway names.
    fn named(&self, served: &Served) -> Option<Arc<Endpoint>> {
        let Served::By(address) = served else { return None };
        let address: SocketAddr = address.parse().ok()?;
        if self.port() == Some(address.port()) {
            // The port stands for all ports of a pod. Of the picks there the best was meant.
            return self.decision.endpoints().find(|pick| pick.ip() == address.ip()).cloned();
        }
        self.decision.candidates().snapshot().at(address.ip(), address.port()).cloned()
    }
}

/// Returns `true` if another endpoint computes the prompt.
pub(super) fn is_pair(decision: &Decision) -> bool {
    let computes = decision.prefill().and_then(|run| decision.endpoints_of(run).next());
    let number = decision.primary_endpoint().slot().number();
    computes.is_some_and(|endpoint| endpoint.slot().number() != number)
}
