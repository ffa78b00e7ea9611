//! Subscribes to the KV events of engines, and writes what they hold into the index that requests read.
//!
//! One thread owns a [`Tracker`](usher_core::kv_events::Tracker) for each endpoint and what all of them hold. Sockets
//! are tasks on its runtime: a subscriber per endpoint, a central socket that engines may connect to instead, and a
//! replay where messages were missed. They hand over messages through a queue with a bound in number and bytes, and
//! count their memory; where there is no room, they read no more, and engines drop what they can't send, which the sequence numbers show.

mod apply;
mod central;
mod connection;
mod driver;
mod event;
mod metrics;
mod replay;
mod room;
mod share;
mod skipped;
mod source;
mod subscriber;
mod thread;
mod writes;

pub use metrics::{EndpointState, Followed, KvEventsMetrics};
pub use thread::KvEventsThread;
