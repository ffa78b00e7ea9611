//! `GET /capacity/v1/plans` and `GET /capacity/v1/rules` on the admin port.

use std::time::Duration;

use serde::Serialize;

use super::plan_store::PlanStore;
use crate::capacity::plan::RuleOutcome;
use crate::capacity::policy::Sizing;
use crate::capacity::{Condition, Plan};
use crate::endpoints::Clock;

#[derive(Serialize)]
struct PlansPage<'a> {
    plans: Vec<PlanRow<'a>>,
}

/// A policy and its last plan; none before the first tick.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanRow<'a> {
    policy: &'a str,
    interval_ms: u64,
    signals: Vec<SignalRow<'a>>,
    age_ms: Option<u64>,
    waiting: Option<u64>,
    /// Reason why it was not ticked since.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldRow<'a>>,
    plan: Option<&'a Plan>,
}

#[derive(Serialize)]
struct HeldRow<'a> {
    condition: Condition,
    why: &'a str,
}

#[derive(Serialize)]
struct SignalRow<'a> {
    name: &'a str,
    source: &'a str,
}

#[derive(Serialize)]
struct RulesPage<'a> {
    rules: Vec<RuleRow<'a>>,
}

/// A rule, and its outcome at the last tick.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleRow<'a> {
    policy: &'a str,
    rule: &'a str,
    role: &'a str,
    cooldown_ms: u64,
    value: Option<f64>,
    outcome: Option<RuleOutcome>,
    /// Time since the last tick.
    age_ms: Option<u64>,
    /// Time since it fired; none: not since this picker knows the policy.
    last_fired_ms: Option<u64>,
}

/// All policies with the results and reasons of every step, as JSON.
pub fn plans(plan_store: &PlanStore, clock: &Clock) -> String {
    with_plans(plan_store, clock, |page| json(page))
}

/// All policies with the results and reasons of every step, as a JSON value.
pub fn plans_value(plan_store: &PlanStore, clock: &Clock) -> serde_json::Value {
    // Text and numbers always serialise.
    with_plans(plan_store, clock, |page| serde_json::to_value(page).unwrap_or_default())
}

fn with_plans<T>(plan_store: &PlanStore, clock: &Clock, show: impl FnOnce(&PlansPage<'_>) -> T) -> T {
    let (plans, now) = (plan_store.plans(), clock.elapsed());
    let rows = plans.policies.iter().map(|entry| {
        let (policy, latest) = (entry.group.policy.as_ref(), entry.latest.as_ref());
        let signals = policy.signals.iter().zip(&entry.group.signals);
        let signals = signals.map(|(name, signal)| SignalRow { name, source: signal.source() });
        let queries = policy.queries().into_iter().map(|name| SignalRow { name, source: "query" });
        PlanRow {
            policy: &policy.name,
            interval_ms: milliseconds(policy.interval),
            signals: signals.chain(queries).collect(),
            age_ms: latest.map(|latest| milliseconds(now.saturating_sub(latest.at))),
            waiting: latest.map(|latest| latest.waiting),
            held: entry.held.as_ref().map(|held| HeldRow { condition: held.condition, why: &held.why }),
            plan: latest.map(|latest| &latest.plan),
        }
    });
    show(&PlansPage { plans: rows.collect() })
}

/// All rules with their outcomes, as JSON.
pub fn rules(plan_store: &PlanStore, clock: &Clock) -> String {
    let (plans, now) = (plan_store.plans(), clock.elapsed());
    let mut rows = Vec::new();
    for entry in &plans.policies {
        let (policy, latest) = (entry.group.policy.as_ref(), entry.latest.as_ref());
        let Sizing::Rules(rules) = &policy.sizing else { continue };
        for (place, rule) in rules.iter().enumerate() {
            let stage = latest
                .and_then(|latest| latest.plan.stages.rules.iter().find(|stage| stage.name == rule.name));
            let fired = latest.and_then(|latest| latest.fired.get(place).copied().flatten());
            rows.push(RuleRow {
                policy: &policy.name,
                rule: &rule.name,
                role: policy.roles.get(rule.role).map_or("", |role| role.name.as_str()),
                cooldown_ms: milliseconds(rule.cooldown),
                value: stage.and_then(|stage| stage.value),
                outcome: stage.map(|stage| stage.outcome),
                age_ms: latest.map(|latest| milliseconds(now.saturating_sub(latest.at))),
                last_fired_ms: fired.map(|at| milliseconds(now.saturating_sub(at))),
            });
        }
    }
    json(&RulesPage { rules: rows })
}

fn json(page: &impl Serialize) -> String {
    // Text and numbers always serialise.
    serde_json::to_string_pretty(page).unwrap_or_default()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
