//! Types that all of Usher uses, at the bottom of its imports: the configuration file, requests and their
//! bodies, endpoints and their load, the index of prefixes, what engines publish of their caches, the memory budget, and
//! metrics.

pub mod config;
pub mod endpoints;
pub mod kv_events;
pub mod memory;
pub mod metrics;
pub mod prefix;
pub mod random;
pub mod recording;
pub mod request;
