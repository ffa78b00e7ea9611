//! A request's part of what is under way at an endpoint.

use std::sync::Arc;

use super::in_flight::InFlightId;
use super::load::Load;

/// A request and its tokens in an endpoint's counters. Dropping it gives back what
/// is left of both, however the stream ends.
#[derive(Debug)]
pub struct Share {
    load: Arc<Load>,
    id: InFlightId,
    requests: i64,
    tokens: i64,
}

impl Share {
    /// Counts one request with so many tokens.
    pub fn new(load: &Arc<Load>, id: InFlightId, tokens: u64) -> Self {
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        load.in_flight_of(id).add(1, tokens);
        Self { load: Arc::clone(load), id, requests: 1, tokens }
    }

    /// Gives the tokens back, and keeps the request.
    pub fn free_tokens(&mut self) {
        self.load.in_flight_of(self.id).add(0, -self.tokens);
        self.tokens = 0;
    }

    /// The request is served by another endpoint: what is counted moves there.
    pub fn move_to(&mut self, load: &Arc<Load>) {
        if !Arc::ptr_eq(&self.load, load) {
            self.load.in_flight_of(self.id).add(-self.requests, -self.tokens);
            load.in_flight_of(self.id).add(self.requests, self.tokens);
            self.load = Arc::clone(load);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.load.in_flight_of(self.id).add(-self.requests, -self.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_moves_and_is_released() {
        let id = InFlightId::new(1).unwrap();
        let (a, b) = (Arc::new(Load::default()), Arc::new(Load::default()));
        let counts = |load: &Load| (load.in_flight_of(id).requests(), load.in_flight_of(id).tokens());
        let mut share = Share::new(&a, id, 100);
        assert_eq!((counts(&a), counts(&b)), ((1, 100), (0, 0)));
        share.move_to(&b);
        assert_eq!((counts(&a), counts(&b)), ((0, 0), (1, 100)));
        share.free_tokens();
        assert_eq!(counts(&b), (1, 0));
        drop(share);
        assert_eq!(counts(&b), (0, 0));
    }

    #[test]
    fn producers_and_replicas_are_counted_apart() {
        let load = Arc::new(Load::default());
        let (one, other) = (InFlightId::new(0).unwrap(), InFlightId::new(3).unwrap());
        assert_eq!(InFlightId::new(InFlightId::MAX), None);
        let _share = Share::new(&load, one, 10);
        load.in_flight_of(one).report(5, 50);
        assert_eq!((load.in_flight_of(one).requests(), load.in_flight_of(one).own_requests()), (6, 1));
        assert_eq!((load.in_flight_of(one).tokens(), load.in_flight_of(one).own_tokens()), (60, 10));
        assert_eq!(load.in_flight_of(other).requests(), 0);
    }
}
