//! Parameters of joint pairing. They are ours: the peer has none of them.

use serde::Serialize;
use usher_core::config::{ConfigError, Name, Node, Position, Positioned};
use usher_core::endpoints::Nearness;

use super::choose::MOST;
use super::links::Links;
use crate::latency::{Transfers, throughput};

/// The label that DisaggregatedSet gives the pods of all roles that were made from one
/// version of their templates.
const REVISION_LABEL: &str = "disaggregatedset.x-k8s.io/revision";

/// Parameters of joint pairing.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JointParams {
    /// So many of the best endpoints of either profile are looked at, 1 to 8; of equals those
    /// that cost the least. Default 4.
    pub pair_candidates: usize,
    /// Bytes of KV cache per token of the prompt. Default 262,144.
    pub kv_bytes_per_token: f64,
    /// Prompt tokens that an endpoint computes per second, until its first tokens say
    /// so. Default 15,928.
    pub peak_prefill_throughput: f64,
    /// Bytes per second between two endpoints, until first tokens say so.
    pub links: Links,
    /// A decoding endpoint with more of its KV cache in use, or on its way there, is out, unless
    /// all are.
    /// Above 0, to 1. Default 0.95.
    pub kv_cache_limit: f64,
    /// The narrowest place that a pair has to share; `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_layer: Option<&'static str>,
    /// Pods whose values of this label differ are never paired; empty: all may be.
    /// Default `disaggregatedset.x-k8s.io/revision`.
    pub revision_label: String,
}

/// The parameters as they are written, each on its own.
#[derive(Debug, Default)]
pub struct Written {
    pub pair_candidates: Option<Positioned<u64>>,
    pub kv_bytes_per_token: Option<Positioned<f64>>,
    pub peak_prefill_throughput: Option<Positioned<f64>>,
    pub links: Option<Node>,
    pub kv_cache_limit: Option<Positioned<f64>>,
    pub constraint_mode: Option<Name>,
    pub constraint_layer: Option<Name>,
    pub revision_label: Option<Name>,
}

impl Written {
    /// The first parameter that is there, by its key.
    pub fn first(&self) -> Option<(&'static str, Position)> {
        let positioned = [
            ("pairCandidates", self.pair_candidates.map(|written| written.at)),
            ("kvBytesPerToken", self.kv_bytes_per_token.map(|written| written.at)),
            ("peakPrefillThroughput", self.peak_prefill_throughput.map(|written| written.at)),
            ("links", self.links.as_ref().map(|node| node.at)),
            ("kvCacheLimit", self.kv_cache_limit.map(|written| written.at)),
            ("constraintMode", self.constraint_mode.as_ref().map(|name| name.at)),
            ("constraintLayer", self.constraint_layer.as_ref().map(|name| name.at)),
            ("revisionLabel", self.revision_label.as_ref().map(|name| name.at)),
        ];
        positioned.into_iter().find_map(|(key, at)| Some((key, at?)))
    }
}

impl JointParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Numbers out of range, unknown layers and modes, and a required layer without a name,
    /// with their place.
    pub fn read(written: Written) -> Result<Self, ConfigError> {
        let required_layer = required_layer(written.constraint_mode, written.constraint_layer)?;
        let pair_candidates = match written.pair_candidates {
            None => 4,
            Some(Positioned { at, value }) => {
                let number = usize::try_from(value).ok().filter(|number| (1..=MOST).contains(number));
                number.ok_or_else(|| {
                    ConfigError::at(at, format!("pairCandidates can't be {value}"))
                        .hint(format!("give 1 to {MOST}"))
                })?
            }
        };
        let in_range = |written: Option<Positioned<f64>>, key: &str, default: f64, most: f64, hint: &str| {
            let Some(Positioned { at, value }) = written else { return Ok(default) };
            if value > 0.0 && value <= most {
                return Ok(value);
            }
            Err(ConfigError::at(at, format!("{key} can't be {value}")).hint(hint))
        };
        Ok(Self {
            pair_candidates,
            kv_bytes_per_token: in_range(
                written.kv_bytes_per_token,
                "kvBytesPerToken",
                262_144.0,
                1e12,
                "give bytes per token, above 0",
            )?,
            peak_prefill_throughput: throughput(written.peak_prefill_throughput)?,
            links: written.links.as_ref().map_or_else(|| Ok(Links::default()), Links::decode)?,
            kv_cache_limit: in_range(
                written.kv_cache_limit,
                "kvCacheLimit",
                0.95,
                1.0,
                "give a share of the KV cache, above 0 and up to 1",
            )?,
            required_layer,
            revision_label: written
                .revision_label
                .map_or_else(|| REVISION_LABEL.to_owned(), |name| name.value),
        })
    }

    /// How fast KV caches move.
    pub fn transfers(&self) -> Transfers {
        Transfers::new(|nearness| self.links.speed(nearness), self.kv_bytes_per_token)
    }

    /// How near the endpoints of a pair have to be at least.
    pub(super) fn required(&self) -> Nearness {
        let layer = LAYERS.iter().find(|(name, _)| Some(*name) == self.required_layer);
        layer.map_or(Nearness::Apart, |(_, nearness)| *nearness)
    }
}

/// Places, with the names that parameters have for them.
const LAYERS: [(&str, Nearness); 4] = [
    ("host", Nearness::Host),
    ("rack", Nearness::Rack),
    ("zone", Nearness::Zone),
    ("region", Nearness::Region),
];

fn required_layer(mode: Option<Name>, layer: Option<Name>) -> Result<Option<&'static str>, ConfigError> {
    let known = match &layer {
        None => None,
        Some(name) => {
            let found = LAYERS.iter().find(|(known, _)| *known == name.value);
            let unknown = || {
                ConfigError::at(name.at, format!("constraintLayer '{}' is not known", name.value))
                    .hint("write host, rack, zone or region")
            };
            Some(found.ok_or_else(unknown)?.0)
        }
    };
    let Some(mode) = mode else {
        return match layer {
            None => Ok(None),
            Some(name) => {
                Err(ConfigError::at(name.at, "constraintLayer has no effect without constraintMode")
                    .hint("add constraintMode: Required, or leave it out"))
            }
        };
    };
    match (mode.value.as_str(), known) {
        ("Required", Some(layer)) => Ok(Some(layer)),
        ("Required", None) => {
            Err(ConfigError::at(mode.at, "constraintMode Required needs a constraintLayer")
                .hint("add constraintLayer: host, rack, zone or region"))
        }
        ("Preferred", _) => Ok(None),
        (other, _) => Err(ConfigError::at(mode.at, format!("constraintMode '{other}' is not known"))
            .hint("write Required or Preferred")
            .did_you_mean(other, ["Required", "Preferred"])),
    }
}
