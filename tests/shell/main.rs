//! The program from outside: the server around the ext_proc service over real sockets, what the other commands
//! say, and the scripts of CI.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[allow(dead_code, reason = "the tests of Envoy use more of it")]
#[path = "../support/mod.rs"]
mod support;

mod binary;
mod check;
mod check_admin;
mod check_errors;
mod check_tokenizer;
mod check_topology;
mod check_words;
mod ci;
#[allow(dead_code, reason = "the tests of the protocol use more of it")]
#[path = "../support/collector.rs"]
mod collector;
mod compare;
mod connections;
mod decisions;
mod doctor;
mod flags;
mod health;
mod help;
mod http;
mod log_level;
mod metrics_tls;
mod more_errors;
mod observability;
mod page;
mod publishing;
mod run;
mod server;
mod stop;
mod store;
mod tls;
#[allow(dead_code, reason = "the tests of the protocol use more of it")]
#[path = "../wire/support.rs"]
mod wire;
