//! Buffers that one decision leaves for the next.

use std::sync::Arc;

use usher_plugin::{DecisionContext, Picks};

use crate::records::Trace;

/// Buffers that decisions reuse. One per thread; what it holds means nothing
/// between decisions, but for the candidates of the last one: they stay until the next.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) kept: Vec<u32>,
    pub(super) column: Vec<f32>,
    pub(super) totals: Vec<f64>,
    pub(super) picks: Picks,
    pub(super) shared: Option<Arc<DecisionContext>>,
    pub(super) trace: Trace,
}

impl Scratch {
    /// Numbers of the last decision, where they are recorded.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Mutable numbers of the last decision, to switch recording on or off.
    pub fn trace_mut(&mut self) -> &mut Trace {
        &mut self.trace
    }
}
