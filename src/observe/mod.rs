//! Views for operators: the HTTP servers for metrics and administration, and the data
//! that they show.

pub mod access;
mod browsers;
pub mod counters;
pub mod decisions;
pub mod endpoints;
pub mod feed;
pub mod freshness;
pub mod http;
pub mod latency;
pub mod log_level;
pub mod page;
pub mod pool;
pub mod query;
mod routes;
pub mod tls;
pub mod ui;
