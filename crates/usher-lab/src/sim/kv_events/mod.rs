//! KV events of simulated servers: which blocks come and go, as vLLM publishes them over ZeroMQ.
//!
//! A step's changes of the cache become a batch with a number ([`Journal`]), of blocks whose tokens are known from the
//! requests under way. It goes to all subscribers, and stays for those that ask for a replay.

mod contents;
mod encode;
mod journal;
mod peer;
mod publisher;
mod sockets;

use std::net::SocketAddr;
use std::str::FromStr;

pub(crate) use contents::tokens;
pub(crate) use publisher::{Expected, Publisher};
pub(crate) use sockets::Sockets;

/// Form of batches and events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// Arrays, as vLLM has had them from the start.
    #[default]
    Array,
    /// Maps, as newer engines have them.
    Map,
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "array" => Ok(Self::Array),
            "map" => Ok(Self::Map),
            _ => Err("give array or map".to_owned()),
        }
    }
}

/// Sockets of KV events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Each server listens at its own address.
    Listen {
        /// Port of the first server for subscribers.
        port: u16,
        /// Port of the first server for replays.
        replay_port: Option<u16>,
        /// Difference of a server's ports from those of the server before it.
        step: u16,
    },
    /// Each server connects to a subscriber at this `host:port`.
    Connect(String),
}

/// KV events of simulated servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Form of batches and events.
    pub form: Form,
    /// Sockets.
    pub target: Target,
}

/// Error of a socket for KV events that can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A port above 65535.
    #[error("KV events of so many servers from port {port} on need ports above 65535; choose a lower one")]
    TooHigh {
        /// Port of the first server.
        port: u16,
    },
    /// The system refuses the address.
    #[error("can't listen on {address} for KV events: {reason}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        reason: std::io::Error,
    },
}
