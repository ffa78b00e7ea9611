//! The list of plugin types, a file per kind: what each is, what it takes, and how it
//! is built.

mod around;
mod data;
mod filters;
mod flow;
mod handlers;
mod parsers;
mod pickers;
mod producers;
mod replicas;
mod scorers;
mod session;

use super::types::PluginType;

/// All of them.
static ALL: [&[PluginType]; 10] = [
    scorers::ROWS,
    filters::ROWS,
    pickers::ROWS,
    handlers::ROWS,
    producers::ROWS,
    around::ROWS,
    parsers::ROWS,
    data::ROWS,
    flow::ROWS,
    replicas::ROWS,
];

impl PluginType {
    /// Every plugin type that the peer registers, and ours.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        ALL.into_iter().flatten()
    }

    /// The type of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|plugin_type| plugin_type.name == name)
    }
}
