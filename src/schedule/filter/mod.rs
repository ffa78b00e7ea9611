//! Filters, one file per kind.

mod endpoint_attribute;
mod fallback;

pub use endpoint_attribute::{EndpointAttributeFilter, EndpointAttributeFilterParams};
