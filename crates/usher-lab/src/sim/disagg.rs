//! Servers that share the work of a request: who does what, where they are, whom they
//! may call.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::error::ConfigError;
use super::link::{KV_BYTES_PER_TOKEN, Links, Place};

/// The most bytes per token: no model is near it, and sums stay within their type.
const MOST_BYTES_PER_TOKEN: u64 = 1 << 30;

/// The longest time that a setting may have.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Role of a server, as it reports it to discovery. A server does whatever it is asked
/// to, in any role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Computes prompts.
    Prefill,
    /// Generates tokens.
    Decode,
    /// Both.
    Both,
    /// Encodes images.
    Encode,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Prefill, Self::Decode, Self::Both, Self::Encode];

    /// Name, which is also the value of the label by which pickers know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
            Self::Encode => "encode",
        }
    }
}

impl FromStr for Role {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::ALL.into_iter().find(|role| role.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            ConfigError(format!("there is no role '{name}'; known are {known}"))
        })
    }
}

/// A server that may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// At any port of this address.
    Host(IpAddr),
    /// At this port only.
    Port(SocketAddr),
}

impl FromStr for Peer {
    type Err = ConfigError;

    /// Reads `10.0.0.1`, `10.0.0.1:8000`, `fd00::1` or `[fd00::1]:8000`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let host = text.parse().map(Self::Host);
        host.or_else(|_| text.parse().map(Self::Port)).map_err(|_| {
            ConfigError(format!("{text:?} is no address; write for example 10.0.0.1 or 10.0.0.1:8000"))
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => host.fmt(f),
            Self::Port(address) => address.fmt(f),
        }
    }
}

/// Division of the work of requests within a group of servers. Lists are gone through again
/// and again: server `i` has item `i` modulo their length.
#[derive(Debug, Clone, PartialEq)]
pub struct DisaggConfig {
    /// Roles of the servers. Default empty: they report none.
    pub roles: Vec<Role>,
    /// Names of the hosts, racks, zones and regions that the servers are in. Default
    /// empty: not known.
    pub places: [Vec<String>; 4],
    /// Speed of prompts between servers. Default: see [`Links`].
    pub links: Links,
    /// Bytes of keys and values per token, 1 GiB at most. Default
    /// [`KV_BYTES_PER_TOKEN`].
    pub kv_bytes_per_token: u64,
    /// Time to encode an image, a day at most; one image at a time. Default zero: images
    /// cost nothing.
    pub image_time: Duration,
    /// Servers that a request's headers may make a server call. Default empty: any port of
    /// the loopback addresses, and no other.
    pub peers: Vec<Peer>,
    /// Time for another server to do a prompt or images before they are done here, more
    /// than zero and a day at most. On the clock, not in simulated time: what it costs to
    /// ask does not go faster. Default 5 minutes.
    pub peer_timeout: Duration,
}

impl Default for DisaggConfig {
    fn default() -> Self {
        Self {
            roles: Vec::new(),
            places: Default::default(),
            links: Links::default(),
            kv_bytes_per_token: KV_BYTES_PER_TOKEN,
            image_time: Duration::ZERO,
            peers: Vec::new(),
            peer_timeout: Duration::from_secs(300),
        }
    }
}

impl DisaggConfig {
    /// Role of server number `index`, if it reports one.
    pub fn role(&self, index: usize) -> Option<Role> {
        nth(&self.roles, index).copied()
    }

    /// Location of server number `index`.
    pub fn place(&self, index: usize) -> Place {
        Place::new(self.places.each_ref().map(|names| nth(names, index).map_or("", String::as_str)))
    }

    /// Returns `true` if the server at this address may be called.
    pub fn may_call(&self, address: SocketAddr) -> bool {
        // An IPv4 address in IPv6's clothes is the same server.
        let ip = address.ip().to_canonical();
        let same = |peer: &Peer| match peer {
            Peer::Host(host) => host.to_canonical() == ip,
            Peer::Port(peer) => peer.ip().to_canonical() == ip && peer.port() == address.port(),
        };
        if self.peers.is_empty() { ip.is_loopback() } else { self.peers.iter().any(same) }
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// `ConfigError` that names the setting and its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |reason: &str| Err(ConfigError(reason.to_owned()));
        if self.kv_bytes_per_token > MOST_BYTES_PER_TOKEN {
            return refuse("KV bytes per token must be 1073741824 at most");
        }
        if self.image_time > LONGEST {
            return refuse("an image must take a day at most");
        }
        if self.peer_timeout.is_zero() || self.peer_timeout > LONGEST {
            return refuse("the timeout for peers must be more than zero and a day at most");
        }
        // They are values of labels, and travel in a header with commas between them.
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let bad = self.places.iter().flatten().find(|name| name.len() > 63 || !name.bytes().all(allowed));
        match bad {
            Some(name) => Err(ConfigError(format!(
                "{name:?} can't be the name of a place; it must have 63 letters, digits, '-', '_' or '.' at most"
            ))),
            None => Ok(()),
        }
    }
}

fn nth<T>(items: &[T], index: usize) -> Option<&T> {
    items.get(index.checked_rem(items.len())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_call(peers: &str, address: &str) -> bool {
        let peers = peers.split_terminator(',').map(|peer| peer.parse().unwrap()).collect();
        DisaggConfig { peers, ..DisaggConfig::default() }.may_call(address.parse().unwrap())
    }

    #[test]
    fn only_loopback_is_called_unless_peers_are_named() {
        let table = [
            ("", "127.0.0.1:8000", true),
            ("", "127.9.9.9:1", true),
            ("", "[::1]:8000", true),
            ("", "[::ffff:127.0.0.1]:8000", true),
            ("", "10.0.0.1:8000", false),
            ("", "169.254.169.254:80", false),
            ("", "0.0.0.0:8000", false),
            ("", "[::]:8000", false),
            ("", "[::ffff:10.0.0.1]:8000", false),
            ("10.0.0.1", "10.0.0.1:9", true),
            ("10.0.0.1", "[::ffff:10.0.0.1]:9", true),
            ("10.0.0.1", "10.0.0.2:9", false),
            ("10.0.0.1", "127.0.0.1:9", false),
            ("10.0.0.1:8000", "10.0.0.1:8000", true),
            ("10.0.0.1:8000", "10.0.0.1:8001", false),
            ("10.0.0.1:8000,fd00::1,[fd00::2]:7", "[fd00::1]:1", true),
            ("10.0.0.1:8000,fd00::1,[fd00::2]:7", "[fd00::2]:7", true),
            ("10.0.0.1:8000,fd00::1,[fd00::2]:7", "[fd00::2]:8", false),
        ];
        for (peers, address, allowed) in table {
            assert_eq!(may_call(peers, address), allowed, "{peers:?} {address}");
        }
        for wrong in ["", "localhost", "10.0.0.1:", "10.0.0.0/8"] {
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_are_cycled_through() {
        let names = |list: &str| list.split_terminator(',').map(str::to_owned).collect();
        let config = DisaggConfig {
            roles: vec![Role::Prefill, Role::Decode],
            places: [names("a,b,c"), names("r,r,s"), names("z"), names("")],
            ..DisaggConfig::default()
        };
        config.validate().unwrap();
        assert_eq!(config.place(4), Place::new(["b", "r", "z", ""]));
        assert_eq!((config.role(4), config.role(5)), (Some(Role::Prefill), Some(Role::Decode)));
        assert_eq!(DisaggConfig::default().role(3), None);
        assert_eq!(DisaggConfig::default().place(3), Place::default());
    }

    #[test]
    fn bad_settings_are_named() {
        let default = DisaggConfig::default();
        default.validate().unwrap();
        let zone = |name: &str| [vec![], vec![], vec![name.to_owned()], vec![]];
        let long = "z".repeat(64);
        let table = [
            (DisaggConfig { kv_bytes_per_token: u64::MAX, ..default.clone() }, "KV bytes"),
            (DisaggConfig { image_time: Duration::MAX, ..default.clone() }, "image"),
            (DisaggConfig { peer_timeout: Duration::ZERO, ..default.clone() }, "timeout"),
            (DisaggConfig { places: zone("a,b"), ..default.clone() }, "\"a,b\""),
            (DisaggConfig { places: zone(&long), ..default }, "name of a place"),
        ];
        for (bad, name) in table {
            let error = bad.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
