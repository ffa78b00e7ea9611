//! Resolves a specification. Invalid values are replaced and counted, as an object may have bypassed
//! validation.

mod rollout;

use std::collections::BTreeMap;
use std::time::Duration;

use super::limits::{COOLDOWN, INTERVAL, LONGEST, MOST_PODS, PRESSURE, SHORTEST_INTERVAL};
use super::span::GoDuration;
use super::spec::{
    BandSpec, CoordinationMode, Document, PaceSpec, PanicSpec, RatioSpec, RuleSource, RuleSpec, Select,
};
use super::spec::{OnBound, PressureSpec, Spec, TotalSpec};
use super::{Coordination, Policy, ROLE_LABEL, Range, Ratio, Role, Sizing, Target, Total, WAITING};
use crate::amount::Amount;
use crate::behavior::{Behavior, Pace, Panic};
use crate::coordinate::{Band, ONE};
use crate::ratio::{Fraction, RatioBounds};
use crate::rules::{Rule, RuleMetric, RuleTest};

/// Source of pressure metrics.
const OF_PODS: RuleSource = RuleSource::Inference;

impl Policy {
    /// Resolves a policy. Invalid values are replaced, and counted in [`Policy::sanitised`]; see
    /// [`validate`](super::validate) for errors.
    pub fn of(document: &Document) -> Self {
        let mut reader = Reader::default();
        let spec = &document.spec;
        let roles: Vec<Role> = spec.roles.iter().map(|(name, role)| reader.role(name, role)).collect();
        let sizing = reader.sizing(spec, &roles);
        let coordination = reader.coordination(spec, &roles);
        let ratio = spec
            .coordination
            .as_ref()
            .and_then(|written| written.ratio.as_ref())
            .and_then(|ratio| reader.ratio(ratio, &roles));
        let behavior = reader.behavior(spec);
        let rollout = reader.rollout(spec);
        let interval = GoDuration::or(spec.interval, INTERVAL);
        let interval = reader.checked(interval, interval.max(SHORTEST_INTERVAL));
        Self {
            name: document.metadata.name.clone(),
            mode: spec.mode,
            is_paused: spec.paused,
            interval,
            roles,
            sizing,
            behavior,
            coordination,
            ratio,
            rollout,
            signals: reader.signals,
            sanitised: reader.sanitised,
        }
    }

    /// Index of a role.
    pub fn role(&self, name: &str) -> Option<usize> {
        self.roles.iter().position(|role| role.name == name)
    }
}

/// Resolver of values.
#[derive(Default)]
struct Reader {
    signals: Vec<String>,
    sanitised: u32,
}

impl Reader {
    /// Returns `sound`, counted if it differs from the written value.
    fn checked<T: PartialEq + Copy>(&mut self, written: T, sound: T) -> T {
        self.sanitised += u32::from(written != sound);
        sound
    }

    fn whole(&mut self, written: Option<i64>, default: u32, most: i64) -> u32 {
        let written = written.unwrap_or(i64::from(default));
        let sound = self.checked(written, written.clamp(0, most));
        u32::try_from(sound).unwrap_or(default)
    }

    fn signal(&mut self, name: &str) -> usize {
        self.signals.iter().position(|signal| signal == name).unwrap_or_else(|| {
            self.signals.push(name.to_owned());
            self.signals.len() - 1
        })
    }

    fn role(&mut self, name: &str, spec: &super::spec::RoleSpec) -> Role {
        let range = self.range(spec.min, spec.max, Range { min: 0, max: MOST_PODS as u32 });
        let cost = spec.cost.unwrap_or(1.0);
        let is_sound = cost.is_finite() && cost >= 0.0;
        self.sanitised += u32::from(!is_sound);
        let selector = if spec.selector.is_empty() {
            BTreeMap::from([(ROLE_LABEL.to_owned(), name.to_owned())])
        } else {
            spec.selector.clone()
        };
        Role {
            name: name.to_owned(),
            range,
            cost: if is_sound { cost } else { 1.0 },
            selector,
            target: spec.scale_target_ref.clone(),
        }
    }

    /// Range within another one, whose ends are the defaults.
    fn range(&mut self, min: Option<i64>, max: Option<i64>, within: Range) -> Range {
        let min = self.whole(min, within.min, MOST_PODS);
        let max = self.whole(max, within.max, MOST_PODS);
        let sound = self.checked(max, max.max(min));
        Range { min, max: sound }
    }

    fn targets<'a>(
        &mut self,
        written: impl Iterator<Item = (&'a str, RuleSource, Option<f64>)>,
    ) -> Vec<Target> {
        written
            .filter_map(|(name, source, target)| {
                let target = target.and_then(Amount::of).filter(|target| *target > Amount::ZERO);
                if name.is_empty() || target.is_none() {
                    self.sanitised += 1;
                }
                target.filter(|_| !name.is_empty()).map(|target| Target {
                    name: name.to_owned(),
                    signal: (source != RuleSource::Prometheus).then(|| self.signal(name)),
                    target,
                })
            })
            .collect()
    }

    fn sizing(&mut self, spec: &Spec, roles: &[Role]) -> Sizing {
        if let Some(total) = &spec.total {
            // Both size every role, and would conflict.
            self.sanitised += u32::from(!spec.rules.is_empty());
            return Sizing::Total(self.total(total));
        }
        if spec.rules.is_empty() {
            return Sizing::Kept;
        }
        let mut rules: Vec<(i64, Rule)> = Vec::new();
        for written in &spec.rules {
            match self.rule(written, roles) {
                Some(rule) => rules.push((written.priority, rule)),
                None => self.sanitised += 1,
            }
        }
        // Stable, so equals are in the order of the file.
        rules.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        Sizing::Rules(rules.into_iter().map(|(_, rule)| rule).collect())
    }

    fn total(&mut self, spec: &TotalSpec) -> Total {
        Total {
            metrics: self.targets(
                spec.metrics.iter().map(|metric| (metric.name.as_str(), metric.source, metric.target)),
            ),
            tolerance: self.whole(spec.tolerance_percent, 10, 100),
            cost_expansion: self.whole(spec.cost_expansion_percent, 200, MOST_PODS),
        }
    }

    fn rule(&mut self, spec: &RuleSpec, roles: &[Role]) -> Option<Rule> {
        let role = roles.iter().position(|role| role.name == spec.role)?;
        let threshold = |value: Option<f64>| value.and_then(Amount::of);
        let step = i32::try_from(spec.step?).ok().filter(|step| *step != 0)?;
        let test = match (spec.comparator, threshold(spec.threshold)) {
            (Some(comparator), Some(threshold)) => RuleTest::Compare { comparator, threshold, step },
            _ => {
                let (min, max) = (threshold(spec.min_threshold), threshold(spec.max_threshold));
                let step = u32::try_from(step).ok()?;
                (min.is_some() || max.is_some()).then_some(RuleTest::Range { min, max, step })?
            }
        };
        if spec.metric.is_empty() {
            return None;
        }
        let coverage = spec.min_coverage.unwrap_or(0.0);
        let sound = if coverage.is_nan() { 0.0 } else { coverage.clamp(0.0, 1.0) };
        self.sanitised += u32::from(sound != coverage);
        let number = match spec.source {
            RuleSource::Prometheus => RuleMetric::External(spec.metric.clone()),
            RuleSource::Inference if spec.metric == WAITING => RuleMetric::Waiting,
            RuleSource::Inference | RuleSource::Kernel => RuleMetric::OfPods {
                signal: self.signal(&spec.metric),
                aggregation: spec.aggregation,
                coverage: (sound * f64::from(ONE)) as u32,
            },
        };
        let within = roles.get(role).map_or(Range { min: 0, max: 0 }, |role| role.range);
        let range = self.range(spec.min, spec.max, within);
        let min = range.min.max(within.min).min(within.max);
        Some(Rule {
            name: spec.name.clone(),
            role,
            number,
            test,
            cooldown: GoDuration::or(spec.cooldown, COOLDOWN),
            // The role's bounds hold, whatever a rule says.
            range: Range { min, max: range.max.min(within.max).max(min) },
            clamps: spec.on_bound == OnBound::Clamp,
        })
    }

    fn behavior(&mut self, spec: &Spec) -> Behavior {
        let default = Behavior::default();
        let Some(written) = &spec.behavior else { return default };
        let panic = written.scale_up.as_ref().and_then(|up| up.panic.as_ref());
        Behavior {
            up: written.scale_up.as_ref().map_or(default.up, |spec| self.pace(spec, default.up)),
            down: written.scale_down.as_ref().map_or(default.down, |spec| self.pace(spec, default.down)),
            panic: panic.map_or(default.panic, |spec| self.panic(spec, default.panic)),
            drain: self.time(written.scale_down.as_ref().and_then(|down| down.drain_timeout), default.drain),
        }
    }

    fn pace(&mut self, spec: &PaceSpec, default: Pace) -> Pace {
        Pace {
            instances: self.whole(spec.instances, default.instances, MOST_PODS),
            percent: self.whole(spec.percent, default.percent, 1000),
            period: self.time(spec.period, default.period),
            takes_smaller: spec.select.map_or(default.takes_smaller, |select| select == Select::And),
            stabilization: self.time(spec.stabilization, default.stabilization),
        }
    }

    fn panic(&mut self, spec: &PanicSpec, default: Panic) -> Panic {
        let threshold = self.whole(spec.threshold_percent, default.threshold_percent, 1000);
        Panic {
            threshold_percent: self.checked(threshold, threshold.max(110)),
            percent: self.whole(spec.percent, default.percent, 1000),
            period: self.time(spec.period, default.period),
            hold: self.time(spec.hold, default.hold),
        }
    }

    fn time(&mut self, span: Option<GoDuration>, default: Duration) -> Duration {
        let written = GoDuration::or(span, default);
        self.checked(written, written.min(LONGEST))
    }

    fn coordination(&mut self, spec: &Spec, roles: &[Role]) -> Coordination {
        let Some(written) = &spec.coordination else { return Coordination::default() };
        let alpha = written.alpha.unwrap_or(0.5);
        let sound = if alpha.is_nan() { 0.5 } else { alpha.clamp(0.0, 1.0) };
        self.sanitised += u32::from(alpha.is_nan() || sound != alpha);
        let is_on = written.mode == CoordinationMode::Preferred;
        let unknown =
            written.preferred_ratio.keys().filter(|name| roles.iter().all(|role| role.name != **name));
        self.sanitised += unknown.count() as u32;
        let bands = roles.iter().map(|role| self.band(written.preferred_ratio.get(&role.name)?)).collect();
        let pressure = roles
            .iter()
            .map(|role| match &written.pressure {
                // Disabled settings are not read.
                _ if !is_on => Vec::new(),
                Some(pressure) => {
                    let signals = pressure.get(&role.name).map(Vec::as_slice).unwrap_or_default();
                    self.targets(
                        signals
                            .iter()
                            .map(|PressureSpec { metric, target }| (metric.as_str(), OF_PODS, *target)),
                    )
                }
                None => {
                    let signals = PRESSURE.iter().find(|(name, _)| *name == role.name);
                    let signals = signals.map(|(_, signals)| signals.as_slice()).unwrap_or_default();
                    self.targets(signals.iter().map(|(name, target)| (*name, OF_PODS, Some(*target))))
                }
            })
            .collect();
        Coordination { is_on, alpha: (sound * f64::from(ONE)).round() as u32, bands, pressure }
    }

    fn band(&mut self, spec: &BandSpec) -> Option<Band> {
        let (min, max) = (self.whole(spec.min, 0, 100), self.whole(spec.max, 100, 100));
        if min > max {
            self.sanitised += 1;
            return None;
        }
        Some(Band { min, max })
    }

    fn ratio(&mut self, spec: &RatioSpec, roles: &[Role]) -> Option<Ratio> {
        let place = |name: &str| roles.iter().position(|role| role.name == name);
        let sound = || {
            let (numerator, denominator) = (place(&spec.numerator)?, place(&spec.denominator)?);
            let min = spec.min.as_ref().map_or(Some("0"), |text| Some(text.0.as_str()));
            let min = Fraction::parse(min?).ok()?;
            let max = spec.max.as_ref().map(|text| Fraction::parse(&text.0)).transpose().ok()?;
            let bounds = RatioBounds { min, max };
            (numerator != denominator && max.is_none_or(|max| min <= max)).then_some(Ratio {
                numerator,
                denominator,
                bounds,
            })
        };
        let ratio = sound();
        self.sanitised += u32::from(ratio.is_none());
        ratio
    }
}
