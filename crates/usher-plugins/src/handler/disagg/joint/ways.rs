//! Pairs of endpoints that may work together, and how long the KV cache takes from one to the other.

use std::num::NonZeroU32;

use usher_core::endpoints::{Nearness, Topology};

use crate::latency::Transfers;

/// Location of an endpoint, as far as pairs go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// On which host, in which rack, zone and region.
    pub topology: Topology,
    /// Revision by number; `None`: it doesn't say, and fits all.
    pub revision: Option<NonZeroU32>,
}

/// The ways between endpoints, by how near they are.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// Never slower for those that are nearer.
    transfers: Transfers,
    /// Pairs that are less near are forbidden.
    required: Nearness,
}

impl Ways {
    /// Ways as fast as these, between endpoints that are so near at least.
    pub fn new(transfers: Transfers, required: Nearness) -> Self {
        Self { transfers, required }
    }

    /// Seconds per token of a prompt, as configured.
    pub fn per_token(&self, nearness: Nearness) -> f64 {
        self.transfers.per_token(nearness)
    }

    /// Seconds per prompt token from one endpoint to another; `None`: they may not be paired.
    pub fn between(&self, one: &Place, other: &Place) -> Option<f64> {
        let nearness = one.topology.nearness(&other.topology);
        let is_mixed = matches!((one.revision, other.revision), (Some(one), Some(other)) if one != other);
        (nearness >= self.required && !is_mixed).then(|| self.per_token(nearness))
    }

    /// Nearness that the endpoints of a pair may have, the nearest first.
    pub fn allowed(&self) -> impl Iterator<Item = Nearness> + use<> {
        let required = self.required;
        Nearness::ALL.into_iter().rev().filter(move |nearness| *nearness >= required)
    }
}
