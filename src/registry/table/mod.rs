//! The list of plugin types: the built-in plugins, and what only this package understands, a file
//! per kind.

mod data;
mod parsers;
mod replicas;

use usher_plugin::PluginType;

pub(super) use data::{ReadsModels, Source};
pub(super) use replicas::Syncer;

/// Every plugin type that llm-d-router registers, and ours.
pub fn plugin_types() -> impl Iterator<Item = &'static PluginType> {
    let own = [parsers::ROWS, data::ROWS, replicas::ROWS];
    usher_plugins::types().chain(own.into_iter().flatten())
}

/// The type of this name.
pub fn find_type(name: &str) -> Option<&'static PluginType> {
    plugin_types().find(|plugin_type| plugin_type.name == name)
}
