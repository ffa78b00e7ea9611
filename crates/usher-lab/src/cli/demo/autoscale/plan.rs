//! Reader of Usher's page of plans.

use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

/// The last plan of the demo's one policy with its one role.
#[derive(Debug, PartialEq)]
pub(super) struct CurrentPlan {
    /// Age of the plan.
    pub(super) age: Duration,
    /// Requests that waited in Usher.
    pub(super) waiting: u64,
    /// Servers that there were.
    pub(super) current: usize,
    /// Servers that there should be.
    pub(super) desired: usize,
    /// Reasons for the desired number.
    pub(super) reasons: Vec<String>,
}

#[derive(Deserialize)]
struct Page {
    plans: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    age_ms: Option<u64>,
    waiting: Option<u64>,
    plan: Option<Plan>,
}

#[derive(Deserialize)]
struct Plan {
    roles: Vec<Role>,
}

#[derive(Deserialize)]
struct Role {
    current: usize,
    desired: usize,
    reasons: Vec<String>,
}

impl CurrentPlan {
    /// Reads the page; none before the first tick.
    ///
    /// # Errors
    /// Returns an error if the body is no page of plans.
    pub(super) fn read(page: &Value) -> anyhow::Result<Option<Self>> {
        let page = Page::deserialize(page)?;
        let row = page.plans.into_iter().next().context("there is no policy")?;
        let (Some(plan), Some(age)) = (row.plan, row.age_ms) else { return Ok(None) };
        let Role { current, desired, reasons } =
            plan.roles.into_iter().next().context("the policy has no role")?;
        let waiting = row.waiting.unwrap_or_default();
        Ok(Some(Self { age: Duration::from_millis(age), waiting, current, desired, reasons }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_page_of_one_policy_is_read() {
        let role = json!({"name": "server", "current": 2, "ready": 2, "goal": 4, "desired": 4, "reasons": ["Metric", "Cost"]});
        let page =
            json!({"plans": [{"policy": "demo", "ageMs": 30, "waiting": 7, "plan": {"roles": [role]}}]});
        let current_plan = CurrentPlan {
            age: Duration::from_millis(30),
            waiting: 7,
            current: 2,
            desired: 4,
            reasons: ["Metric", "Cost"].map(str::to_owned).to_vec(),
        };
        assert_eq!(CurrentPlan::read(&page).unwrap(), Some(current_plan));
        let before = json!({"plans": [{"policy": "demo", "ageMs": null, "waiting": null, "plan": null}]});
        assert_eq!(CurrentPlan::read(&before).unwrap(), None);
        assert!(CurrentPlan::read(&json!({"plans": []})).is_err());
        assert!(CurrentPlan::read(&json!({})).is_err());
    }
}
