//! Usher, an endpoint picker for LLM inference.
//!
//! A gateway asks over Envoy's ext_proc protocol, for every request, which model
//! server should answer it.

pub mod actuator;
pub mod capacity;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod discovery;
pub mod doctor;
pub mod endpoints;
pub mod extproc;
pub mod flow;
pub mod leader;
pub mod load;
pub mod memory;
pub mod metrics;
pub mod observe;
pub mod prefix;
pub mod replay;
pub mod request;
mod run;
pub mod scaling;
pub mod schedule;
pub mod scrape;
pub mod sim;
pub mod tls;

pub use run::{RunError, Setup, run};

/// Compiles and runs the program of the page.
#[cfg(doctest)]
#[doc = include_str!("../docs/add-a-plugin.md")]
struct AddAPlugin;
