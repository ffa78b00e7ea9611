//! One tick: computes a plan from inputs.

use std::time::Duration;

use super::amount::Amount;
use super::inputs::{Inputs, Readings};
use super::plan::{Condition, MetricStage, Plan, Reason, RolePlan, RuleStage};
use super::policy::{Policy, QUEUE_DEPTH, Sizing, Target, Total};
use super::ratio::{self, RatioBounds};
use super::rollout;
use super::rules::{self, Rule, RuleMetric};
use super::share::Bounds;
use super::size::{self, MeasuredMetric};

mod growth;
mod history;
mod settle;
mod share;

pub use growth::{Growth, Surge};
pub use history::{Change, History};

/// Plans the pods of each role. `now` counts from any fixed point in time.
pub fn tick(inputs: &Inputs, policy: &Policy, history: &mut History, now: Duration) -> Plan {
    let serving = history.serving(inputs, policy, now);
    let surplus = history.surplus(inputs);
    let mut tick = Tick::new(inputs, policy, &serving, &mut history.growth, &surplus);
    if matches!(policy.sizing, Sizing::Kept) {
        tick.counted = history.kept_sizes(&tick.plan.roles).unwrap_or(tick.counted);
    }
    match &policy.sizing {
        Sizing::Rules(rules) => tick.by_rules(rules, history, now),
        Sizing::Total(total) => {
            let (size, panics) = tick.group_size(total, history, now);
            tick.share(size, panics, total.cost_expansion);
        }
        Sizing::Kept if policy.coordination.is_on => {
            // Without pressure metrics none can be missing.
            let names_none = policy.coordination.pressure.iter().all(Vec::is_empty);
            let size = names_none.then(|| tick.within_bounds(tick.counted()));
            tick.share(size, false, DEFAULT_EXPANSION);
        }
        Sizing::Kept => tick.clamp_roles(),
    }
    tick.keep_ratio();
    let blind = tick.blind.clone();
    let unplaced = history.rollout.unplaced();
    let mut plan = tick.settle(matches!(policy.sizing, Sizing::Rules(_)), &mut history.growth, unplaced, now);
    plan.roles.iter_mut().zip(&blind).for_each(|(role, blind)| role.is_blind = *blind);
    rollout::roll(inputs, policy, &blind, &mut plan, &mut history.rollout, now);
    keep_last(&mut plan, inputs, &serving);
    history.note_shrinking(policy, &plan);
    history.note_size(policy, &plan);
    history.note_changes(policy, &mut plan, &blind);
    plan
}

/// Keeps the last pod of a serving role, whatever is trimmed. An unready one may still have requests.
fn keep_last(plan: &mut Plan, inputs: &Inputs, serving: &[bool]) {
    for (place, (role, serves)) in plan.roles.iter_mut().zip(serving).enumerate() {
        let responds = role.ready > 0 || inputs.work.get(place).is_some_and(|work| work.is_busy);
        if *serves && responds && role.current > 0 && role.admitted.min(role.write) == 0 {
            (role.admitted, role.write) = (role.admitted.max(1), role.write.max(1));
            role.reasons.push(Reason::Serving);
        }
    }
}

/// Default growth of cost blocks.
const DEFAULT_EXPANSION: u32 = 200;

struct Tick<'a> {
    inputs: &'a Inputs,
    policy: &'a Policy,
    readings: Readings,
    /// Bounds of the roles: at least one pod while requests wait or the role serves.
    bounds: Vec<Bounds>,
    /// Pods of each role, without those that stand in for unready ones of others.
    counted: Vec<u32>,
    /// Surplus pods not yet chosen.
    unnamed: u32,
    /// Roles with unknown metrics: they lose no pod, and grow only to their minimum or for a waiting request.
    blind: Vec<bool>,
    /// Upper limit of the group's size while its metrics are unknown.
    most: Option<u32>,
    plan: Plan,
}

impl<'a> Tick<'a> {
    fn new(
        inputs: &'a Inputs,
        policy: &'a Policy,
        serving: &[bool],
        growth: &mut Growth,
        surplus: &[u32],
    ) -> Self {
        let readings = Readings::of(inputs, policy.roles.len(), policy.signals.len());
        let current = |role: usize| inputs.replicas.get(role).copied().unwrap_or_default();
        let bounds = policy.roles.iter().enumerate().map(|(place, role)| {
            let serves = serving.get(place) == Some(&true) && current(place) > 0;
            let floor = u32::from(inputs.waiting > 0 || serves);
            Bounds { low: role.range.min.max(floor).min(role.range.max), high: role.range.max }
        });
        let roles = policy.roles.iter().enumerate().map(|(index, role)| {
            let (current, ready) = (current(index), readings.ready(index));
            RolePlan { name: role.name.clone(), current, ready, goal: current, ..RolePlan::default() }
        });
        let mut plan = Plan { roles: roles.collect(), ..Plan::default() };
        plan.stages.current = plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.current));
        // What is about to go counts as gone: a size that is on its way is not undone because of its tolerance
        // while only some of its pods have left.
        let surplus = |place: usize| surplus.get(place).copied().unwrap_or_default();
        let left = |(place, role): (usize, &RolePlan)| {
            role.current.saturating_sub(readings.leaving(place).max(surplus(place)))
        };
        let unnamed = (0..policy.roles.len())
            .fold(0u32, |sum, place| sum + surplus(place).saturating_sub(readings.leaving(place)));
        let left: Vec<u32> = plan.roles.iter().enumerate().map(left).collect();
        growth.begin(&plan.roles);
        let counted = growth.counted(&plan.roles).into_iter().zip(left).map(|(all, left)| all.min(left));
        let counted = counted.collect();
        let blind = vec![false; policy.roles.len()];
        Self { inputs, policy, bounds: bounds.collect(), counted, unnamed, blind, readings, most: None, plan }
    }

    /// Counted size of the group.
    fn counted(&self) -> u32 {
        self.counted.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Counted size, at most the size asked for before.
    fn sized(&self) -> u32 {
        self.counted().min(self.most.unwrap_or(u32::MAX))
    }

    fn within_bounds(&self, size: u32) -> u32 {
        let sum = |of: fn(&Bounds) -> u32| self.bounds.iter().fold(0u32, |sum, b| sum.saturating_add(of(b)));
        size.clamp(sum(|b| b.low), sum(|b| b.high))
    }

    /// Adds a reason to all roles.
    fn add_reason(&mut self, reason: Reason) {
        self.plan.roles.iter_mut().for_each(|role| role.reasons.push(reason));
    }

    fn condition(&mut self, condition: Condition) {
        if !self.plan.conditions.contains(&condition) {
            self.plan.conditions.push(condition);
        }
    }

    /// Size of the group, if known, and whether it panics.
    fn group_size(&mut self, total: &Total, history: &mut History, now: Duration) -> (Option<u32>, bool) {
        let current = self.counted();
        let ranges = || self.policy.roles.iter().map(|role| role.range);
        let least = ranges().fold(0u32, |sum, range| sum.saturating_add(range.min));
        let most = ranges().fold(0u32, |sum, range| sum.saturating_add(range.max));
        self.plan.stages.metrics =
            total.metrics.iter().map(|metric| self.asked(metric, total.tolerance)).collect();
        let asked = self.plan.stages.metrics.iter().filter_map(|metric| metric.asks).max();
        let Some(asked) = asked else {
            let there = self.plan.stages.current;
            self.most = history.recommended_size(there);
            let current = self.sized();
            if current >= least {
                self.is_stale();
            }
            self.policy.behavior.record_current(&mut history.past, current, now);
            // Panic lasts its time, with or without metrics.
            let panics = self.policy.behavior.still_panics(&history.past, now);
            if panics {
                self.condition(Condition::Panic);
            }
            let size = self.within_bounds(current).max(current);
            self.plan.stages.recommended = size;
            self.plan.stages.limited = size;
            return (None, panics);
        };
        // An unknown metric may ask for more than the known ones.
        let lacks_one = self.plan.stages.metrics.iter().any(|metric| metric.asks.is_none());
        let asked = if lacks_one && asked < current {
            self.is_stale();
            current
        } else {
            asked
        };
        // Bounds apply first, whatever the metrics.
        let recommended = if current < least {
            self.add_reason(Reason::Min);
            least
        } else if current > most {
            self.add_reason(Reason::Max);
            most
        } else {
            let wanted = asked.clamp(least, most);
            if asked == current {
                self.add_reason(Reason::Tolerance);
            } else if wanted != current {
                self.add_reason(Reason::Metric);
            }
            if asked < least {
                self.add_reason(Reason::Min);
            } else if asked > most {
                self.add_reason(Reason::Max);
            }
            wanted
        };
        let limited = self.policy.behavior.limit(&mut history.past, current, recommended, now);
        if limited.panics {
            self.condition(Condition::Panic);
        }
        let size = self.within_bounds(limited.total);
        if size == limited.total {
            limited.reasons.iter().for_each(|reason| self.add_reason(*reason));
        } else {
            // Bounds override limits and windows, which then are no reasons.
            history.past.correct(size);
            if size > least && size > limited.total {
                self.add_reason(self.floor());
            }
        }
        let stages = &mut self.plan.stages;
        (stages.recommended, stages.limited) = (recommended, limited.total);
        (Some(size), limited.panics)
    }

    /// Reason for the pod of a role with a minimum of 0.
    fn floor(&self) -> Reason {
        if self.inputs.waiting > 0 { Reason::Waiting } else { Reason::Serving }
    }

    /// Records in the plan that a sizing metric is unknown.
    fn is_stale(&mut self) {
        self.add_reason(Reason::StaleData);
        self.condition(Condition::StaleData);
    }

    /// Value of a metric, and the pods that it asks for.
    fn asked(&self, metric: &Target, tolerance: u32) -> MetricStage {
        let current = self.counted();
        let name = metric.name.clone();
        if let Some(value) = self.inputs.external.get(&metric.name) {
            let value = Amount::of(*value);
            let asks = value.map(|value| size::external(value, metric.target, current, tolerance));
            return MetricStage { name, value: value.map(Amount::as_f64), asks };
        }
        let Some(signal) = metric.signal else {
            // A query without a result.
            return MetricStage { name, value: None, asks: None };
        };
        let reading = self.readings.of_group(signal);
        let is_queue = metric.name == QUEUE_DEPTH;
        let waiting = if is_queue { Amount::whole(self.inputs.waiting) } else { Amount::ZERO };
        let measured = MeasuredMetric {
            sum: reading.sum + waiting,
            // Remaining pods take over the load of draining ones.
            count: reading.count - self.unnamed.min(reading.count.saturating_sub(1)),
            missing: self.readings.all_ready() - reading.count,
            unready: self.readings.all_unready(),
        };
        let mut asks = size::per_pod(&measured, metric.target, current, tolerance);
        if reading.count == 0 {
            // Waiting requests may ask for more; their absence doesn't imply idle pods.
            asks = asks.filter(|asks| *asks > current);
        }
        if is_queue && self.inputs.pods.is_empty() && current == 0 {
            // Without pods the only queue is Usher's own, which is known.
            asks = asks.or(Some(0));
        }
        MetricStage { name, value: reading.sum.mean(reading.count as usize).map(Amount::as_f64), asks }
    }

    fn clamp_roles(&mut self) {
        for ((role, own), blind) in self.plan.roles.iter_mut().zip(&self.policy.roles).zip(&self.blind) {
            role.goal =
                role.current.clamp(own.range.min, own.range.max.max(if *blind { role.current } else { 0 }));
            if role.goal != role.current {
                role.reasons.push(if role.goal > role.current { Reason::Min } else { Reason::Max });
            }
        }
        let floor = self.floor();
        for (role, b) in self.plan.roles.iter_mut().zip(&self.bounds) {
            if role.goal < b.low {
                role.goal = b.low;
                role.reasons.push(floor);
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
                // During a rollout a rule adds to pending pods.
                let on_its_way = history.rollout.pending(place, role.current).unwrap_or(role.current);
                on_its_way.clamp(range.min, range.max)
            })
            .collect();
        let before = sizes.clone();
        let ruled = rules::apply(rules, self.inputs, &mut sizes, &history.cooldowns, now);
        // If its step isn't written, the firing is reverted.
        ruled.fired.iter().for_each(|rule| history.cooldowns.start(*rule, now));
        self.plan.fired =
            ruled.fired.iter().filter_map(|rule| rules.get(*rule)).map(|rule| rule.name.clone()).collect();
        for (place, blind) in self.blind.iter_mut().enumerate() {
            let numbers = || {
                let own = rules.iter().zip(&ruled.stages).filter(|(rule, _)| rule.role == place);
                own.filter(|(rule, _)| rule.number != RuleMetric::Waiting)
            };
            *blind = numbers().next().is_some() && numbers().all(|(_, stage)| stage.value.is_none());
        }
        self.blind_without_rules(rules, &ruled.stages);
        self.plan.stages.rules = ruled.stages;
        // Reasons of bounds come before those of rules.
        self.clamp_roles();
        let floor = self.floor();
        let mut is_stale = false;
        for (role, blind) in self.plan.roles.iter_mut().zip(&self.blind) {
            if *blind && role.current > 0 && role.goal == role.current {
                role.reasons.push(Reason::StaleData);
                is_stale = true;
            }
        }
        if is_stale {
            self.condition(Condition::StaleData);
        }
        for (place, role) in self.plan.roles.iter_mut().enumerate() {
            let (Some(size), Some(before), Some(b)) =
                (sizes.get(place), before.get(place), self.bounds.get(place))
            else {
                continue;
            };
            if size != before {
                role.goal = (*size).max(b.low);
                role.reasons.push(Reason::Rule);
                if role.goal > *size {
                    role.reasons.push(floor);
                }
            } else if self.policy.rollout.is_some() && self.blind.get(place) != Some(&true) {
                // Earlier requests continue in steps.
                role.goal = (*size).max(b.low);
            }
        }
        self.plan.stages.size = self.plan.roles.iter().fold(0, |sum, role| sum.saturating_add(role.goal));
    }

    /// Marks roles without a rule as unknown: each changes with its partner only, and none while no rule has
    /// a value. Roles at zero pods can't have values and are ignored.
    fn blind_without_rules(&mut self, rules: &[Rule], stages: &[RuleStage]) {
        let has_pods = |place: usize| self.plan.roles.get(place).is_some_and(|role| role.current > 0);
        let numbers = || {
            let all = rules.iter().zip(stages);
            all.filter(|(rule, _)| rule.number != RuleMetric::Waiting && has_pods(rule.role))
        };
        let is_outage = numbers().next().is_some() && numbers().all(|(_, stage)| stage.value.is_none());
        let partner = |place: usize| match &self.policy.ratio {
            Some(ratio) if ratio.numerator == place => Some(ratio.denominator),
            Some(ratio) if ratio.denominator == place => Some(ratio.numerator),
            _ => None,
        };
        let has_rule = |place: usize| rules.iter().any(|rule| rule.role == place);
        let is_blind =
            |place: usize| is_outage || partner(place).is_some_and(|of| has_pods(of) && self.is_blind(of));
        let blind: Vec<bool> = (self.blind.iter().enumerate())
            .map(|(place, blind)| if has_rule(place) { *blind } else { is_blind(place) })
            .collect();
        self.blind = blind;
    }

    /// Enforces the ratio of two roles, whatever the group's size.
    fn keep_ratio(&mut self) {
        let Some(ratio) = self.policy.ratio else { return };
        let (above, below) = (ratio.numerator, ratio.denominator);
        let goal = |place: usize| self.plan.roles.get(place).map(|role| role.goal);
        let (Some(x), Some(y)) = (goal(above), goal(below)) else { return };
        let own = |place: usize| self.bounds.get(place).copied();
        let (Some(of_x), Some(of_y)) = (own(above), own(below)) else { return };
        if [above, below].into_iter().any(|place| self.is_blind(place)) {
            return self.keep_ratio_partly((above, x, of_x), (below, y, of_y), &ratio.bounds);
        }
        let repaired = ratio::repair((x, y), &ratio.bounds, (of_x, of_y));
        if let Some((next_x, next_y)) = repaired {
            self.mend(above, next_x);
            return self.mend(below, next_y);
        }
        self.condition(Condition::RatioConstraintViolated);
        for (place, own) in [(above, of_x), (below, of_y)] {
            if let Some(role) = self.plan.roles.get_mut(place) {
                // Bounds override the ratio: waiting requests need a pod.
                role.goal = role.current.clamp(own.low, own.high);
                role.reasons.push(Reason::RatioUnsatisfied);
            }
        }
    }

    /// Enforces the ratio while a metric of one of the two roles is missing: it removes nothing, and adds
    /// only if a minimum or a metric of the other would break the ratio. A role shrinking by its metric keeps
    /// what the other needs.
    fn keep_ratio_partly(
        &mut self,
        (above, x, of_x): (usize, u32, Bounds),
        (below, y, of_y): (usize, u32, Bounds),
        ratio: &RatioBounds,
    ) {
        let current = |place: usize| self.plan.roles.get(place).map_or(0, |role| role.current);
        let most = |place: usize, own: Bounds, goal: u32| current(place).min(own.high).max(goal);
        // Fewer of one role can only break one of the two bounds.
        let (most_x, most_y) = (most(above, of_x, x), most(below, of_y, y));
        let kept_x = (x..most_x).find(|x| !ratio.is_below(*x, y)).unwrap_or(most_x);
        let kept_y = (y..most_y).find(|y| !ratio.is_above(kept_x, *y)).unwrap_or(most_y);
        let grows = |place: usize, goal: u32| !self.is_blind(place) && goal > current(place);
        let adds = ratio.hold(current(above), current(below)) || grows(above, x) || grows(below, y);
        // A role growing by a metric may grow less.
        let kept = |place: usize, own: Bounds, goal: u32| {
            let least = if grows(place, goal) { current(place) } else { goal };
            Bounds { low: own.low.max(least), high: own.high.max(goal) }
        };
        let within = (kept(above, of_x, kept_x), kept(below, of_y, kept_y));
        let repaired =
            if adds { ratio::repair((kept_x, kept_y), ratio, within) } else { Some((kept_x, kept_y)) };
        let (next_x, next_y) = repaired.unwrap_or((kept_x, kept_y));
        self.mend(above, next_x);
        self.mend(below, next_y);
        if repaired.is_none() {
            self.condition(Condition::RatioConstraintViolated);
            // The larger role of the two grows no further.
            let is_too_many = [ratio.is_above(next_x, next_y), ratio.is_below(next_x, next_y)];
            for ((place, own), is_too_many) in [(above, of_x), (below, of_y)].into_iter().zip(is_too_many) {
                let may_grow = self.is_blind(place) || !is_too_many;
                let Some(role) = self.plan.roles.get_mut(place) else { continue };
                if !may_grow && role.goal > role.current {
                    role.goal = role.current.max(own.low);
                }
                role.reasons.push(Reason::RatioUnsatisfied);
            }
        }
    }

    /// Returns `true` if no known metric could change a role.
    fn is_blind(&self, place: usize) -> bool {
        self.blind.get(place) == Some(&true)
    }

    /// Gives a role the pods that a ratio asks for.
    fn mend(&mut self, place: usize, pods: u32) {
        if let Some(role) = self.plan.roles.get_mut(place).filter(|role| role.goal != pods) {
            role.goal = pods;
            role.reasons.push(Reason::Ratio);
        }
    }
}
