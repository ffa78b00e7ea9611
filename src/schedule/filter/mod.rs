//! Filters, one file per kind.

mod by_label;
mod label_selector;
mod role;

pub use by_label::{ByLabelFilter, ByLabelParams};
pub use label_selector::LabelSelectorFilter;
pub use role::RoleFilter;

use crate::endpoints::{Endpoint, Snapshot};

/// Keeps the candidates that fit.
pub(super) fn retain(snapshot: &Snapshot, kept: &mut Vec<u32>, mut fits: impl FnMut(&Endpoint) -> bool) {
    let endpoints = snapshot.endpoints();
    kept.retain(|position| endpoints.get(*position as usize).is_some_and(|endpoint| fits(endpoint)));
}
