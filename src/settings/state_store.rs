//! Settings of the store through which replicas share state.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Secret;

/// A Redis or Valkey server, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateStoreSettings {
    /// Address of the server.
    pub address: StoreAddress,
    /// Number of the database.
    pub db: u32,
    /// User; `None`: the default one.
    pub user: Option<String>,
    /// Password; `None`: the server asks for none.
    pub password: Option<StorePassword>,
    /// PEM file of who may sign its certificate; `None`: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// PEM files of our own certificate and its key; `None`: the server asks for none.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// Silence after which the state of a replica no longer counts.
    pub state_ttl: Duration,
}

impl StateStoreSettings {
    /// Silence after which the state of a replica no longer counts, unless it is configured.
    pub const STATE_TTL: Duration = Duration::from_secs(2);

    /// A server without password, database 0.
    pub fn at(address: StoreAddress) -> Self {
        Self {
            address,
            db: 0,
            user: None,
            password: None,
            ca_file: None,
            client_cert: None,
            state_ttl: Self::STATE_TTL,
        }
    }
}

/// Address of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// Over TCP.
    Tcp {
        /// `true` if it is over TLS.
        tls: bool,
        /// Name or IP address; IPv6 without brackets.
        host: String,
        /// Port of the store.
        port: u16,
    },
    /// A socket of this machine.
    Unix(PathBuf),
}

impl StoreAddress {
    /// Port of a store whose address names none.
    const PORT: u16 = 6379;

    /// Reads `host`, `host:port`, or the same with an IPv6 address in brackets.
    ///
    /// # Errors
    /// The mistake, without the text, which may contain a password.
    pub fn tcp(tls: bool, text: &str) -> Result<Self, &'static str> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("no ] after [")?,
            None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => Self::PORT,
            None => return Err("no port after the host"),
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("no port after the colon")?,
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/@,".contains(c)) {
            return Err("no host");
        }
        Ok(Self::Tcp { tls, host: host.to_owned(), port })
    }
}

/// Formats the address as a URL without credentials.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { tls, host, port } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                match host.contains(':') {
                    true => write!(f, "{scheme}://[{host}]:{port}"),
                    false => write!(f, "{scheme}://{host}:{port}"),
                }
            }
        }
    }
}

/// Place of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorePassword {
    /// The password itself.
    Text(Secret),
    /// An environment variable.
    Variable(String),
    /// A file, read again for every connection.
    File(PathBuf),
}

/// Exchange of state between replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExchangeSettings {
    /// Shortest time between two messages; `None` and shorter ones: 20 ms.
    pub interval: Option<Duration>,
    /// Time in which the store has to confirm a message; `None`: 1 s.
    pub timeout: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_credentials() {
        let table = [
            ("valkey", Ok("redis://valkey:6379")),
            ("valkey:7000", Ok("redis://valkey:7000")),
            ("[fd00::1]:7000", Ok("redis://[fd00::1]:7000")),
            ("[fd00::1]", Ok("redis://[fd00::1]:6379")),
            ("", Err("no host")),
            (":6379", Err("no host")),
            ("a:b@c", Err("no port after the colon")),
            ("a:0", Err("no port after the colon")),
            ("a:1,b:2", Err("no port after the colon")),
            ("a,b", Err("no host")),
            ("[fd00::1", Err("no ] after [")),
            ("[fd00::1]1", Err("no port after the host")),
        ];
        for (text, expected) in table {
            let read = StoreAddress::tcp(false, text);
            assert_eq!(read.map(|address| address.to_string()), expected.map(str::to_owned), "{text}");
        }
        assert_eq!(StoreAddress::Unix("/run/valkey.sock".into()).to_string(), "unix:///run/valkey.sock");
    }
}
