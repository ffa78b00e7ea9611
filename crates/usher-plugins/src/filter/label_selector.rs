//! `label-selector-filter`, and `by-label-selector`, its deprecated name: the endpoints
//! whose labels a selector matches.

use rand::Rng;
use usher_core::endpoints::{Endpoint, Snapshot};
use usher_plugin::{Context, Filter, Fitting, LabelSelector};

/// Keeps the endpoints that a selector matches.
#[derive(Debug)]
pub struct LabelSelectorFilter {
    selector: LabelSelector,
    fitting: Fitting,
}

impl LabelSelectorFilter {
    /// A filter by this selector; an empty one keeps every endpoint.
    pub fn new(selector: LabelSelector) -> Self {
        Self { selector, fitting: Fitting::new() }
    }
}

impl Filter for LabelSelectorFilter {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let matches = |endpoint: &Endpoint| self.selector.matches(|key| endpoint.label(key));
        self.fitting.retain(snapshot, kept, matches);
    }
}
