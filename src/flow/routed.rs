//! A request that has its destination.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::endpoints::Booking;
use crate::schedule::{Decision, Record};

/// A decision and what it booked. Dropping it gives the booking back.
#[derive(Debug)]
pub struct Routed {
    decision: Decision,
    record: Record,
    booking: Booking,
}

impl Routed {
    /// Books the decision's first choice.
    pub(super) fn book(decision: Decision, record: Record) -> Self {
        let booking = decision.primary_endpoint().load().book();
        Self { decision, record, booking }
    }

    /// The decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// `host:port` of the picks, the first choice first, separated by commas.
    pub fn destination(&self) -> Bytes {
        let mut picks = self.decision.endpoints();
        let mut text = BytesMut::with_capacity(24 * picks.len());
        if let Some(first) = picks.next() {
            text.put_slice(first.authority().as_bytes());
        }
        for fallback in picks {
            text.put_u8(b',');
            text.put_slice(fallback.authority().as_bytes());
        }
        text.freeze()
    }

    /// Total score of every candidate that the filters left, where it was asked for.
    pub fn scores(&self) -> Option<Vec<(Arc<str>, f64)>> {
        let recorded = self.record != Record::No;
        recorded
            .then(|| self.decision.scores().map(|(endpoint, score)| (Arc::clone(endpoint), score)).collect())
    }

    /// The gateway was served by this address: what was booked moves there. An
    /// address that the pool doesn't know changes nothing.
    pub fn served(&mut self, address: SocketAddr) {
        let snapshot = self.decision.candidates().snapshot();
        if let Some(endpoint) = snapshot.at(address.ip(), address.port()) {
            self.booking.move_to(endpoint.load());
        }
    }
}
