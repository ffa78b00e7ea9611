//! One endpoint whose events are followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use usher_core::endpoints::{Endpoint, Slot};
use usher_core::kv_events::{Chain, Input, Skip, SourceId, Tracker};

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
    pub(super) live: Option<AbortOnDropHandle<()>>,
    pub(super) replay: Option<AbortOnDropHandle<()>>,
    /// Events that were not applied, by reason.
    pub(super) skipped: BTreeMap<Skip, u64>,
    pub(super) stores_skipped: u64,
    pub(super) removals_skipped: u64,
    pub(super) unreadable: u64,
    /// Connections that ended or could not be made, and how many of these since the last message.
    pub(super) failed_connections: u64,
    failures: u32,
    /// Events that were applied.
    pub(super) applied: u64,
    /// Time that the engine gave the last batch, in seconds since 1970.
    pub(super) last_batch: Option<f64>,
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
            live: None,
            replay: None,
            skipped: BTreeMap::new(),
            stores_skipped: 0,
            removals_skipped: 0,
            unreadable: 0,
            failed_connections: 0,
            failures: 0,
            applied: 0,
            last_batch: None,
        }
    }

    /// Counts connections that fail, and warns once where no message came for several.
    pub(super) fn watch(&mut self, input: &Input) {
        match input {
            Input::Message { .. } => self.failures = 0,
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

    /// A topic named this model.
    pub(super) fn serves(&mut self, model: Bytes) {
        if !model.is_empty() {
            self.model = model;
        }
    }

    /// Chain of the model that the engine serves. `otherwise`: model where topics name none.
    pub(super) fn chain(&self, otherwise: Option<&str>) -> Chain {
        match &self.model[..] {
            b"" => Chain::of_model(otherwise.unwrap_or_default().as_bytes()),
            model => Chain::of_model(model),
        }
    }
}
