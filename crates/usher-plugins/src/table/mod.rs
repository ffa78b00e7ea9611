//! The list of plugin types, a file per kind: what each is, what it takes, and how it
//! is built.

mod around;
mod filters;
mod flow;
mod handlers;
mod pickers;
mod producers;
mod scorers;
mod session;

use usher_plugin::PluginType;

/// All of them.
static ALL: [&[PluginType]; 7] =
    [scorers::ROWS, filters::ROWS, pickers::ROWS, handlers::ROWS, producers::ROWS, around::ROWS, flow::ROWS];

/// The types of this package.
pub fn types() -> impl Iterator<Item = &'static PluginType> {
    ALL.into_iter().flatten()
}
