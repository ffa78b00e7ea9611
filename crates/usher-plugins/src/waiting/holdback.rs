//! `priority-holdback-policy`: lower priorities leave room for higher ones.

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node, Positioned};
use usher_plugin::params::checked;

use super::ceiling::Standing;

/// Parameters of `priority-holdback-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HoldbackParams {
    /// How ceilings lie between the lowest and the highest. There is only `linear`.
    pub shape: &'static str,
    /// What they are in proportion to. Default `rank`.
    pub domain: Domain,
    /// Ceiling of the lowest priority, a saturation from 0 to below 1. Has to be given.
    pub min_ceiling: f64,
    /// Ceiling of the highest priority. Default 1.
    pub max_ceiling: f64,
}

/// What the ceilings of priorities are in proportion to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Domain {
    /// Their places in the order.
    #[default]
    Rank,
    /// The priorities themselves.
    Value,
}

/// The only shape.
const LINEAR: &str = "linear";

impl HoldbackParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, shapes and domains, wrong types, numbers out of range and a lowest
    /// ceiling above the highest, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            shape: Option<Name>,
            domain: Option<Name>,
            min_ceiling: Option<Positioned<f64>>,
            max_ceiling: Option<Positioned<f64>>,
        }
        let written: Written = node.decode()?;
        if let Some(shape) = written.shape.filter(|name| !matches!(name.value.as_str(), "" | LINEAR)) {
            return Err(ConfigError::at(shape.at, format!("shape '{}' is not known", shape.value))
                .hint("known here: linear")
                .did_you_mean(&shape.value, [LINEAR]));
        }
        let Some(min) = written.min_ceiling else {
            return Err(ConfigError::at(node.at, "minCeiling is missing")
                .hint("write for example minCeiling: 0.5, the saturation up to which the lowest priority is let through"));
        };
        let at = min.at;
        let min_ceiling = match min.value {
            value if (0.0..1.0).contains(&value) => value,
            value => {
                return Err(ConfigError::at(at, format!("minCeiling can't be {value}"))
                    .hint("it is at least 0 and below 1"));
            }
        };
        let max_ceiling = checked("maxCeiling", written.max_ceiling, 1.0, |value| value > 0.0)?;
        if min_ceiling > max_ceiling {
            let message = format!("minCeiling {min_ceiling} is above maxCeiling {max_ceiling}");
            return Err(
                ConfigError::at(at, message).hint("the lowest priority has the lowest ceiling; swap them")
            );
        }
        let domain = written.domain.as_ref().map(domain).transpose()?.unwrap_or_default();
        Ok(Self { shape: LINEAR, domain, min_ceiling, max_ceiling })
    }

    /// The ceiling of a band. A single band may fill the pool up to the highest.
    pub(super) fn ceiling(&self, standing: Standing) -> f64 {
        let range = self.max_ceiling - self.min_ceiling;
        let Standing { rank, bands, priority, lowest, highest } = standing;
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

fn domain(written: &Name) -> Result<Domain, ConfigError> {
    match written.value.as_str() {
        "" | "rank" => Ok(Domain::Rank),
        "value" => Ok(Domain::Value),
        other => Err(ConfigError::at(written.at, format!("domain '{other}' is not known"))
            .hint("known here: rank, value")
            .did_you_mean(other, ["rank", "value"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(rank: usize, priorities: &[i32]) -> Standing {
        let (highest, lowest) = (priorities[0], priorities[priorities.len() - 1]);
        Standing { rank, bands: priorities.len(), priority: priorities[rank], lowest, highest }
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
            let params = HoldbackParams { shape: LINEAR, domain, min_ceiling, max_ceiling };
            for (rank, expected) in expected.iter().enumerate() {
                let ceiling = params.ceiling(standing(rank, priorities));
                assert!((ceiling - expected).abs() < 1e-9, "{domain:?} {priorities:?}[{rank}]: {ceiling}");
            }
        }
    }
}
