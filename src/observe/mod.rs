//! What operators see: the HTTP servers for metrics and administration.

pub mod http;
