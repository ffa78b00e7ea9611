//! Counters of ticks, and gauges of plans.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, Opts, Registry};

use super::frozen::Frozen;
use super::plan_store::{Latest, PlanStore};
use crate::capacity::{Condition, Plan, Policy, State};
use crate::endpoints::Clock;

/// A metric family: name, labels, help.
type Family = (&'static str, &'static [&'static str], &'static str);

const OF_ROLE: [Family; 5] = [
    ("usher_capacity_desired_replicas", &["policy", "role"], "Pods that a role should have now."),
    ("usher_capacity_admitted_replicas", &["policy", "role"], "Pods of a role that are admitted now."),
    ("usher_capacity_current_replicas", &["policy", "role"], "Pods that a role has."),
    (
        "usher_capacity_goal_replicas",
        &["policy", "role"],
        "Pods that a role has once its change is complete.",
    ),
    ("usher_capacity_pressure", &["policy", "role"], "Largest value ÷ target of a role's signals."),
];
const WAITING: Family = ("usher_capacity_waiting", &["policy"], "Requests that waited at the last tick.");
const CONDITION: Family = (
    "usher_capacity_condition",
    &["policy", "condition"],
    "1 while a condition of the capacity policy is true.",
);
const FROZEN: Family = (
    "usher_capacity_frozen_seconds",
    &["policy", "reason"],
    "Seconds that a policy has been blocked, by reason.",
);
const STATE: Family = ("usher_capacity_state", &["policy", "state"], "1 for the state that a group is in.");

const TICKS: Family = ("usher_capacity_ticks_total", &["policy"], "Ticks of a policy.");
const DECISIONS: Family = (
    "usher_capacity_decisions_total",
    &["policy", "reason"],
    "Ticks in which a reason determined the size of a role of the policy.",
);
const FIRED: Family = ("usher_capacity_rules_fired_total", &["policy", "rule"], "Times that a rule fired.");
const RELOADS: Family =
    ("usher_capacity_policy_reloads_total", &["result"], "Reloads of the capacity policy file, by result.");
const QUERIES: Family =
    ("usher_capacity_queries_total", &["result"], "Queries sent for policies, by result.");
const SANITISED: Family =
    ("usher_capacity_policy_sanitised_total", &[], "Invalid values of policies that were replaced.");

/// Names of the families about capacity policies.
pub const FAMILIES: [&str; 15] = {
    let [desired, admitted, current, goal, pressure] = OF_ROLE;
    [
        desired.0,
        admitted.0,
        current.0,
        goal.0,
        pressure.0,
        WAITING.0,
        CONDITION.0,
        FROZEN.0,
        STATE.0,
        TICKS.0,
        DECISIONS.0,
        FIRED.0,
        RELOADS.0,
        QUERIES.0,
        SANITISED.0,
    ]
};

/// Counters of ticks. Gauges are computed from the plan store when read.
#[derive(Debug)]
pub struct ScalingMetrics {
    ticks: IntCounterVec,
    decisions: IntCounterVec,
    fired: IntCounterVec,
    sanitised: IntCounter,
    reloads: IntCounterVec,
    queries: IntCounterVec,
    frozen: Arc<Frozen>,
    // The label values that were used, so that those of policies that are gone can be removed. Only the
    // driver takes it.
    used: Mutex<HashSet<(String, Option<String>, bool)>>,
}

impl ScalingMetrics {
    /// Registers all families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub(super) fn register(
        registry: &Registry,
        plan_store: &Arc<PlanStore>,
        clock: Clock,
    ) -> prometheus::Result<Self> {
        let counters = |(name, labels, help): Family| {
            let family = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        let sanitised = IntCounter::new(SANITISED.0, SANITISED.2)?;
        registry.register(Box::new(sanitised.clone()))?;
        let reloads = counters(RELOADS)?;
        // From zero on: the first refusal is an increase, too.
        for result in ["used", "refused"] {
            reloads.with_label_values(&[result]);
        }
        let frozen = Arc::new(Frozen::new(clock));
        registry.register(Box::new(PlanCollector::new(Arc::clone(plan_store), Arc::clone(&frozen))?))?;
        Ok(Self {
            ticks: counters(TICKS)?,
            decisions: counters(DECISIONS)?,
            fired: counters(FIRED)?,
            sanitised,
            reloads,
            queries: counters(QUERIES)?,
            frozen,
            used: Mutex::default(),
        })
    }

    /// Counts a tick.
    pub(super) fn count(&self, policy: &Policy, plan: &Plan) {
        let name = policy.name.as_str();
        let held = plan.conditions.iter().filter(|condition| condition.freezes());
        self.freezes(name, &held.map(|condition| format!("{condition:?}")).collect::<Vec<_>>());
        self.ticks.with_label_values(&[name]).inc();
        let mut reasons: Vec<String> =
            plan.roles.iter().flat_map(|role| &role.reasons).map(|reason| format!("{reason:?}")).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert((name.to_owned(), None, false));
        for reason in reasons {
            self.decisions.with_label_values(&[name, &reason]).inc();
            used.insert((name.to_owned(), Some(reason), false));
        }
        for rule in &plan.fired {
            self.fired.with_label_values(&[name, rule]).inc();
            used.insert((name.to_owned(), Some(rule.clone()), true));
        }
    }

    /// Sets the reasons for which a policy is blocked; empty: it isn't.
    pub(super) fn freezes(&self, policy: &str, reasons: &[String]) {
        self.frozen.note(policy, reasons);
    }

    /// Clears all reasons, as another replica reports them.
    pub(super) fn leaves(&self) {
        self.frozen.keep(|_| false);
    }

    /// Counter of queries, by result.
    pub(super) fn queries(&self) -> IntCounterVec {
        self.queries.clone()
    }

    /// Counts a reload of the file, by success.
    pub(super) fn reloaded(&self, used: bool) {
        self.reloads.with_label_values(&[if used { "used" } else { "refused" }]).inc();
    }

    /// Counts invalid values of a new or changed policy.
    pub(super) fn taken(&self, policy: &Policy) {
        self.sanitised.inc_by(u64::from(policy.sanitised));
    }

    /// Removes series of other policies; `refused` are those without a version in force.
    pub(super) fn keep<'a>(&self, policies: impl Iterator<Item = &'a Policy>, refused: &[(&str, &str)]) {
        let mut names = HashSet::new();
        for policy in policies {
            names.insert(policy.name.as_str());
        }
        self.frozen.keep(|policy| names.contains(policy) || refused.iter().any(|(name, _)| *name == policy));
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|(policy, value, is_rule)| {
            let stays = names.contains(policy.as_str());
            if !stays {
                // Absent policies are removed.
                let _ = match (value, is_rule) {
                    (None, _) => self.ticks.remove_label_values(&[policy]),
                    (Some(reason), false) => self.decisions.remove_label_values(&[policy, reason]),
                    (Some(rule), true) => self.fired.remove_label_values(&[policy, rule]),
                };
            }
            stays
        });
    }
}

/// Plans of the plan store as gauges.
#[derive(Debug)]
struct PlanCollector {
    plan_store: Arc<PlanStore>,
    frozen: Arc<Frozen>,
    descs: Vec<Desc>,
}

impl PlanCollector {
    fn new(plan_store: Arc<PlanStore>, frozen: Arc<Frozen>) -> prometheus::Result<Self> {
        let desc = |(name, labels, help): Family| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())
        };
        let descs = OF_ROLE.into_iter().chain([WAITING, CONDITION, FROZEN, STATE]).map(desc);
        Ok(Self { plan_store, frozen, descs: descs.collect::<prometheus::Result<_>>()? })
    }
}

impl Collector for PlanCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let family = |(name, labels, help): Family| GaugeVec::new(Opts::new(name, help), labels).ok();
        let [desired, admitted, current, goal, pressure] = OF_ROLE.map(family);
        let (waiting, condition, state) = (family(WAITING), family(CONDITION), family(STATE));
        let frozen = family(FROZEN);
        for (policy, reason, held) in self.frozen.all() {
            if let Some(family) = &frozen {
                family.with_label_values(&[&policy, &reason]).set(held.as_secs_f64());
            }
        }
        for entry in &self.plan_store.plans().policies {
            let policy = entry.group.policy.name.as_str();
            let held = entry.held.as_ref().map(|held| held.condition);
            if let Some((held, family)) = held.zip(condition.as_ref()) {
                family.with_label_values(&[policy, &format!("{held:?}")]).set(1.0);
            }
            let Some(Latest { plan, waiting: requests, .. }) = entry.latest.as_deref() else { continue };
            let set = |family: &Option<GaugeVec>, labels: &[&str], value: f64| {
                if let Some(family) = family {
                    family.with_label_values(labels).set(value);
                }
            };
            for role in &plan.roles {
                let labels = [policy, role.name.as_str()];
                set(&desired, &labels, f64::from(role.desired));
                set(&admitted, &labels, f64::from(role.admitted));
                set(&current, &labels, f64::from(role.current));
                set(&goal, &labels, f64::from(role.goal));
                if let Some(value) = role.pressure {
                    set(&pressure, &labels, value);
                }
            }
            set(&waiting, &[policy], *requests as f64);
            for known in State::ALL {
                let holds = plan.state == known;
                set(&state, &[policy, &known.to_string()], f64::from(u8::from(holds)));
            }
            for known in Condition::ALL {
                let holds = held == Some(known) || plan.conditions.contains(&known);
                set(&condition, &[policy, &format!("{known:?}")], f64::from(u8::from(holds)));
            }
        }
        let all = [desired, admitted, current, goal, pressure, waiting, condition, frozen, state];
        let mut out: Vec<MetricFamily> = all.iter().flatten().flat_map(Collector::collect).collect();
        out.retain(|family| !family.get_metric().is_empty());
        out
    }
}
