//! Rules: a number, a threshold, a step, as Backend.AI's.

use std::time::Duration;

use super::amount::Amount;
use super::inputs::Inputs;
use super::plan::{RuleOutcome, RuleStage};
use super::policy::Range;

pub use super::policy::spec::{Aggregation, Comparator};

/// A rule that changes a role step by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, which no other rule of the policy has.
    pub name: String,
    /// The role that it changes, by its place in the policy.
    pub role: usize,
    /// Its number.
    pub number: Number,
    /// Condition and action.
    pub test: Test,
    /// Time for which it doesn't fire again.
    pub cooldown: Duration,
    /// Between how many pods it leaves.
    pub range: Range,
    /// `true` if it goes as far as a bound, where its step would leave it.
    pub clamps: bool,
}

/// The number of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// Aggregate over the ready pods of the rule's role.
    OfPods {
        /// Index of the signal among the policy's.
        signal: usize,
        /// Aggregation of them.
        aggregation: Aggregation,
        /// The least part of the ready pods that has to have it, in billionths.
        coverage: u32,
    },
    /// Number of waiting requests.
    Waiting,
    /// Value of a Prometheus query.
    External(String),
}

/// Condition and action of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Test {
    /// The metric is compared with a threshold.
    Compare {
        /// Comparison with the threshold.
        comparator: Comparator,
        /// With what.
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
        /// Number of pods; above 0.
        step: u32,
    },
}

impl Test {
    /// Returns `true` if it adds pods for some values.
    fn adds(&self) -> bool {
        match *self {
            Self::Compare { step, .. } => step > 0,
            Self::Range { max, .. } => max.is_some(),
        }
    }

    /// The pods to add (or to remove) for a value; none when it is on the quiet side.
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

/// Last firing of each rule, by its place in the policy.
#[derive(Clone, Debug, Default)]
pub struct Cooldowns {
    rules: Vec<Fired>,
    /// For how long it has been known which rules fire, where it isn't known which did before.
    unknown: Option<Ago>,
}

/// Event with its age at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ago {
    ago: Duration,
    at: Duration,
}

impl Ago {
    /// Time since then, at another time.
    fn at(self, now: Duration) -> Duration {
        self.ago.saturating_add(now.saturating_sub(self.at))
    }
}

/// Last two firings of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fired {
    last: Option<Duration>,
    before: Option<Duration>,
    /// Time since it had fired when it began to be known here.
    resumed: Option<Ago>,
}

impl Cooldowns {
    fn of(&mut self, rule: usize) -> Option<&mut Fired> {
        if self.rules.len() <= rule {
            self.rules.resize(rule + 1, Fired::default());
        }
        self.rules.get_mut(rule)
    }

    /// Notes that a rule fired so long before `now` in another replica. Of several times the last one counts.
    pub fn resume(&mut self, rule: usize, ago: Duration, now: Duration) {
        if let Some(fired) = self.of(rule) {
            let known = fired.resumed.map_or(ago, |known| known.at(now).min(ago));
            fired.resumed = Some(Ago { ago: known, at: now });
        }
    }

    /// Notes that rules may have fired more than `ago` before `now` unseen: those that remove pods rest as
    /// if they had fired then.
    pub fn begin_unknown(&mut self, ago: Duration, now: Duration) {
        self.unknown = Some(Ago { ago, at: now });
    }

    /// Time since then; `None`: it is known which fired.
    pub fn unknown_for(&self, now: Duration) -> Option<Duration> {
        self.unknown.map(|unknown| unknown.at(now))
    }

    /// A rule fired.
    pub fn start(&mut self, rule: usize, now: Duration) {
        if let Some(fired) = self.of(rule) {
            *fired = Fired { last: Some(now), before: fired.last, ..*fired };
        }
    }

    /// Takes back the last firing of a rule, as its step was not done: it is as if it hadn't fired.
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

    /// Returns `true` if a rule fired less than its cooldown ago, or may have and `removes` pods.
    fn holds(&self, rule: usize, cooldown: Duration, removes: bool, now: Duration) -> bool {
        let unknown = self.unknown_for(now).filter(|_| removes);
        self.ago(rule, now).into_iter().chain(unknown).any(|ago| ago < cooldown)
    }

    /// Last firing of a rule.
    pub fn last(&self, rule: usize) -> Option<Duration> {
        self.rules.get(rule).and_then(|fired| fired.last)
    }
}

/// Result of applying the rules to the roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ruled {
    /// The rules that fired, by place, in the order in which they did.
    pub fired: Vec<usize>,
    /// Outcome of each rule, in the order of the policy.
    pub stages: Vec<RuleStage>,
}

/// Looks at all rules, in their order, and changes `sizes`. At most one fires for a role: the first
/// that adds pods, or the first that removes them where none adds any.
pub fn apply(
    rules: &[Rule],
    inputs: &Inputs,
    sizes: &mut [u32],
    cooldowns: &Cooldowns,
    now: Duration,
) -> Ruled {
    let values: Vec<Result<Amount, RuleOutcome>> = rules.iter().map(|rule| value(rule, inputs)).collect();
    // Without its number a rule may be the one that adds pods.
    let may_grow = |role: usize| {
        rules.iter().zip(&values).any(|(rule, value)| rule.role == role && rule.test.adds() && value.is_err())
    };
    let verdict = |(index, rule): (usize, &Rule)| {
        let step = rule.test.step(values[index]?).ok_or(RuleOutcome::Quiet)?;
        if step < 0 {
            knows_all(rule, inputs)?;
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
    // Up before down: what is missing hurts more than what is too much.
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
    Ruled { fired, stages }
}

/// Between how many pods a rule leaves a role now: one at least while requests wait.
fn bounds(rule: &Rule, inputs: &Inputs) -> Range {
    let Range { min, max } = rule.range;
    Range { min: min.max(u32::from(inputs.waiting > 0)).min(max), max }
}

/// Size that a step leads to from `size`; none when it would leave the bounds, or, where it goes as
/// far as these (`clamps`), when there is nowhere to go. Never against the step.
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

/// The value that a rule compares.
fn value(rule: &Rule, inputs: &Inputs) -> Result<Amount, RuleOutcome> {
    match &rule.number {
        Number::Waiting => Ok(Amount::whole(inputs.waiting)),
        Number::External(name) => {
            inputs.external.get(name).copied().and_then(Amount::of).ok_or(RuleOutcome::NoData)
        }
        Number::OfPods { signal, aggregation, coverage } => {
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

/// Checks that a rule that removes pods knows enough for that: numbers of all ready pods, unless the rule
/// says that fewer are enough, and all requests that wait.
fn knows_all(rule: &Rule, inputs: &Inputs) -> Result<(), RuleOutcome> {
    match rule.number {
        Number::Waiting if inputs.is_settling => Err(RuleOutcome::NoData),
        Number::OfPods { signal, coverage: 0, .. } => {
            let mut ready = inputs.pods.iter().filter(|pod| pod.role == rule.role && pod.is_ready);
            if ready.all(|pod| pod.value(signal).is_some()) { Ok(()) } else { Err(RuleOutcome::Coverage) }
        }
        _ => Ok(()),
    }
}

/// Aggregates several numbers; zero of none.
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
