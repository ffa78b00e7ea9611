//! One endpoint whose events are followed.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use usher_core::endpoints::{Endpoint, Slot};
use usher_core::kv_events::{Chain, Counts, Input, SourceId, Tracker};
use usher_plugins::Agreement;

use super::skipped::Skipped;

/// Connections in a row without a message that are worth a warning.
const FAILURES: u32 = 5;

/// State of an endpoint. Dropping it ends its tasks.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) endpoint: Arc<Endpoint>,
    /// Kept until all that is indexed under its number is removed.
    pub(super) slot: Arc<Slot>,
    pub(super) id: SourceId,
    pub(super) tracker: Tracker,
    /// Model that topics name; empty if none did.
    model: Bytes,
    /// Number of the connection that was asked for last.
    pub(super) connection: u64,
    /// Connection that an engine made by itself, if it did.
    pub(super) inbound: Option<u64>,
    /// `true` while the connection to the engine is there.
    is_subscribed: bool,
    /// `true` if there was one.
    was_subscribed: bool,
    pub(super) live: Option<AbortOnDropHandle<()>>,
    pub(super) replay: Option<AbortOnDropHandle<()>>,
    /// Events that were not applied.
    pub(super) skipped: Skipped,
    pub(super) unreadable: u64,
    /// Connections that ended or could not be made, and how many of these since the last message.
    pub(super) failed_connections: u64,
    failures: u32,
    /// Events that were applied.
    pub(super) applied: u64,
    /// Comparisons of what it announced with what was cached.
    pub(super) agreement: Agreement,
    /// Time that the engine gave the last batch, in seconds since 1970.
    pub(super) last_batch: Option<f64>,
    /// Engine's time of the first batch since all blocks were dropped, in seconds since 1970.
    first_batch: Option<f64>,
    /// `true` if a batch was applied since all blocks were dropped.
    has_batches: bool,
    /// Times that all was asked for anew as the model became known: no restarts.
    renamed: u64,
    /// Unix time at which the engine's process started, in seconds.
    started: Option<f64>,
    asleep: bool,
}

impl Source {
    pub(super) fn new(endpoint: Arc<Endpoint>, id: SourceId, tracker: Tracker) -> Self {
        Self {
            slot: Arc::clone(endpoint.slot()),
            endpoint,
            id,
            tracker,
            model: Bytes::new(),
            connection: 0,
            inbound: None,
            is_subscribed: false,
            was_subscribed: false,
            live: None,
            replay: None,
            skipped: Skipped::new(),
            unreadable: 0,
            failed_connections: 0,
            failures: 0,
            applied: 0,
            agreement: Agreement::default(),
            last_batch: None,
            first_batch: None,
            has_batches: false,
            renamed: 0,
            started: None,
            asleep: false,
        }
    }

    /// Counts connections that fail, and warns once where no message came for several. An engine that `may_connect` by
    /// itself need not listen.
    pub(super) fn watch(&mut self, input: &Input, may_connect: bool) {
        match input {
            Input::Message { .. } => self.failures = 0,
            Input::Disconnected { .. } if may_connect && !self.was_subscribed => {}
            Input::Disconnected { connection } if *connection == self.connection => {
                self.failed_connections += 1;
                self.failures = self.failures.saturating_add(1);
                if self.failures == FAILURES {
                    let endpoint = self.endpoint.id();
                    tracing::warn!(%endpoint, "no KV events: connections to the engine's event port fail");
                }
            }
            _ => {}
        }
    }

    /// Begins another connection, in place of those that there were.
    pub(super) fn connects(&mut self, connection: u64) {
        self.live = None;
        self.is_subscribed = false;
        self.inbound = None;
        self.connection = connection;
    }

    /// Follows the connection to the engine. Returns `true` if the input counts: its end does not while the engine has
    /// connected by itself.
    pub(super) fn subscribed(&mut self, input: &Input) -> bool {
        match input {
            Input::Connected { connection, .. } if *connection == self.connection => {
                self.is_subscribed = self.live.is_some();
                self.was_subscribed |= self.is_subscribed;
            }
            Input::Disconnected { connection } if *connection == self.connection => {
                self.is_subscribed = false;
                return self.inbound.is_none();
            }
            _ => {}
        }
        true
    }

    /// A message came over a connection that the engine made by itself. Returns the input that comes before it: one that
    /// does so is not connected to any more. Over both connections messages may come, which their numbers tell.
    pub(super) fn called(&mut self, inbound: u64) -> Option<Input> {
        if self.inbound.replace(inbound).is_some() || self.is_subscribed {
            return None;
        }
        self.live = None;
        Some(Input::Connected { connection: self.connection, same_process: false })
    }

    /// A connection that an engine made by itself is over. Returns the input that follows, if it was this one's.
    pub(super) fn hung_up(&mut self, inbound: u64) -> Option<Input> {
        self.inbound.take_if(|current| *current == inbound)?;
        (!self.is_subscribed).then_some(Input::Disconnected { connection: self.connection })
    }

    /// Inputs that follow from changes of the engine's metrics.
    pub(super) fn observe(&mut self) -> impl Iterator<Item = Input> + use<> {
        let state = &self.endpoint.load().engine_state;
        let (started, asleep) = (state.started(), state.is_asleep());
        // Once for each process, as clocks may differ.
        let is_later = started.is_some_and(|now| self.started.is_none_or(|known| now > known));
        // Its events may have come before its metrics. The times of both are by the engine's clock.
        let is_older = match self.first_batch.zip(started) {
            Some((first, started)) => first < started,
            None => self.started.is_some(),
        };
        let restarted = (is_later && is_older).then_some(Input::Restarted);
        if is_later {
            self.started = started;
        }
        let changed = (std::mem::replace(&mut self.asleep, asleep) != asleep).then_some(if asleep {
            Input::Asleep
        } else {
            Input::Awake
        });
        restarted.into_iter().chain(changed)
    }

    /// A batch with this time is applied.
    pub(super) fn batch(&mut self, time: Option<f64>) {
        self.last_batch = time.or(self.last_batch);
        self.first_batch = self.first_batch.or(time);
        self.has_batches = true;
    }

    /// All blocks are dropped.
    pub(super) fn dropped(&mut self) {
        self.first_batch = None;
        self.has_batches = false;
    }

    /// A topic named this model.
    pub(super) fn serves(&mut self, model: Bytes) {
        if !model.is_empty() {
            self.model = model;
        }
    }

    /// Input that follows where a topic names the model for the first time, and batches were applied as those of another,
    /// `otherwise`: replays of older engines have no topic.
    pub(super) fn renamed(&mut self, model: &Bytes, otherwise: Option<&str>) -> Option<Input> {
        let is_first = self.model.is_empty() && !model.is_empty();
        let is_renamed = is_first && self.has_batches && model != otherwise.unwrap_or_default().as_bytes();
        self.renamed += u64::from(is_renamed);
        is_renamed.then_some(Input::Restarted)
    }

    /// Counts of the tracker.
    pub(super) fn counts(&self) -> Counts {
        let counts = self.tracker.counts();
        Counts { restarts: counts.restarts.saturating_sub(self.renamed), ..counts }
    }

    /// Chain of the model that the engine serves. `otherwise`: model where topics name none.
    pub(super) fn chain(&self, otherwise: Option<&str>) -> Chain {
        match &self.model[..] {
            b"" => Chain::of_model(otherwise.unwrap_or_default().as_bytes()),
            model => Chain::of_model(model),
        }
    }
}
