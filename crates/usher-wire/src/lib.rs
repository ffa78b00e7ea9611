//! Envoy's external processing protocol over gRPC: messages in frames, and what they mean. The only
//! package that knows how they are encoded.
//!
//! A server takes frames apart with an [`Inbox`](inbox::Inbox), reads each message with
//! [`envoy::read`], writes replies with [`envoy::write`](fn@envoy::write) into an
//! [`Outbox`](outbox::Outbox). A [`client`] asks as a gateway does.

pub mod client;
pub mod envoy;
pub mod event;
pub mod headers;
pub mod inbox;
pub mod outbox;
mod protobuf;
pub mod reply;

pub use protobuf::Malformed;
