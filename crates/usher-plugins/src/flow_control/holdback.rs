//! `priority-holdback-policy`: lower priorities leave room for higher ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::params::{any_word, in_range, refused, word};

use super::ceiling::BandPosition;

/// Parameters of `priority-holdback-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HoldbackParams {
    /// Shape of the ceilings between the lowest and the highest; linear is the only one.
    #[serde(deserialize_with = "any_word")]
    pub shape: Shape,
    /// Measure that ceilings are in proportion to: rank, the places in the order, or value, the priorities
    /// themselves.
    #[serde(deserialize_with = "any_word")]
    pub domain: Domain,
    /// Ceiling of the lowest priority, at least 0 and below 1.
    #[schemars(extend("x-unit" = "saturation", "x-required" = true))]
    pub min_ceiling: f64,
    /// Ceiling of the highest priority.
    #[schemars(extend("x-unit" = "saturation"))]
    pub max_ceiling: f64,
}

/// Shape of the ceilings between the lowest and the highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// On a line.
    #[default]
    Linear,
}

impl Default for HoldbackParams {
    fn default() -> Self {
        Self { shape: Shape::Linear, domain: Domain::Rank, min_ceiling: 0.0, max_ceiling: 1.0 }
    }
}

/// Measure that the ceilings of priorities are in proportion to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// Their places in the order.
    #[default]
    Rank,
    /// The priorities themselves.
    Value,
}

impl HoldbackParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, shapes and domains, wrong types, numbers out of
    /// range and a lowest ceiling above the highest.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        params.shape = word(node, "shape")?;
        let Some(Node { at, .. }) = node.find("minCeiling") else {
            return Err(ConfigError::at(node.at, "minCeiling is missing")
                .hint("write for example minCeiling: 0.5, the saturation up to which the lowest priority is let through"));
        };
        let (min_ceiling, max_ceiling) = (params.min_ceiling, params.max_ceiling);
        if !(0.0..1.0).contains(&min_ceiling) {
            return Err(refused(node, "minCeiling", min_ceiling).hint("it is at least 0 and below 1"));
        }
        in_range(node, "maxCeiling", max_ceiling, 1.0, |value| value > 0.0)?;
        if min_ceiling > max_ceiling {
            let message = format!("minCeiling {min_ceiling} is above maxCeiling {max_ceiling}");
            return Err(
                ConfigError::at(*at, message).hint("the lowest priority has the lowest ceiling; swap them")
            );
        }
        params.domain = word(node, "domain")?;
        Ok(params)
    }

    /// The ceiling of a band. A single band may fill the pool up to the highest.
    pub(super) fn ceiling(&self, position: BandPosition) -> f64 {
        let range = self.max_ceiling - self.min_ceiling;
        let BandPosition { rank, bands, priority, lowest, highest } = position;
        if bands <= 1 {
            return self.max_ceiling;
        }
        match self.domain {
            Domain::Rank => self.max_ceiling - rank as f64 * range / (bands - 1) as f64,
            Domain::Value => {
                let span = f64::from(highest) - f64::from(lowest);
                self.min_ceiling + (f64::from(priority) - f64::from(lowest)) / span * range
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(rank: usize, priorities: &[i32]) -> BandPosition {
        let (highest, lowest) = (priorities[0], priorities[priorities.len() - 1]);
        BandPosition { rank, bands: priorities.len(), priority: priorities[rank], lowest, highest }
    }

    #[test]
    fn ceilings_fall_evenly_from_the_highest_priority_to_the_lowest() {
        // domain, min, max, priorities from the highest, ceilings
        let table: [(Domain, f64, f64, &[i32], &[f64]); 6] = [
            (Domain::Rank, 0.5, 1.0, &[0], &[1.0]),
            (Domain::Rank, 0.5, 1.0, &[100, 0, -1], &[1.0, 0.75, 0.5]),
            (Domain::Value, 0.5, 1.0, &[0], &[1.0]),
            (Domain::Value, 0.5, 1.0, &[100, 0], &[1.0, 0.5]),
            (Domain::Value, 0.2, 0.8, &[10, 5, 0], &[0.8, 0.5, 0.2]),
            (Domain::Value, 0.0, 1.0, &[i32::MAX, 0, i32::MIN + 1], &[1.0, 0.5, 0.0]),
        ];
        for (domain, min_ceiling, max_ceiling, priorities, expected) in table {
            let params = HoldbackParams { shape: Shape::Linear, domain, min_ceiling, max_ceiling };
            for (rank, expected) in expected.iter().enumerate() {
                let ceiling = params.ceiling(position(rank, priorities));
                assert!((ceiling - expected).abs() < 1e-9, "{domain:?} {priorities:?}[{rank}]: {ceiling}");
            }
        }
    }
}
