//! One tick: from what there is to what there should be.

use std::time::Duration;

use super::amount::Amount;
use super::behavior::Past;
use super::coordinate::{self, Pressure, Shares};
use super::cost::{self, Priced};
use super::inputs::{Inputs, Readings};
use super::plan::{Condition, MetricStage, Plan, Reason, RolePlan, State};
use super::policy::{Policy, QUEUE_DEPTH, Sizing, Target, Total};
use super::ratio;
use super::rollout;
use super::rules::{self, Cooldowns, Rule};
use super::share::Bounds;
use super::size::{self, Measured};

/// For how many intervals the last shares hold when pressure isn't known.
const SHARES_HOLD: u32 = 3;

/// What a group's ticks remember. It belongs to one policy: another one begins anew.
#[derive(Clone, Debug, Default)]
pub struct History {
    past: Past,
    /// What roles weighed when pressure was known last, and when that was.
    shares: Option<(Duration, Vec<u128>)>,
    /// Up to how many pods a role was told to grow, until so many are ready.
    growing: Vec<Option<u32>>,
    cooldowns: Cooldowns,
    /// What the order in which pods come up remembers.
    pub rollout: rollout::Memory,
}

impl History {
    /// Of a group that somebody else sized until now, and that has `total` pods: windows begin now.
    pub fn resumed(total: u32, now: Duration) -> Self {
        Self { past: Past::resumed(total, now), ..Self::default() }
    }

    /// When a rule fired last, by its place in the policy.
    pub fn last_fired(&self, rule: usize) -> Option<Duration> {
        self.cooldowns.last(rule)
    }

    /// The replicas of these roles, by place, could not be written: the rules that fired for them at the
    /// last tick don't rest.
    pub fn take_back(&mut self, policy: &Policy, plan: &Plan, roles: &[usize]) {
        let Sizing::Rules(rules) = &policy.sizing else { return };
        for (place, rule) in rules.iter().enumerate() {
            if roles.contains(&rule.role) && plan.fired.contains(&rule.name) {
                self.cooldowns.take_back(place);
            }
        }
    }
}

/// Says how many pods each role should have. `now` counts from any fixed point in time.
pub fn tick(inputs: &Inputs, policy: &Policy, history: &mut History, now: Duration) -> Plan {
    let mut tick = Tick::new(inputs, policy);
    match &policy.sizing {
        Sizing::Rules(rules) => tick.by_rules(rules, history, now),
        Sizing::Total(total) => {
            let (size, panics) = tick.group_size(total, history, now);
            tick.share(size, panics, total.cost_expansion, history, now);
        }
        Sizing::Kept if policy.coordination.is_on => {
            let size = tick.within_bounds(tick.plan.stages.current);
            tick.share(size, false, DEFAULT_EXPANSION, history, now);
        }
        Sizing::Kept => tick.clamp_roles(),
    }
    tick.keep_ratio();
    let mut plan = tick.settle(matches!(policy.sizing, Sizing::Rules(_)), history);
    rollout::roll(inputs, policy, &mut plan, &mut history.rollout, now);
    plan
}

/// How cost blocks grow where a policy doesn't say.
const DEFAULT_EXPANSION: u32 = 200;

struct Tick<'a> {
    inputs: &'a Inputs,
    policy: &'a Policy,
    readings: Readings,
    /// Bounds of the roles; while requests wait, each has at least one pod.
    bounds: Vec<Bounds>,
    plan: Plan,
}

impl<'a> Tick<'a> {
    fn new(inputs: &'a Inputs, policy: &'a Policy) -> Self {
        let readings = Readings::of(inputs, policy.roles.len(), policy.signals.len());
        let floor = u32::from(inputs.waiting > 0);
        let bounds = policy
            .roles
            .iter()
            .map(|role| Bounds { low: role.range.min.max(floor).min(role.range.max), high: role.range.max });
        let roles = policy.roles.iter().enumerate().map(|(index, role)| {
            let current = inputs.replicas.get(index).copied().unwrap_or_default();
            let ready = readings.ready(index);
            RolePlan { name: role.name.clone(), current, ready, goal: current, ..RolePlan::default() }
        });
        let mut plan = Plan { roles: roles.collect(), ..Plan::default() };
        plan.stages.current = plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.current));
        Self { inputs, policy, bounds: bounds.collect(), readings, plan }
    }

    fn within_bounds(&self, size: u32) -> u32 {
        let sum = |of: fn(&Bounds) -> u32| self.bounds.iter().fold(0u32, |sum, b| sum.saturating_add(of(b)));
        size.clamp(sum(|b| b.low), sum(|b| b.high))
    }

    /// A reason that holds for all roles.
    fn because(&mut self, reason: Reason) {
        self.plan.roles.iter_mut().for_each(|role| role.reasons.push(reason));
    }

    fn condition(&mut self, condition: Condition) {
        if !self.plan.conditions.contains(&condition) {
            self.plan.conditions.push(condition);
        }
    }

    /// The size of the group, and whether it panics.
    fn group_size(&mut self, total: &Total, history: &mut History, now: Duration) -> (u32, bool) {
        let current = self.plan.stages.current;
        let ranges = || self.policy.roles.iter().map(|role| role.range);
        let least = ranges().fold(0u32, |sum, range| sum.saturating_add(range.min));
        let most = ranges().fold(0u32, |sum, range| sum.saturating_add(range.max));
        self.plan.stages.metrics =
            total.metrics.iter().map(|metric| self.asked(metric, total.tolerance)).collect();
        let asked = self.plan.stages.metrics.iter().filter_map(|metric| metric.asks).max();
        // Bounds first: what is outside of them comes back, whatever metrics say.
        let recommended = if current < least {
            self.because(Reason::Min);
            least
        } else if current > most {
            self.because(Reason::Max);
            most
        } else {
            let Some(asked) = asked else {
                self.because(Reason::StaleData);
                self.condition(Condition::StaleData);
                // Panic lasts its time, whether numbers come or not.
                let panics = self.policy.behavior.still_panics(&history.past, now);
                if panics {
                    self.condition(Condition::Panic);
                }
                let size = self.within_bounds(current);
                self.plan.stages.recommended = size;
                self.plan.stages.limited = size;
                self.plan.stages.size = size;
                return (size, panics);
            };
            let wanted = asked.clamp(least, most);
            if asked == current {
                self.because(Reason::Tolerance);
            } else if wanted != current {
                self.because(Reason::Metric);
            }
            if asked < least {
                self.because(Reason::Min);
            } else if asked > most {
                self.because(Reason::Max);
            }
            wanted
        };
        let limited = self.policy.behavior.limit(&mut history.past, current, recommended, now);
        if limited.panics {
            self.condition(Condition::Panic);
        }
        let size = self.within_bounds(limited.total);
        if size == limited.total {
            limited.reasons.iter().for_each(|reason| self.because(*reason));
        } else {
            // Bounds hold against limits and windows, which are no reason then.
            history.past.correct(size);
            if size > least && size > limited.total {
                self.because(Reason::Waiting);
            }
        }
        let stages = &mut self.plan.stages;
        (stages.recommended, stages.limited, stages.size) = (recommended, limited.total, size);
        (size, limited.panics)
    }

    /// What a metric asks for.
    fn asked(&self, metric: &Target, tolerance: u32) -> MetricStage {
        let current = self.plan.stages.current;
        let name = metric.name.clone();
        if let Some(value) = self.inputs.external.get(&metric.name) {
            let value = Amount::of(*value);
            let asks = value.map(|value| size::external(value, metric.target, current, tolerance));
            return MetricStage { name, value: value.map(Amount::as_f64), asks };
        }
        let Some(signal) = metric.signal else {
            // A query that nobody answered.
            return MetricStage { name, value: None, asks: None };
        };
        let reading = self.readings.of_group(signal);
        let is_queue = metric.name == QUEUE_DEPTH;
        let waiting = if is_queue { Amount::whole(self.inputs.waiting) } else { Amount::ZERO };
        let measured = Measured {
            sum: reading.sum + waiting,
            count: reading.count,
            missing: self.readings.all_ready() - reading.count,
            unready: self.readings.all_unready(),
        };
        let mut asks = size::per_pod(&measured, metric.target, current, tolerance);
        if is_queue && self.inputs.pods.is_empty() && current == 0 {
            // Without pods there is no queue but what waits here, and that is known.
            asks = asks.or(Some(0));
        }
        MetricStage { name, value: reading.sum.mean(reading.count as usize).map(Amount::as_f64), asks }
    }

    /// Shares the group's size by cost, and by pressure where that counts and is known.
    fn share(&mut self, size: u32, panics: bool, expansion: u32, history: &mut History, now: Duration) {
        let priced: Vec<Priced> = self
            .policy
            .roles
            .iter()
            .zip(&self.bounds)
            .map(|(role, b)| Priced { min: b.low, max: b.high, cost: role.cost })
            .collect();
        let base = cost::allocate(size, &priced, expansion);
        for (role, base) in self.plan.roles.iter_mut().zip(&base) {
            (role.base, role.goal) = (*base, *base);
        }
        self.plan.stages.size = size;
        let Some((weights, reason)) = self.weights(&base, panics, history, now) else { return };
        let bands = &self.policy.coordination.bands;
        let shares = coordinate::coordinate(size, &weights, &self.bounds, bands);
        self.take(&shares, size, reason);
    }

    /// What the roles weigh, and why; none where cost alone decides.
    fn weights(
        &mut self,
        base: &[u32],
        panics: bool,
        history: &mut History,
        now: Duration,
    ) -> Option<(Vec<u128>, Reason)> {
        let coordination = &self.policy.coordination;
        if !coordination.is_on || base.len() < 2 {
            self.because(Reason::Cost);
            return None;
        }
        let pressures: Vec<Option<Pressure>> = coordination
            .pressure
            .iter()
            .enumerate()
            .map(|(role, signals)| self.pressure(role, signals))
            .collect();
        for (role, pressure) in self.plan.roles.iter_mut().zip(&pressures) {
            role.pressure = pressure.map(Pressure::as_f64);
        }
        if panics {
            self.because(Reason::Cost);
            return None;
        }
        match pressures.into_iter().collect::<Option<Vec<Pressure>>>() {
            Some(pressures) => match coordinate::weights(base, &pressures, coordination.alpha) {
                Some(weights) => {
                    history.shares = Some((now, weights.clone()));
                    Some((weights, Reason::Pressure))
                }
                None => {
                    history.shares = None;
                    self.because(Reason::Cost);
                    None
                }
            },
            None => {
                let hold = self.policy.interval * SHARES_HOLD;
                let last = history.shares.as_ref().filter(|(at, _)| now.saturating_sub(*at) <= hold);
                match last {
                    Some((_, weights)) => Some((weights.clone(), Reason::LastShares)),
                    None => {
                        self.because(Reason::NoPressure);
                        None
                    }
                }
            }
        }
    }

    /// The largest of a role's signals; none unless all of them are known.
    fn pressure(&self, role: usize, signals: &[Target]) -> Option<Pressure> {
        let known = signals.iter().map(|signal| {
            let reading = self.readings.of_role(role, signal.signal?);
            Some(Pressure::new(reading.sum.mean(reading.count as usize)?, signal.target))
        });
        known.collect::<Option<Vec<_>>>()?.into_iter().reduce(Pressure::max)
    }

    fn take(&mut self, shares: &Shares, size: u32, reason: Reason) {
        self.because(reason);
        if shares.is_outside_bands {
            self.because(Reason::BandUnsatisfied);
            self.condition(Condition::BandUnsatisfied);
        }
        // One pod there and another one here isn't worth a restart.
        let is_small = size == self.plan.stages.current
            && self.plan.roles.iter().zip(&shares.pods).zip(&shares.bounds).all(|((role, share), b)| {
                role.current.abs_diff(*share) <= 1 && (b.low..=b.high).contains(&role.current)
            });
        let changes = self.plan.roles.iter().zip(&shares.pods).any(|(role, share)| role.current != *share);
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
                role.goal = role.current;
                role.reasons.push(Reason::DeadBand);
            }
        }
    }

    fn clamp_roles(&mut self) {
        for (role, own) in self.plan.roles.iter_mut().zip(&self.policy.roles) {
            role.goal = role.current.clamp(own.range.min, own.range.max);
            if role.goal != role.current {
                role.reasons.push(if role.goal > role.current { Reason::Min } else { Reason::Max });
            }
        }
        for (role, b) in self.plan.roles.iter_mut().zip(&self.bounds) {
            if role.goal < b.low {
                role.goal = b.low;
                role.reasons.push(Reason::Waiting);
            }
        }
        self.plan.stages.size = self.plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.goal));
    }

    fn by_rules(&mut self, rules: &[Rule], history: &mut History, now: Duration) {
        let ranges = self.policy.roles.iter().map(|role| role.range);
        let mut sizes: Vec<u32> = self
            .plan
            .roles
            .iter()
            .zip(ranges)
            .enumerate()
            .map(|(place, (role, range))| {
                // Where pods come step by step, a rule adds to what is on its way.
                let on_its_way = history.rollout.pending(place, role.current).unwrap_or(role.current);
                on_its_way.clamp(range.min, range.max)
            })
            .collect();
        let on_its_way = self.policy.rollout.is_some();
        let before = sizes.clone();
        let ruled = rules::apply(rules, self.inputs, &mut sizes, &history.cooldowns, now);
        // Whoever can't write what it fired for takes that back.
        ruled.fired.iter().for_each(|rule| history.cooldowns.start(*rule, now));
        self.plan.fired =
            ruled.fired.iter().filter_map(|rule| rules.get(*rule)).map(|rule| rule.name.clone()).collect();
        self.plan.stages.rules = ruled.stages;
        // What brings a role back into its bounds is said before what a rule adds.
        self.clamp_roles();
        for (((role, size), before), b) in self.plan.roles.iter_mut().zip(sizes).zip(before).zip(&self.bounds)
        {
            if size != before {
                role.goal = size.max(b.low);
                role.reasons.push(Reason::Rule);
            } else if on_its_way {
                role.goal = size.max(b.low);
            }
        }
        self.plan.stages.size = self.plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.goal));
    }

    /// A ratio between two roles holds, whatever that makes of the group's size.
    fn keep_ratio(&mut self) {
        let Some(ratio) = self.policy.ratio else { return };
        let (above, below) = (ratio.numerator, ratio.denominator);
        let goal = |place: usize| self.plan.roles.get(place).map(|role| role.goal);
        let (Some(x), Some(y)) = (goal(above), goal(below)) else { return };
        let own = |place: usize| self.bounds.get(place).copied();
        let (Some(of_x), Some(of_y)) = (own(above), own(below)) else { return };
        let repaired = ratio::repair((x, y), &ratio.bounds, (of_x, of_y));
        if repaired.is_none() {
            self.condition(Condition::RatioConstraintViolated);
        }
        let roles = [(above, x, repaired.map(|(x, _)| x), of_x), (below, y, repaired.map(|(_, y)| y), of_y)];
        for (place, before, after, own) in roles {
            let Some(role) = self.plan.roles.get_mut(place) else { continue };
            match after {
                Some(after) if after != before => {
                    role.goal = after;
                    role.reasons.push(Reason::Ratio);
                }
                Some(_) => {}
                None => {
                    // Bounds go before the ratio: what waits has to have a pod.
                    role.goal = role.current.clamp(own.low, own.high);
                    role.reasons.push(Reason::RatioUnsatisfied);
                }
            }
        }
    }

    /// What to ask for now: roles shrink when what the others grow by is ready. Rules are about one role
    /// each, and wait for nobody.
    fn settle(mut self, at_once: bool, history: &mut History) -> Plan {
        history.growing.resize(self.plan.roles.len(), None);
        for (role, growing) in self.plan.roles.iter().zip(&mut history.growing) {
            if role.goal > role.current {
                *growing = Some(role.goal);
            } else if growing.is_some_and(|grown| role.ready >= grown.min(role.goal)) {
                *growing = None;
            }
        }
        let growing = history.growing.iter().flatten().count();
        for (role, grows) in self.plan.roles.iter_mut().zip(&history.growing) {
            role.desired = role.goal;
            let others_grow = growing > usize::from(grows.is_some());
            if !at_once && role.goal < role.current && others_grow {
                role.desired = role.current;
                role.reasons.push(Reason::GrowFirst);
            }
        }
        // Requests wait: what only their floor brought about says so.
        for (role, own) in self.plan.roles.iter_mut().zip(&self.policy.roles) {
            let is_floor = self.inputs.waiting > 0 && role.goal == 1 && own.range.min == 0;
            if is_floor && role.current == 0 && !role.reasons.contains(&Reason::Waiting) {
                role.reasons.push(Reason::Waiting);
            }
        }
        self.plan.total = self.plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.desired));
        let changes = self.plan.roles.iter().any(|role| role.desired != role.current);
        self.plan.state = if changes { State::Scale } else { State::Idle };
        self.plan.conditions.sort_unstable();
        self.plan
    }
}
