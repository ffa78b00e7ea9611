//! From a configuration to what runs.
//!
//! [`PluginTypes`] are those that a configuration can name: what each is, what it
//! takes and how it is built. [`Pipeline::build`] adds the defaults to a
//! configuration, builds its plugins and puts each in its places; [`Resolved`]
//! says what came out of it.

mod changes;
mod data;
mod flow;
mod handler;
mod instances;
mod order;
mod parsers;
mod pipeline;
mod profiles;
pub mod replayed;
mod replicas;
mod resolved;
mod stages;
mod table;
mod types;

pub use changes::changes;
pub use data::MetricsSource;
pub use pipeline::Pipeline;
pub use replicas::Sharing;
pub use resolved::{
    Origin, Resolved, ResolvedBand, ResolvedData, ResolvedFlow, ResolvedPlugin, ResolvedProfile,
    ResolvedScorer, ResolvedSource, ResolvedStages, Use,
};
pub use table::{find_type, plugin_types};
pub use types::{NameTaken, PluginTypes};
pub use usher_plugin::{Kind, Parameter, PluginType, Stability};
