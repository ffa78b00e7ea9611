//! The links between servers: how long the keys and values of a prompt take from the
//! server that computed them to the one that decodes.
//!
//! A link is as fast as the narrowest place that both servers share says. Transfers do
//! not slow each other down, unless the receiving engine is configured to share its link
//! ([`EngineConfig::shared_link`](super::EngineConfig::shared_link)), and have no latency
//! besides their length.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::error::ConfigError;
use usher_core::config::units::parse_quantity;

/// Bytes of keys and values per token of a model whose pool says nothing else: 256 KiB,
/// which is 64 layers of 8 key and value heads of 128 numbers of 2 bytes.
pub const KV_BYTES_PER_TOKEN: u64 = 262_144;

/// The longest transfer, so that times fit their type.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The narrowest place that two servers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// Both on one host.
    Host,
    /// Both in one rack.
    Rack,
    /// Both in one zone.
    Zone,
    /// Both in one region.
    Region,
    /// None, or it isn't known.
    Apart,
}

impl Layer {
    /// All of them, from the narrowest to the widest. `layer as usize` is its place here.
    pub const ALL: [Self; 5] = [Self::Host, Self::Rack, Self::Zone, Self::Region, Self::Apart];

    /// Name in settings: `host`, `rack`, `zone`, `region`, `none`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Rack => "rack",
            Self::Zone => "zone",
            Self::Region => "region",
            Self::Apart => "none",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Location of a server: names of its host, rack, zone and region. An empty name is a place
/// that isn't known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Place([String; 4]);

impl Place {
    /// The place with these names, from the host to the region.
    pub fn new(names: [&str; 4]) -> Self {
        Self(names.map(str::to_owned))
    }

    /// The names, from the host to the region.
    pub fn names(&self) -> [&str; 4] {
        self.0.each_ref().map(String::as_str)
    }

    /// The narrowest place that both share. Names are compared layer by layer, as the
    /// picker compares the labels of pods: racks of one name are one rack, wherever.
    pub fn shared(&self, other: &Self) -> Layer {
        let shared = self.0.iter().zip(&other.0).position(|(one, two)| one == two && !one.is_empty());
        shared.and_then(|layer| Layer::ALL.get(layer).copied()).unwrap_or(Layer::Apart)
    }
}

/// Bytes per second between two servers, for each layer that they may share. 0: moving
/// costs nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links([u64; 5]);

impl Default for Links {
    /// One GPU's share: NVLink on a host (200 GB/s), 400 Gbit/s in a rack, 100 between
    /// racks, 25 between zones, 10 beyond.
    fn default() -> Self {
        Self([200_000_000_000, 50_000_000_000, 12_500_000_000, 3_125_000_000, 1_250_000_000])
    }
}

impl Links {
    /// Links with these speeds in bytes per second, in the order of [`Layer::ALL`].
    pub fn new(bytes_per_second: [u64; 5]) -> Self {
        Self(bytes_per_second)
    }

    /// Bytes per second between servers that share this layer. 0: moving costs nothing.
    pub fn bytes_per_second(&self, layer: Layer) -> u64 {
        self.0.get(layer as usize).copied().unwrap_or(0)
    }

    /// Transfer of tokens of `bytes_per_token` bytes from one place to the other.
    pub fn between(&self, from: &Place, to: &Place, bytes_per_token: u64) -> Transfer {
        let layer = from.shared(to);
        Transfer { layer, bytes_per_token, bytes_per_second: self.bytes_per_second(layer) }
    }
}

impl FromStr for Links {
    type Err = ConfigError;

    /// Reads `host=200G,rack=50G`, bytes per second; a layer that isn't there has its
    /// default.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut links = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, speed) = part.split_once('=').unwrap_or((part, ""));
            let layer = Layer::ALL.into_iter().find(|layer| layer.name() == name.trim());
            let slot = layer.and_then(|layer| links.0.get_mut(layer as usize)).ok_or_else(|| {
                ConfigError(format!(
                    "{part:?} is no link; write for example rack=50G, for host, rack, zone, region or none"
                ))
            })?;
            *slot =
                parse_quantity(speed.trim()).map_err(|error| ConfigError(format!("{part:?}: {error}")))?;
        }
        Ok(links)
    }
}

/// Transfer of the tokens of one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Narrowest layer that the two servers share.
    pub layer: Layer,
    /// Bytes of keys and values per token.
    pub bytes_per_token: u64,
    /// Speed of the link. 0: moving costs nothing.
    pub bytes_per_second: u64,
}

impl Transfer {
    /// Bytes of so many tokens.
    pub fn bytes(&self, tokens: u32) -> u64 {
        self.bytes_per_token.saturating_mul(tokens.into())
    }

    /// Duration of a transfer of so many tokens, a day at most.
    pub fn time(&self, tokens: u32) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let seconds = self.bytes(tokens) as f64 / self.bytes_per_second as f64;
        Duration::from_secs_f64(seconds.min(LONGEST.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowest_shared_layer_counts() {
        let here = ["h1", "r1", "z1", "g1"];
        let table = [
            (here, here, Layer::Host),
            (here, ["h2", "r1", "z1", "g1"], Layer::Rack),
            (here, ["h2", "r2", "z1", "g1"], Layer::Zone),
            (here, ["h2", "r2", "z2", "g1"], Layer::Region),
            (here, ["h2", "r2", "z2", "g2"], Layer::Apart),
            (here, ["h2", "r1", "z2", "g2"], Layer::Rack),
            (["", "r1", "", ""], here, Layer::Rack),
            (["", "", "", ""], ["", "", "", ""], Layer::Apart),
            (["a", "b", "c", "d"], ["b", "a", "d", "c"], Layer::Apart),
        ];
        for (one, other, layer) in table {
            let [a, b] = [one, other].map(Place::new);
            assert_eq!((a.shared(&b), b.shared(&a)), (layer, layer), "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_transfer_takes_its_bytes_by_the_speed_of_the_layer() {
        let links = Links::new([1000, 100, 10, 1, 0]);
        let [here, near, far, away] =
            [["h", "r", "z", "g"], ["i", "r", "z", "g"], ["j", "s", "y", "g"], [""; 4]].map(Place::new);
        // to, bytes per token, tokens, bytes, milliseconds
        let table = [
            (&here, 50, 100, 5000, 5_000),
            (&near, 50, 100, 5000, 50_000),
            (&far, 50, 100, 5000, 5_000_000),
            (&far, 50, 0, 0, 0),
            (&away, 50, 100, 5000, 0),
            // A day, and no more.
            (&far, u64::MAX, u32::MAX, u64::MAX, 86_400_000),
        ];
        for (to, bytes_per_token, tokens, bytes, millis) in table {
            let transfer = links.between(&here, to, bytes_per_token);
            assert_eq!(transfer.bytes(tokens), bytes, "{transfer:?}");
            assert_eq!(transfer.time(tokens), Duration::from_millis(millis), "{transfer:?}");
        }
    }

    #[test]
    fn links_are_read_over_their_defaults() {
        let links: Links = "rack=25G, none=0".parse().unwrap();
        let default = Links::default();
        for layer in Layer::ALL {
            let want = match layer {
                Layer::Rack => 25_000_000_000,
                Layer::Apart => 0,
                _ => default.bytes_per_second(layer),
            };
            assert_eq!(links.bytes_per_second(layer), want, "{layer}");
        }
        assert_eq!("".parse::<Links>().unwrap(), default);
        for wrong in ["rack", "cage=1G", "rack=fast", "rack=-1", "=1"] {
            assert!(wrong.parse::<Links>().is_err(), "{wrong}");
        }
    }
}
