//! Rules: a metric, a threshold and a step, as in Backend.AI.

use std::time::Duration;

use super::amount::Amount;
use super::inputs::Inputs;
use super::plan::{RuleOutcome, RuleStage};
use super::policy::Range;

pub use super::policy::spec::{Aggregation, Comparator};

/// A rule that changes a role step by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name, unique in the policy.
    pub name: String,
    /// Index of the role that it changes.
    pub role: usize,
    /// Metric.
    pub number: RuleMetric,
    /// Condition and action.
    pub test: RuleTest,
    /// Time without another firing.
    pub cooldown: Duration,
    /// Range of pods that it leaves.
    pub range: Range,
    /// `true` if a step beyond a bound is cut to the bound.
    pub clamps: bool,
}

/// Metric of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleMetric {
    /// Aggregate over the ready pods of the rule's role.
    OfPods {
        /// Index of the signal among the policy's.
        signal: usize,
        /// Aggregation of the values.
        aggregation: Aggregation,
        /// Least fraction of the ready pods with a value, in billionths.
        coverage: u32,
    },
    /// Waiting requests.
    Waiting,
    /// Result of a Prometheus query.
    External(String),
}

/// Condition and action of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RuleTest {
    /// The metric is compared with a threshold.
    Compare {
        /// Comparison with the threshold.
        comparator: Comparator,
        /// Threshold.
        threshold: Amount,
        /// Pods to add, or to remove when negative; not 0.
        step: i32,
    },
    /// The metric leaves a range.
    Range {
        /// Below this, pods are removed.
        min: Option<Amount>,
        /// Above this, pods are added.
        max: Option<Amount>,
        /// Pods to add or remove; above 0.
        step: u32,
    },
}

impl RuleTest {
    /// Returns `true` if it adds pods for some values.
    fn adds(&self) -> bool {
        match *self {
            Self::Compare { step, .. } => step > 0,
            Self::Range { max, .. } => max.is_some(),
        }
    }

    /// Pods to add (or to remove) for a value; `None` if the condition doesn't hold.
    fn step(&self, value: Amount) -> Option<i64> {
        match *self {
            Self::Compare { comparator, threshold, step } => {
                let fires = match comparator {
                    Comparator::LessThan => value < threshold,
                    Comparator::LessThanOrEqual => value <= threshold,
                    Comparator::GreaterThan => value > threshold,
                    Comparator::GreaterThanOrEqual => value >= threshold,
                };
                fires.then_some(i64::from(step))
            }
            Self::Range { min, max, step } => {
                if max.is_some_and(|max| value > max) {
                    Some(i64::from(step))
                } else {
                    min.is_some_and(|min| value < min).then_some(-i64::from(step))
                }
            }
        }
    }
}

/// Last firing of each rule, by index.
#[derive(Clone, Debug, Default)]
pub struct Cooldowns {
    rules: Vec<Fired>,
    /// Time for which fired rules have been known, if earlier ones are unknown.
    unknown: Option<Ago>,
}

/// Age of an event at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ago {
    ago: Duration,
    at: Duration,
}

impl Ago {
    /// Age at another time.
    fn at(self, now: Duration) -> Duration {
        self.ago.saturating_add(now.saturating_sub(self.at))
    }
}

/// Last two firings of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fired {
    last: Option<Duration>,
    before: Option<Duration>,
    /// Age of a firing elsewhere, when it became known here.
    resumed: Option<Ago>,
}

impl Cooldowns {
    fn of(&mut self, rule: usize) -> Option<&mut Fired> {
        if self.rules.len() <= rule {
            self.rules.resize(rule + 1, Fired::default());
        }
        self.rules.get_mut(rule)
    }

    /// Records that a rule fired in another replica `ago` before `now`. The latest firing counts.
    pub fn resume(&mut self, rule: usize, ago: Duration, now: Duration) {
        if let Some(fired) = self.of(rule) {
            let known = fired.resumed.map_or(ago, |known| known.at(now).min(ago));
            fired.resumed = Some(Ago { ago: known, at: now });
        }
    }

    /// Records that earlier firings, more than `ago` before `now`, are unknown: rules that remove pods cool
    /// down as if they had fired then.
    pub fn begin_unknown(&mut self, ago: Duration, now: Duration) {
        self.unknown = Some(Ago { ago, at: now });
    }

    /// Time since then; `None`: firings are known.
    pub fn unknown_for(&self, now: Duration) -> Option<Duration> {
        self.unknown.map(|unknown| unknown.at(now))
    }

    /// Records a firing.
    pub fn start(&mut self, rule: usize, now: Duration) {
        if let Some(fired) = self.of(rule) {
            *fired = Fired { last: Some(now), before: fired.last, ..*fired };
        }
    }

    /// Reverts the last firing of a rule, as its step was not written.
    pub fn take_back(&mut self, rule: usize) {
        if let Some(fired) = self.rules.get_mut(rule) {
            *fired = Fired { last: fired.before, before: None, ..*fired };
        }
    }

    /// Time since a rule fired last, here or in another replica.
    pub fn ago(&self, rule: usize, now: Duration) -> Option<Duration> {
        let fired = self.rules.get(rule)?;
        let resumed = fired.resumed.map(|resumed| resumed.at(now));
        let own = fired.last.map(|at| now.saturating_sub(at));
        own.into_iter().chain(resumed).min()
    }

    /// Returns `true` if a rule fired within its cooldown, or may have and `removes` pods.
    fn holds(&self, rule: usize, cooldown: Duration, removes: bool, now: Duration) -> bool {
        let unknown = self.unknown_for(now).filter(|_| removes);
        self.ago(rule, now).into_iter().chain(unknown).any(|ago| ago < cooldown)
    }

    /// Last firing of a rule here.
    pub fn last(&self, rule: usize) -> Option<Duration> {
        self.rules.get(rule).and_then(|fired| fired.last)
    }
}

/// Result of the rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleResults {
    /// Fired rules, by index, in order.
    pub fired: Vec<usize>,
    /// Outcome of each rule, in the policy's order.
    pub stages: Vec<RuleStage>,
}

/// Evaluates all rules in order, and changes `sizes`. At most one fires per role: the first that adds pods,
/// or the first that removes some if none adds any.
pub fn apply(
    rules: &[Rule],
    inputs: &Inputs,
    sizes: &mut [u32],
    cooldowns: &Cooldowns,
    now: Duration,
) -> RuleResults {
    let values: Vec<Result<Amount, RuleOutcome>> = rules.iter().map(|rule| value(rule, inputs)).collect();
    // Without its number a rule may be the one that adds pods.
    let may_grow = |role: usize| {
        rules.iter().zip(&values).any(|(rule, value)| rule.role == role && rule.test.adds() && value.is_err())
    };
    let verdict = |(index, rule): (usize, &Rule)| {
        let step = rule.test.step(values[index]?).ok_or(RuleOutcome::Quiet)?;
        if step < 0 {
            check_data(rule, inputs)?;
            if may_grow(rule.role) {
                return Err(RuleOutcome::NoData);
            }
        }
        if cooldowns.holds(index, rule.cooldown, step < 0, now) {
            Err(RuleOutcome::Cooldown)
        } else {
            Ok(step)
        }
    };
    let verdicts: Vec<Result<i64, RuleOutcome>> = rules.iter().enumerate().map(verdict).collect();
    let mut outcomes: Vec<RuleOutcome> =
        verdicts.iter().map(|verdict| verdict.err().unwrap_or(RuleOutcome::Lost)).collect();
    let mut fired = Vec::new();
    let mut changed = vec![false; sizes.len()];
    // Scale-up first: missing pods hurt more than surplus ones.
    for grows in [true, false] {
        for (index, (rule, verdict)) in rules.iter().zip(&verdicts).enumerate() {
            let (Ok(step), Some(size)) = (verdict, sizes.get_mut(rule.role)) else { continue };
            if (*step > 0) != grows || changed[rule.role] {
                continue;
            }
            match target(*size, *step, bounds(rule, inputs), rule.clamps) {
                None => outcomes[index] = RuleOutcome::Bound,
                Some(target) => {
                    *size = target;
                    changed[rule.role] = true;
                    outcomes[index] = RuleOutcome::Fired;
                    fired.push(index);
                }
            }
        }
    }
    let stages = rules
        .iter()
        .zip(&values)
        .zip(outcomes)
        .map(|((rule, value), outcome)| RuleStage {
            name: rule.name.clone(),
            value: value.ok().map(Amount::as_f64),
            outcome,
        })
        .collect();
    RuleResults { fired, stages }
}

/// Bounds of a rule now: at least one pod while requests wait.
fn bounds(rule: &Rule, inputs: &Inputs) -> Range {
    let Range { min, max } = rule.range;
    Range { min: min.max(u32::from(inputs.waiting > 0)).min(max), max }
}

/// Size after a step from `size`; `None` if it would leave the bounds, or with `clamps`, if the role is at
/// its bound. Never against the step.
fn target(size: u32, step: i64, within: Range, clamps: bool) -> Option<u32> {
    let Range { min, max } = within;
    let wanted = (i64::from(size) + step).max(0);
    let target = if clamps {
        wanted.clamp(i64::from(min), i64::from(max))
    } else if (i64::from(min)..=i64::from(max)).contains(&wanted) {
        wanted
    } else {
        return None;
    };
    let is_onward = (target - i64::from(size)).signum() == step.signum();
    if is_onward { u32::try_from(target).ok() } else { None }
}

/// Value of a rule's metric.
fn value(rule: &Rule, inputs: &Inputs) -> Result<Amount, RuleOutcome> {
    match &rule.number {
        RuleMetric::Waiting => Ok(Amount::whole(inputs.waiting)),
        RuleMetric::External(name) => {
            inputs.external.get(name).copied().and_then(Amount::of).ok_or(RuleOutcome::NoData)
        }
        RuleMetric::OfPods { signal, aggregation, coverage } => {
            let ready = inputs.pods.iter().filter(|pod| pod.role == rule.role && pod.is_ready);
            let mut all = 0u64;
            let mut values: Vec<Amount> = Vec::new();
            for pod in ready {
                all += 1;
                values.extend(pod.value(*signal));
            }
            if values.is_empty() {
                return Err(RuleOutcome::NoData);
            }
            if (values.len() as u64) * 1_000_000_000 < all * u64::from(*coverage) {
                return Err(RuleOutcome::Coverage);
            }
            Ok(aggregate(*aggregation, &mut values))
        }
    }
}

/// Checks that a rule that removes pods has enough data: values of all ready pods, unless the rule allows
/// fewer, and all waiting requests.
fn check_data(rule: &Rule, inputs: &Inputs) -> Result<(), RuleOutcome> {
    match rule.number {
        RuleMetric::Waiting if inputs.is_settling => Err(RuleOutcome::NoData),
        RuleMetric::OfPods { signal, coverage: 0, .. } => {
            let mut ready = inputs.pods.iter().filter(|pod| pod.role == rule.role && pod.is_ready);
            if ready.all(|pod| pod.value(signal).is_some()) { Ok(()) } else { Err(RuleOutcome::Coverage) }
        }
        _ => Ok(()),
    }
}

/// Aggregates values; zero without any.
fn aggregate(aggregation: Aggregation, values: &mut [Amount]) -> Amount {
    let sum = || values.iter().copied().sum::<Amount>();
    match aggregation {
        Aggregation::Sum => sum(),
        Aggregation::Avg => sum().mean(values.len()).unwrap_or_default(),
        Aggregation::Max => values.iter().copied().max().unwrap_or_default(),
        Aggregation::P95 => {
            values.sort_unstable();
            // The nearest rank: of 20 numbers the 19th.
            let rank = (values.len() * 95).div_ceil(100);
            values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
