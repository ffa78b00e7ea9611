//! Parameters of joint pairing. They are ours: llm-d-router has none of them.

use serde::Serialize;
use usher_core::config::{ConfigError, Node, Position};
use usher_core::endpoints::Nearness;
use usher_plugin::params::refused;

use super::choose::MOST;
use super::links::Links;
use crate::handler::disagg::written::Written;
use crate::latency::{Transfers, check_throughput};

/// Parameters of joint pairing.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JointParams {
    /// Number of best endpoints of each profile that are considered, 1 to 8; ties go to the lowest
    /// cost. Default 4.
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

/// Keys of parameters that go with joint pairing.
const KEYS: [&str; 8] = [
    "pairCandidates",
    "kvBytesPerToken",
    "peakPrefillThroughput",
    "links",
    "kvCacheLimit",
    "constraintMode",
    "constraintLayer",
    "revisionLabel",
];

impl JointParams {
    /// The first parameter that is there, by its key.
    pub fn first(node: &Node) -> Option<(&'static str, Position)> {
        KEYS.into_iter().find_map(|key| Some((key, node.find(key)?.at)))
    }

    /// Reads the parameters of this node, which are written like this.
    ///
    /// # Errors
    /// `ConfigError` with line and column for numbers out of range, unknown layers and modes, and a required
    /// layer without a name.
    pub fn read(node: &Node, written: Written) -> Result<Self, ConfigError> {
        let required_layer =
            required_layer(node, written.constraint_mode.as_deref(), written.constraint_layer.as_deref())?;
        let pair_candidates = usize::try_from(written.pair_candidates).ok();
        let pair_candidates = pair_candidates.filter(|number| (1..=MOST).contains(number));
        let pair_candidates = pair_candidates.ok_or_else(|| {
            refused(node, "pairCandidates", written.pair_candidates).hint(format!("give 1 to {MOST}"))
        })?;
        let in_range = |key: &str, value: f64, most: f64, hint: &str| match value > 0.0 && value <= most {
            true => Ok(value),
            false => Err(refused(node, key, value).hint(hint)),
        };
        let (bytes, limit) = (written.kv_bytes_per_token, written.kv_cache_limit);
        let bytes = in_range("kvBytesPerToken", bytes, 1e12, "give bytes per token, above 0")?;
        check_throughput(node, written.peak_prefill_throughput)?;
        let links = node.find("links").map_or_else(|| Ok(Links::default()), Links::decode)?;
        let hint = "give a share of the KV cache, above 0 and up to 1";
        Ok(Self {
            pair_candidates,
            kv_bytes_per_token: bytes,
            peak_prefill_throughput: written.peak_prefill_throughput,
            links,
            kv_cache_limit: in_range("kvCacheLimit", limit, 1.0, hint)?,
            required_layer,
            revision_label: written.revision_label,
        })
    }

    /// Speeds of KV caches.
    pub fn transfers(&self) -> Transfers {
        Transfers::new(|nearness| self.links.speed(nearness), self.kv_bytes_per_token)
    }

    /// Nearness that the endpoints of a pair need at least.
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

fn required_layer(
    node: &Node,
    mode: Option<&str>,
    layer: Option<&str>,
) -> Result<Option<&'static str>, ConfigError> {
    let (mode_at, layer_at) = (node.position_of("constraintMode"), node.position_of("constraintLayer"));
    let known = match layer {
        None => None,
        Some(name) => {
            let found = LAYERS.iter().find(|(known, _)| *known == name);
            let unknown = || {
                ConfigError::at(layer_at, format!("constraintLayer '{name}' is not known"))
                    .hint("write host, rack, zone or region")
            };
            Some(found.ok_or_else(unknown)?.0)
        }
    };
    let Some(mode) = mode else {
        return match layer {
            None => Ok(None),
            Some(_) => Err(ConfigError::at(layer_at, "constraintLayer has no effect without constraintMode")
                .hint("add constraintMode: Required, or leave it out")),
        };
    };
    match (mode, known) {
        ("Required", Some(layer)) => Ok(Some(layer)),
        ("Required", None) => {
            Err(ConfigError::at(mode_at, "constraintMode Required needs a constraintLayer")
                .hint("add constraintLayer: host, rack, zone or region"))
        }
        ("Preferred", _) => Ok(None),
        (other, _) => Err(ConfigError::at(mode_at, format!("constraintMode '{other}' is not known"))
            .hint("write Required or Preferred")
            .did_you_mean(other, ["Required", "Preferred"])),
    }
}
