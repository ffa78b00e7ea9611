//! Flags of servers that share the work of requests.

use std::time::Duration;

use clap::Args;

use crate::sim::{DisaggConfig, KV_BYTES_PER_TOKEN, Links, Peer, Role};
use usher_core::config::units::parse_duration;

/// Roles and locations of the servers. Lists are assigned to servers round robin.
#[derive(Debug, Clone, Args)]
pub struct DisaggArgs {
    /// Roles of the servers, assigned round robin: prefill, decode, both or encode. A role is a
    /// server's label in the endpoints file; servers do whatever they are asked to.
    #[arg(long, value_delimiter = ',', value_name = "ROLES")]
    pub roles: Vec<Role>,
    /// Hosts of the servers, assigned round robin.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub hosts: Vec<String>,
    /// Racks of the servers, assigned round robin.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub racks: Vec<String>,
    /// Zones of the servers, assigned round robin.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub zones: Vec<String>,
    /// Regions of the servers, assigned round robin.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub regions: Vec<String>,
    /// Bytes per second between servers by what they share, such as host=200G,rack=50G,
    /// zone=12.5G,region=3.125G,none=1.25G, which are the defaults. 0: KV cache transfers
    /// cost nothing.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "LINKS")]
    pub links: Links,
    /// KV cache bytes per prompt token that is transferred.
    #[arg(long, default_value_t = KV_BYTES_PER_TOKEN, value_name = "BYTES")]
    pub kv_bytes_per_token: u64,
    /// Time to encode an image, such as 50ms. 0: images cost nothing.
    #[arg(long, default_value = "0", value_parser = parse_duration, value_name = "TIME")]
    pub image_time: Duration,
    /// Servers that the headers x-prefiller-host-port and x-encoder-hosts-ports may make
    /// a server call: addresses with a port or without one, separated by commas. Without
    /// any: all ports of loopback addresses, and nobody else.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub peers: Vec<Peer>,
    /// Timeout of another server's part of a request, in real time; after it the server works alone.
    #[arg(long, default_value = "5m", value_parser = parse_duration, value_name = "TIME")]
    pub peer_timeout: Duration,
}

impl DisaggArgs {
    /// The configuration of the servers.
    pub fn config(&self) -> DisaggConfig {
        DisaggConfig {
            roles: self.roles.clone(),
            places: [&self.hosts, &self.racks, &self.zones, &self.regions].map(Clone::clone),
            links: self.links.clone(),
            kv_bytes_per_token: self.kv_bytes_per_token,
            image_time: self.image_time,
            peers: self.peers.clone(),
            peer_timeout: self.peer_timeout,
        }
    }
}
