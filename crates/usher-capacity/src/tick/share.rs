//! Shares the size of a group among its roles.

use super::Tick;
use crate::coordinate::{self, Pressure, Shares};
use crate::cost::{self, RoleCost};
use crate::plan::{Condition, Reason};
use crate::policy::Target;
use crate::share::{Bounds, split};

impl Tick<'_> {
    /// Shares the group's size by cost, and by pressure if enabled. With an unknown `size` it stays, and so
    /// do the shares unless the pressure on all roles is known.
    pub(super) fn share(&mut self, size: Option<u32>, panics: bool, expansion: u32) {
        let there = self.within_bounds(self.sized());
        let priced: Vec<RoleCost> = self
            .policy
            .roles
            .iter()
            .zip(&self.bounds)
            .map(|(role, b)| RoleCost { min: b.low, max: b.high, cost: role.cost })
            .collect();
        let base = cost::allocate(size.unwrap_or(there), &priced, expansion);
        for (role, base) in self.plan.roles.iter_mut().zip(&base) {
            (role.base, role.goal) = (*base, *base);
        }
        self.plan.stages.size = size.unwrap_or(there);
        let coordination = &self.policy.coordination;
        let is_on = coordination.is_on && base.len() > 1;
        let counts = is_on && coordination.pressure.iter().any(|signals| !signals.is_empty());
        let pressures = if counts { self.pressures() } else { None };
        match (size, pressures) {
            (None, None) => self.stay(),
            (None, _) if panics => self.stay(),
            (Some(_), None) if !counts => {
                self.add_reason(if is_on { Reason::NoPressure } else { Reason::Cost });
            }
            // No role has a share to keep.
            (Some(_), None) if self.counted() == 0 => self.add_reason(Reason::NoPressure),
            (Some(size), None) => self.keep_shares(size),
            (Some(_), Some(_)) if panics => self.add_reason(Reason::Cost),
            (size, Some(pressures)) => {
                let coordination = &self.policy.coordination;
                let Some(weights) = coordinate::weights(&base, &pressures, coordination.alpha) else {
                    return self.add_reason(Reason::Cost);
                };
                let of = size.unwrap_or(there);
                let shares = coordinate::coordinate(of, &weights, &self.bounds, &coordination.bands);
                let mut roles = self.counted.iter().zip(&shares.pods).enumerate();
                // Unresponsive pods may be the busiest.
                let loses = roles.any(|(place, (count, share))| share < count && self.lacks_values(place));
                if loses && !self.is_small(&shares, of) {
                    if size.is_none() {
                        self.blind.fill(true);
                        self.is_stale();
                    }
                    return self.keep_shares(of);
                }
                self.take(&shares, of);
            }
        }
    }

    /// Keeps all roles within their bounds, as no metric is known.
    fn stay(&mut self) {
        self.blind.fill(true);
        self.clamp_roles();
        if self.plan.conditions.contains(&Condition::StaleData) {
            return;
        }
        if self.plan.roles.iter().all(|role| role.goal == role.current) {
            self.is_stale();
            return;
        }
        // Bounds move the others.
        for role in self.plan.roles.iter_mut().filter(|role| role.goal == role.current) {
            role.reasons.push(Reason::StaleData);
        }
    }

    /// Keeps shares while the size is known and pressure is not: no role's share of the group grows.
    fn keep_shares(&mut self, size: u32) {
        self.add_reason(Reason::LastShares);
        let current = self.counted();
        let bounds = self.counted.iter().zip(&self.bounds).map(|(count, b)| {
            let there = (*count).clamp(b.low, b.high);
            let low = if size < current { b.low } else { there };
            Bounds { low, high: if size > current { b.high } else { there } }
        });
        let weights: Vec<u128> = self.counted.iter().map(|count| u128::from(*count)).collect();
        let shares = split(size, &weights, &bounds.collect::<Vec<_>>());
        self.plan.roles.iter_mut().zip(shares).for_each(|(role, share)| role.goal = share);
    }

    /// Pressure on each role; `None` unless all are known.
    fn pressures(&mut self) -> Option<Vec<Pressure>> {
        let signals = &self.policy.coordination.pressure;
        let pressures: Vec<Option<Pressure>> =
            signals.iter().enumerate().map(|(role, signals)| self.pressure(role, signals)).collect();
        for (role, pressure) in self.plan.roles.iter_mut().zip(&pressures) {
            role.pressure = pressure.map(Pressure::as_f64);
        }
        pressures.into_iter().collect()
    }

    /// Largest of a role's signals; `None` unless all are known. Roles without pods have no pressure.
    fn pressure(&self, role: usize, signals: &[Target]) -> Option<Pressure> {
        if self.plan.roles.get(role).is_some_and(|role| role.current == 0) {
            return Some(Pressure::NONE);
        }
        let known = signals.iter().map(|signal| {
            let reading = self.readings.of_role(role, signal.signal?);
            Some(Pressure::new(reading.sum.mean(reading.count as usize)?, signal.target))
        });
        known.collect::<Option<Vec<_>>>()?.into_iter().reduce(Pressure::max)
    }

    /// Returns `true` if a ready pod of a role lacks a pressure metric.
    fn lacks_values(&self, place: usize) -> bool {
        let signals = self.policy.coordination.pressure.get(place).into_iter().flatten();
        let mut counts =
            signals.filter_map(|target| Some(self.readings.of_role(place, target.signal?).count));
        counts.any(|count| count < self.readings.ready_with_numbers(place))
    }

    /// Returns `true` if shares differ by a single moved pod, which isn't worth a restart.
    fn is_small(&self, shares: &Shares, size: u32) -> bool {
        let mut roles = self.counted.iter().zip(&shares.pods).zip(&shares.bounds);
        size == self.counted()
            && roles
                .all(|((count, share), b)| count.abs_diff(*share) <= 1 && (b.low..=b.high).contains(count))
    }

    fn take(&mut self, shares: &Shares, size: u32) {
        self.add_reason(Reason::Pressure);
        if shares.is_outside_bands {
            self.add_reason(Reason::BandUnsatisfied);
            self.condition(Condition::BandUnsatisfied);
        }
        let is_small = self.is_small(shares, size);
        let changes = self.counted.iter().zip(&shares.pods).any(|(count, share)| count != share);
        for (index, role) in self.plan.roles.iter_mut().enumerate() {
            let Some((share, b)) = shares.pods.get(index).zip(shares.bounds.get(index)) else { continue };
            let own = self.bounds.get(index);
            if own.is_some_and(|own| {
                (*share == b.low && b.low > own.low) || (*share == b.high && b.high < own.high)
            }) {
                role.reasons.push(Reason::Band);
            }
            role.goal = *share;
            if is_small && changes {
                role.goal = self.counted.get(index).copied().unwrap_or(role.current);
                role.reasons.push(Reason::DeadBand);
            }
        }
    }
}
