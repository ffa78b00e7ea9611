//! Evaluation of the rounds: medians, ratios, and whether a budget is met.

use super::metric::{Metric, Run};
use super::workloads::{Bound, Check};

/// The values of one metric over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The middle one; between two, their mean.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Summary {
    /// Summarizes finite values; `None` of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), min, max })
    }
}

/// The values of a metric in the runs of a picker, by round.
pub fn values(metric: Metric, picker: &str, runs: &[Run]) -> Vec<f64> {
    runs.iter().filter(|run| run.picker == picker).filter_map(|run| metric.of(run)).collect()
}

/// Summary of the values of a metric in the runs of a picker; `None` when there are none.
pub fn summary(metric: Metric, picker: &str, runs: &[Run]) -> Option<Summary> {
    Summary::of(values(metric, picker, runs))
}

/// Result of a check of a picker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// Summary of the limit.
    pub limit: Option<Summary>,
    /// Summary of the picker.
    pub value: Option<Summary>,
    /// The picker's median in terms of the limit's, where that is above 0 and the bound is
    /// not a number of its own.
    pub ratio: Option<f64>,
    /// The bound in the metric's unit. `None`: it can't be computed.
    pub allowed: Option<f64>,
    /// Result of the comparison of the median with it. `None`: it can't be told.
    pub met: Option<bool>,
}

impl Verdict {
    /// Judges the runs of `picker` by those of `limit`.
    pub fn of(check: &Check, limit: &str, picker: &str, runs: &[Run]) -> Self {
        let base = summary(check.metric, limit, runs);
        let value = summary(check.metric, picker, runs);
        // Where the limit costs nothing that can be measured, there is nothing to compare with.
        let compared = base.map(|base| base.median).filter(|median| *median > 0.0);
        let allowed = match check.bound {
            Bound::Times(factor) | Bound::Share(factor) => compared.map(|limit| limit * factor),
            Bound::MibAndBodies(mib, bodies) => {
                summary(Metric::BodiesInFlight, picker, runs).map(|in_flight| mib + bodies * in_flight.median)
            }
            Bound::AtMost(most) => Some(most),
        };
        let met = value.zip(allowed).map(|(value, allowed)| match check.bound {
            Bound::Share(_) => value.median >= allowed,
            Bound::Times(_) | Bound::MibAndBodies(..) | Bound::AtMost(_) => value.median <= allowed,
        });
        let relative = !matches!(check.bound, Bound::AtMost(_));
        let ratio = value.zip(compared).filter(|_| relative).map(|(value, limit)| value.median / limit);
        Self { limit: base, value, ratio, allowed, met }
    }
}
