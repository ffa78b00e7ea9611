//! `label-selector-filter`, and `by-label-selector`, its deprecated name: the endpoints
//! whose labels a selector matches.

use rand::Rng;

use super::retain;
use crate::endpoints::Snapshot;
use crate::schedule::{Context, Filter, LabelSelector};

/// Keeps the endpoints that a selector matches.
#[derive(Clone, Debug)]
pub struct LabelSelectorFilter {
    selector: LabelSelector,
}

impl LabelSelectorFilter {
    /// A filter by this selector; an empty one keeps every endpoint.
    pub fn new(selector: LabelSelector) -> Self {
        Self { selector }
    }
}

impl Filter for LabelSelectorFilter {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        retain(snapshot, kept, |endpoint| self.selector.matches(|key| endpoint.label(key)));
    }
}
