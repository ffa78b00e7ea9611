//! The gRPC side: listeners, TLS, worker threads, health, and the server that
//! holds them together.

pub mod accept;
pub mod arrivals;
mod backlog;
pub mod call;
pub mod conn;
pub mod connection_metrics;
pub mod counted;
pub mod exchange;
pub mod executor;
mod families;
pub mod first_settings;
mod forward;
pub mod frames;
mod gen_ai;
mod grpc;
pub mod health;
pub mod listen;
pub mod metrics;
mod opening;
pub mod parsing;
pub mod preface;
pub mod prompts;
mod replies;
mod response_tracker;
pub mod router;
pub mod series;
pub mod server;
pub mod service;
pub mod small;
pub mod spread;
pub mod stop;
pub mod tls;
pub mod traffic;
pub mod workers;
