//! From a configuration to what runs.
//!
//! [`PluginType::all`] is the one list of plugin types: what each is, what it
//! takes and how it is built. [`Pipeline::build`] adds the defaults to a
//! configuration, builds its plugins and puts each in its places; [`Resolved`]
//! says what came out of it.

mod data;
mod flow;
mod handler;
mod instances;
mod keys;
mod order;
mod parsers;
mod pipeline;
mod profiles;
mod references;
mod replicas;
mod reserved;
mod resolved;
mod site;
mod stages;
mod table;
mod types;

pub use data::MetricsSource;
pub use pipeline::Pipeline;
pub use resolved::{
    Origin, Resolved, ResolvedBand, ResolvedData, ResolvedFlow, ResolvedPlugin, ResolvedProfile,
    ResolvedScorer, ResolvedSource, ResolvedStages, Use,
};
pub use types::{Kind, Parameter, PluginType, Stability};
