//! What operators see: the HTTP servers for metrics and administration, and what
//! they show.

pub mod access;
pub mod counters;
pub mod endpoints;
pub mod freshness;
pub mod http;
pub mod latency;
pub mod page;
pub mod pool;
pub mod tls;
