//! The server around the ext_proc service, seen from outside over real sockets:
//! flags, connections, TLS, health, HTTP and the way it stops.

// Clippy knows test functions as tests, but not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod binary;
mod connections;
mod flags;
mod health;
mod http;
mod stop;
mod support;
mod tls;
