//! Filters, one file per kind.

pub(crate) mod by_label;
pub(crate) mod endpoint_attribute;
pub(crate) mod label_selector;
pub(crate) mod prefix_cache_affinity;
pub(crate) mod role;
pub(crate) mod slo_headroom_tier;
pub(crate) mod testing;
pub(crate) mod topology_affinity;
pub(crate) mod utilization;

use usher_core::endpoints::{Endpoint, Snapshot};

pub use by_label::{ByLabelFilter, ByLabelParams};
pub use endpoint_attribute::{EndpointAttributeFilter, EndpointAttributeFilterParams};
pub use label_selector::LabelSelectorFilter;
pub use prefix_cache_affinity::{
    AffinityDecisions, AffinityFamilies, PrefixCacheAffinityFilter, PrefixCacheAffinityFilterParams,
    TtftSource,
};
pub use role::RoleFilter;
pub use slo_headroom_tier::{SloHeadroomTierFilter, SloHeadroomTierParams};
pub use testing::HeaderTestingFilter;
pub use topology_affinity::{MinAffinity, TopologyAffinityFilter, TopologyAffinityFilterParams};
pub use utilization::{Condition, Metric, UtilizationFilter, UtilizationFilterParams};

/// Keeps the candidates that fit.
pub(super) fn retain(snapshot: &Snapshot, kept: &mut Vec<u32>, mut fits: impl FnMut(&Endpoint) -> bool) {
    let endpoints = snapshot.endpoints();
    kept.retain(|position| endpoints.get(*position as usize).is_some_and(|endpoint| fits(endpoint)));
}

/// Keeps the candidates that fit, or all of them when none does. Each is asked once, as
/// what is under way at it changes all the time.
pub(super) fn retain_or_all(
    snapshot: &Snapshot,
    kept: &mut Vec<u32>,
    mut fits: impl FnMut(&Endpoint) -> bool,
) {
    let endpoints = snapshot.endpoints();
    let mut fitting = 0;
    for next in 0..kept.len() {
        let position = kept[next];
        if endpoints.get(position as usize).is_some_and(|endpoint| fits(endpoint)) {
            // Only what doesn't fit is overwritten, so nothing is lost when none does.
            kept[fitting] = position;
            fitting += 1;
        }
    }
    if fitting > 0 {
        kept.truncate(fitting);
    }
}
