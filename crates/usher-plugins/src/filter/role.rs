//! `decode-filter`, `prefill-filter` and `encode-filter`: the endpoints that do a stage
//! of a disaggregated request.

use std::sync::Arc;

use rand::Rng;
use usher_core::config::ConfigError;
use usher_core::endpoints::Snapshot;
use usher_plugin::{Build, BuildContext, Context, Filter, Kind, PluginParts, PluginType, beta};

use super::retain;

/// `decode-filter` in a configuration.
#[rustfmt::skip]
pub static DECODE: PluginType = beta("decode-filter", &[Kind::Filter],
    "Keeps the endpoints that generate tokens: by their role label, or without one.",
    Build::Ignoring(decode_filter))
    .when("Disaggregated pools: the profile that generates tokens.");

/// `prefill-filter` in a configuration.
#[rustfmt::skip]
pub static PREFILL: PluginType = beta("prefill-filter", &[Kind::Filter],
    "Keeps the endpoints whose role label says that they compute prompts.",
    Build::Ignoring(prefill_filter))
    .when("Disaggregated pools: the profile that computes prompts.");

/// `encode-filter` in a configuration.
#[rustfmt::skip]
pub static ENCODE: PluginType = beta("encode-filter", &[Kind::Filter],
    "Keeps the endpoints whose role label says that they encode images, audio and video.",
    Build::Ignoring(encode_filter))
    .when("Disaggregated pools: the profile that encodes images, audio and video.");

fn decode_filter(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { filter: Some(Arc::new(RoleFilter::Decode)), ..PluginParts::bare() })
}

fn prefill_filter(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { filter: Some(Arc::new(RoleFilter::Prefill)), ..PluginParts::bare() })
}

fn encode_filter(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { filter: Some(Arc::new(RoleFilter::Encode)), ..PluginParts::bare() })
}

/// Keeps the endpoints that do one stage, by their role label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleFilter {
    /// Generates tokens; endpoints without a role do.
    Decode,
    /// Computes the KV cache of prompts.
    Prefill,
    /// Encodes images, audio and video.
    Encode,
}

impl Filter for RoleFilter {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        retain(snapshot, kept, |endpoint| {
            let role = endpoint.role();
            match self {
                Self::Decode => role.decode,
                Self::Prefill => role.prefill,
                Self::Encode => role.encode,
            }
        });
    }
}
