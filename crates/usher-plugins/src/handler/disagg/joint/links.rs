//! Speed of a KV cache between two endpoints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node, Positioned};
use usher_core::endpoints::Nearness;

/// Bytes per second between two endpoints, by the narrowest place that they share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Links {
    /// Speed of a KV cache between two endpoints of one host, until first tokens say so. A layer
    /// that is left out is as fast as the next wider one; none is slower than a wider one.
    #[schemars(extend("x-unit" = "bytes/s", "default" = "50e9"))]
    pub host: f64,
    /// Speed of a KV cache in one rack.
    #[schemars(extend("x-unit" = "bytes/s", "default" = "50e9"))]
    pub rack: f64,
    /// Speed of a KV cache in one zone.
    #[schemars(extend("x-unit" = "bytes/s", "default" = "50e9"))]
    pub zone: f64,
    /// Speed of a KV cache in one region.
    #[schemars(extend("x-unit" = "bytes/s", "default" = "50e9"))]
    pub region: f64,
    /// Speed of a KV cache between endpoints without a place in common, or where it isn't known.
    #[schemars(extend("x-unit" = "bytes/s", "default" = "50e9"))]
    pub none: f64,
}

/// Equal speeds everywhere: without measurements, locations make no difference.
impl Default for Links {
    fn default() -> Self {
        Self::all(DEFAULT)
    }
}

/// A network card of 400 Gb/s.
const DEFAULT: f64 = 50e9;

impl Links {
    fn all(bytes_per_second: f64) -> Self {
        let speed = bytes_per_second;
        Self { host: speed, rack: speed, zone: speed, region: speed, none: speed }
    }

    /// Reads the table. A layer that is left out is as fast as the next wider one that
    /// isn't; without a wider one, as fast as the narrower ones' slowest.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, speeds that are no positive numbers,
    /// and a place that is slower than a wider one.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let Self { host, rack, zone, region, none } = node.decode()?;
        let layers = [("none", none), ("region", region), ("zone", zone), ("rack", rack), ("host", host)];
        let layers = layers
            .map(|(layer, value)| (layer, node.find(layer).map(|node| Positioned { at: node.at, value })));
        let mut speeds = [None; 5];
        for (speed, (layer, written)) in speeds.iter_mut().zip(layers) {
            let Some(Positioned { at, value }) = written else { continue };
            if !(value.is_finite() && value >= 1.0) {
                return Err(ConfigError::at(at, format!("links.{layer} can't be {value}"))
                    .hint("give bytes per second, at least 1"));
            }
            *speed = Some(value);
        }
        let mut last = speeds.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        if last.is_infinite() {
            last = DEFAULT;
        }
        let [none, region, zone, rack, host] = speeds.map(|speed| {
            last = speed.unwrap_or(last);
            last
        });
        let mut widest: Option<(&str, f64)> = None;
        for (layer, written) in layers {
            let Some(Positioned { at, value }) = written else { continue };
            if let Some((wider, _)) = widest.filter(|(_, fastest)| value < *fastest) {
                let message = format!("links.{layer} can't be slower than links.{wider}");
                return Err(ConfigError::at(at, message)
                    .hint("whoever shares the narrower place has the wider one's links, too"));
            }
            widest = Some((layer, value));
        }
        Ok(Self { host, rack, zone, region, none })
    }

    /// Bytes per second between endpoints that are so near.
    pub fn speed(&self, nearness: Nearness) -> f64 {
        match nearness {
            Nearness::Host => self.host,
            Nearness::Rack => self.rack,
            Nearness::Zone => self.zone,
            Nearness::Region => self.region,
            Nearness::Apart => self.none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_layers_are_as_fast_as_the_next_wider_one() {
        let decode = |text: &str| {
            let links = Links::decode(&Node::parse(text).unwrap()).unwrap();
            [links.host, links.rack, links.zone, links.region, links.none]
        };
        let table = [
            ("{}", [DEFAULT; 5]),
            ("{host: 9e11, rack: 5e10, zone: 1e10, region: 5e9, none: 1e9}", [9e11, 5e10, 1e10, 5e9, 1e9]),
            ("{rack: 10, none: 1}", [10.0, 10.0, 1.0, 1.0, 1.0]),
            ("{rack: 10}", [10.0; 5]),
            ("{host: 100, zone: 10}", [100.0, 10.0, 10.0, 10.0, 10.0]),
        ];
        for (text, expected) in table {
            assert_eq!(decode(text), expected, "{text}");
        }
    }

    #[test]
    fn a_speed_is_a_positive_number() {
        for (text, part) in [
            ("{rack: 0}", "links.rack can't be 0"),
            ("{none: -5}", "links.none can't be -5"),
            ("{zone: .inf}", "links.zone can't be inf"),
            ("{row: 5}", "row"),
            ("{zone: 5, rack: 4}", "links.rack can't be slower than links.zone"),
            ("{host: 4, none: 5}", "links.host can't be slower than links.none"),
        ] {
            let error = Links::decode(&Node::parse(text).unwrap()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
