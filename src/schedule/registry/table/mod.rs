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
pub(super) static ALL: [&[PluginType]; 10] = [
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
