//! From a configuration to what runs.
//!
//! [`plugin_types`] is the one list of plugin types: what each is, what it
//! takes and how it is built. [`Pipeline::build`] adds the defaults to a
//! configuration, builds its plugins and puts each in its places; [`Resolved`]
//! says what came out of it.

mod data;
mod flow;
mod handler;
mod instances;
mod order;
mod parsers;
mod pipeline;
mod profiles;
mod replicas;
mod resolved;
mod stages;
mod table;

pub use data::MetricsSource;
pub use pipeline::Pipeline;
pub use resolved::{
    Origin, Resolved, ResolvedBand, ResolvedData, ResolvedFlow, ResolvedPlugin, ResolvedProfile,
    ResolvedScorer, ResolvedSource, ResolvedStages, Use,
};
pub use table::{find_type, plugin_types};
pub use usher_plugin::{Kind, Parameter, PluginType, Stability};
