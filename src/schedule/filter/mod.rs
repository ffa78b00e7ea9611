//! Filters, one file per kind.

mod endpoint_attribute;
mod fallback;
mod topology_affinity;

pub use endpoint_attribute::{EndpointAttributeFilter, EndpointAttributeFilterParams};
pub use topology_affinity::{MinAffinity, TopologyAffinityFilter, TopologyAffinityFilterParams};
