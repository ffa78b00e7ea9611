//! A request that has its destination.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::endpoints::{Booking, Endpoint};
use crate::request::usage::Usage;
use crate::schedule::{AnswerHead, Attribute, Decision, Effects, Followers, Header, Record, Served};

/// A decision, what it booked and what followed from it. Dropping it gives back
/// everything.
#[derive(Debug)]
pub struct Routed {
    decision: Decision,
    record: Record,
    booking: Booking,
    effects: Effects,
    followers: Followers,
    answer_headers: Vec<Header>,
    /// The first bytes of the answer are there.
    begun: bool,
}

impl Routed {
    /// Books the decision's first choice.
    pub(super) fn book(decision: Decision, mut effects: Effects, record: Record) -> Self {
        let booking = decision.primary_endpoint().load().book();
        let (followers, answer_headers) = effects.take_followers();
        Self { decision, record, booking, effects, followers, answer_headers, begun: false }
    }

    /// The decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// `host:port` of the picks, the first choice first, separated by commas.
    pub fn destination(&self) -> Bytes {
        let picks = self.decision.endpoints();
        let mut text = BytesMut::with_capacity(24 * picks.len());
        for (position, pick) in picks.enumerate() {
            if position > 0 {
                text.put_u8(b',');
            }
            match self.effects.port() {
                None => text.put_slice(pick.authority().as_bytes()),
                Some(port) => text.put_slice(SocketAddr::new(pick.ip(), port).to_string().as_bytes()),
            }
        }
        text.freeze()
    }

    /// Headers that plugins set on the request.
    pub fn headers(&self) -> &[Header] {
        self.effects.headers()
    }

    /// Total score of every candidate that the filters left, where it was asked for
    /// and the destination is the endpoints' own.
    pub fn scores(&self) -> Option<Vec<(Arc<str>, f64)>> {
        let recorded = self.record != Record::No && self.effects.port().is_none();
        recorded
            .then(|| self.decision.scores().map(|(endpoint, score)| (Arc::clone(endpoint), score)).collect())
    }

    /// The answer begins. What was booked moves to the endpoint that served it; an
    /// address that the pool doesn't know changes nothing. Returns headers to set on
    /// the answer.
    pub fn answer_begins(&mut self, served: &Served) -> Vec<Header> {
        let first = Arc::clone(self.decision.primary_endpoint());
        let endpoint = self.named(served).unwrap_or_else(|| Arc::clone(&first));
        if !Arc::ptr_eq(&endpoint, &first) {
            self.booking.move_to(endpoint.load());
            self.followers.moved(&endpoint);
        }
        let mut headers = std::mem::take(&mut self.answer_headers);
        if !self.followers.is_empty() {
            self.followers.begins(&AnswerHead { served, endpoint: &endpoint }, &mut headers);
        }
        headers
    }

    /// Bytes of the answer's body are there.
    pub fn first_bytes(&mut self) {
        if !self.begun {
            self.begun = true;
            self.followers.first_bytes();
        }
    }

    /// The answer is complete. Returns numbers for the gateway.
    pub fn answer_ends(&mut self, usage: &Usage) -> Vec<Attribute> {
        let mut attributes = Vec::new();
        self.followers.ends(usage, &mut attributes);
        attributes
    }

    /// The endpoint that the gateway names.
    fn named(&self, served: &Served) -> Option<Arc<Endpoint>> {
        let Served::By(address) = served else { return None };
        let address: SocketAddr = address.parse().ok()?;
        if self.effects.port() == Some(address.port()) {
            // A port that stands for all ports of the pod doesn't say which of them served.
            return None;
        }
        self.decision.candidates().snapshot().at(address.ip(), address.port()).cloned()
    }
}
