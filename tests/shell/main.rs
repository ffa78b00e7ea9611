//! The server around the ext_proc service, seen from outside over real sockets:
//! flags, connections, TLS, health, HTTP and the way it stops.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

mod binary;
mod connections;
mod flags;
mod health;
mod http;
mod metrics_tls;
mod run;
mod stop;
mod support;
mod tls;
