//! The pages of docs/reference: written from the code by `make docs-accept`, and equal to what it says.

mod findings;
mod page;
mod plugins;
