//! Usher, an endpoint picker for LLM inference.
//!
//! A gateway asks over Envoy's ext_proc protocol, for every request, which model
//! server should serve it.

pub mod actuator;
pub mod cli;
pub mod cluster;
pub mod discovery;
pub mod doctor;
pub mod extproc;
pub mod flow;
pub mod kv_subscriber;
pub mod leader;
pub mod observe;
pub mod otel;
pub mod recorder;
pub mod records;
pub mod registry;
#[cfg(feature = "lab")]
pub mod replay;
pub mod replicas;
pub mod scaling;
pub mod schedule;
pub mod scrape;
mod server;
pub mod settings;
pub mod tls;
pub mod version;

pub use server::{RunError, Setup, run};
pub use usher_capacity as capacity;
pub use usher_core::{config, endpoints, memory, metrics, prefix, request};
#[cfg(feature = "lab")]
pub use usher_lab::{load, sim};
