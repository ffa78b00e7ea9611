//! The configuration that runs, and the parts that another one is built from.

use std::sync::Arc;

use super::status::hash;
use crate::registry::{Pipeline, PluginTypes, Resolved};
use crate::schedule::flow_control::FlowControlRules;
use crate::schedule::{SchedulerMetrics, State};
use crate::settings::{ExchangeSettings, ServeSettings, StateStoreSettings};

/// A configuration that runs.
#[derive(Debug)]
pub(in crate::server) struct Active {
    pub(super) resolved: Resolved,
    pub(super) rules: Option<FlowControlRules>,
    /// The store with its password, which the parameters of the plugin do not show.
    pub(super) state_store: Option<StateStoreSettings>,
    pub(super) exchange: ExchangeSettings,
    pub(super) hash: String,
}

impl Active {
    /// The configuration of this text, which has been built.
    pub(in crate::server) fn new(pipeline: &Pipeline, text: &str) -> Self {
        let rules = pipeline.flow_control.as_ref().map(|flow_control| flow_control.rules.clone());
        Self {
            resolved: pipeline.resolved.clone(),
            rules,
            state_store: pipeline.sharing.store.clone(),
            exchange: pipeline.sharing.exchange,
            hash: hash(text),
        }
    }

    /// SHA-256 of its text, in hexadecimal digits.
    pub(in crate::server) fn hash(&self) -> &str {
        &self.hash
    }
}

/// Parts that building a configuration takes.
pub(in crate::server) struct Parts {
    pub(in crate::server) types: PluginTypes,
    pub(in crate::server) settings: ServeSettings,
    pub(in crate::server) metrics: SchedulerMetrics,
    pub(in crate::server) state: Arc<State>,
}
