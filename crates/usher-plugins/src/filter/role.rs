//! `decode-filter`, `prefill-filter` and `encode-filter`: the endpoints that do a stage
//! of a disaggregated request.

use rand::Rng;
use usher_core::endpoints::Snapshot;
use usher_plugin::{Context, Filter};

use super::retain;

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
