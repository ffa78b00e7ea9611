//! Tests of the programs that try Usher out from outside: simulated servers, `usher load` and
//! `usher replay`; and of the parts of the benchmarks that need no processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[path = "../../benches/common/processes.rs"]
#[allow(dead_code, reason = "what starts processes is not called here")]
mod processes;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod support;

mod bench_live;
mod bench_wire;
mod instructions;
mod load;
mod replay;
mod sim;
