//! Which endpoints may work together, and how long the KV cache takes from one to the other.

use std::num::NonZeroU32;

use super::links::Links;
use crate::endpoints::{Nearness, Topology};

/// Where an endpoint is, as far as pairs go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// On which host, in which rack, zone and region.
    pub topology: Topology,
    /// Its revision by number; `None`: it doesn't say, and fits all.
    pub revision: Option<NonZeroU32>,
}

/// How long one request's KV cache takes, in seconds, by how near two endpoints are.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// In the order of [`Nearness`]; never less for those that are less near.
    seconds: [f64; Nearness::ALL.len()],
    /// Pairs that are less near are forbidden.
    required: Nearness,
}

impl Ways {
    /// The ways of so many bytes.
    pub fn new(links: &Links, bytes: f64, required: Nearness) -> Self {
        Self { seconds: Nearness::ALL.map(|nearness| bytes / links.speed(nearness)), required }
    }

    /// From one endpoint to another one; `None`: they may not work together.
    pub fn between(&self, one: &Place, other: &Place) -> Option<f64> {
        let nearness = one.topology.nearness(&other.topology);
        let is_mixed = matches!((one.revision, other.revision), (Some(one), Some(other)) if one != other);
        if nearness < self.required || is_mixed {
            return None;
        }
        self.seconds.get(nearness as usize).copied()
    }

    /// How near the endpoints of a pair may be, the nearest first.
    pub fn allowed(&self) -> impl Iterator<Item = Nearness> + use<> {
        let required = self.required;
        Nearness::ALL.into_iter().rev().filter(move |nearness| *nearness >= required)
    }
}
