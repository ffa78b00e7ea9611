//! One prompt in an endpoint's backlog.

use std::sync::Arc;
use std::time::Duration;

use crate::endpoints::Endpoint;

use super::backlog::Backlog;
use super::model::Model;

/// A prompt that an endpoint has to compute. It leaves the backlog with its first
/// token, or when this is dropped.
#[derive(Debug)]
pub struct Booked {
    model: Arc<Model>,
    backlog: Arc<Backlog>,
    tokens: u64,
    is_seen: bool,
    sent: Duration,
    first_token: Option<Duration>,
}

impl Booked {
    pub(super) fn new(
        model: Arc<Model>,
        backlog: Arc<Backlog>,
        tokens: u64,
        is_seen: bool,
        now: Duration,
    ) -> Self {
        let booked = Self { model, backlog, tokens, is_seen, sent: now, first_token: None };
        booked.enter(now);
        booked
    }

    fn enter(&self, now: Duration) {
        if self.is_seen {
            self.backlog.add(self.tokens);
        } else {
            self.backlog.add_unseen(self.tokens, now);
        }
    }

    /// The prompt is computed by another endpoint. What that has cached of it is not
    /// known any more, so it is taken to be as much.
    pub fn move_to(&mut self, endpoint: &Endpoint) {
        let backlog = self.model.backlog(endpoint);
        if self.first_token.is_some() || Arc::ptr_eq(&backlog, &self.backlog) {
            return;
        }
        if self.is_seen {
            self.backlog.take(self.tokens);
        } else {
            self.backlog.take_unseen(self.tokens);
        }
        self.backlog = backlog;
        self.enter(self.model.clock().elapsed());
    }

    /// The first token is there.
    pub fn first_token(&mut self) {
        if self.is_seen && self.first_token.is_none() {
            let now = self.model.clock().elapsed();
            self.first_token = Some(now);
            self.backlog.take(self.tokens);
            self.backlog.first_token(self.tokens, self.sent, now);
        }
    }

    /// The answer is complete.
    pub fn ends(&mut self) {
        let since = self.first_token.unwrap_or(self.sent);
        self.backlog.finished(self.model.clock().elapsed().saturating_sub(since));
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        if self.is_seen && self.first_token.is_none() {
            self.backlog.take(self.tokens);
        }
    }
}
