//! From a configuration to what runs.
//!
//! [`PLUGIN_TYPES`] is the one list of plugin types: what each is, what it
//! takes and how it is built. [`Pipeline::build`] adds the defaults to a
//! configuration, builds its plugins and puts each in its places; [`Resolved`]
//! says what came out of it.

mod data;
mod flow;
mod handler;
mod instances;
mod parsers;
mod pipeline;
mod plugins;
mod profiles;
mod resolved;
mod types;

pub use pipeline::{MetricsSource, Pipeline};
pub use resolved::{Origin, Resolved, ResolvedPlugin, ResolvedProfile, ResolvedScorer, ResolvedSource, Use};
pub use types::{Kind, PLUGIN_TYPES, Parameter, PluginType, Stability};
