//! The pages of docs/reference: written from the code by `make docs-accept`, or compared with it.

mod findings;
pub(crate) mod flags;
mod headers;
mod literals;
mod page;
mod plugins;
mod resources;
