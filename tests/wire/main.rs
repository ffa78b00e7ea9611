//! The wire protocol from outside: real gRPC over loopback, with Envoy's own
//! definitions as the encoder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod apis;
mod capacity;
#[path = "../support/collector.rs"]
mod collector;
mod disagg;
mod explain;
mod flow;
#[path = "../docs/guide.rs"]
mod guide;
mod kv_events;
mod limits;
mod locator;
mod memory;
mod migrate;
mod outliers;
mod plugins;
#[path = "../support/protos.rs"]
mod protos;
mod queries;
mod recording;
mod reference;
mod reload;
mod replicas;
mod requests;
mod responses;
#[path = "../schedule/pages/server.rs"]
#[allow(dead_code, reason = "the tests of pages need more of it")]
mod server;
mod support;
mod traces;
#[allow(dead_code, reason = "the tests of allocations use more of it")]
#[path = "../support/vocabulary.rs"]
mod vocabulary;
