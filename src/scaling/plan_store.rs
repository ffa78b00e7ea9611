//! Latest plan per policy.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::groups::Group;
use super::objects::Known;
use crate::actuator::Write;
use crate::capacity::resource::status::LetThrough;
use crate::capacity::{Condition, Plan};

/// All policies and their latest plans. Replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// By position in the file, or by age.
    pub policies: Vec<PolicyEntry>,
    /// Policy objects, invalid ones included.
    pub objects: Arc<[Known]>,
}

/// A policy and its latest plan.
#[derive(Clone, Debug)]
pub struct PolicyEntry {
    /// The policy.
    pub group: Group,
    /// `None` before its first tick, and while another replica leads.
    pub latest: Option<Arc<Latest>>,
    /// Reason why it was not ticked since; `None` if it was.
    pub held: Option<Held>,
    /// Last write of each role's replicas, by role name.
    pub writes: Vec<(String, Write)>,
    /// Admitted pods of each role, if known.
    pub let_through: Vec<LetThrough>,
}

/// Reason why a policy is not ticked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Condition.
    pub condition: Condition,
    /// The reason as a sentence.
    pub why: Arc<str>,
}

/// A plan, with its inputs and time.
#[derive(Clone, Debug)]
pub struct Latest {
    /// The plan.
    pub plan: Plan,
    /// Waiting requests.
    pub waiting: u64,
    /// Time on the clock of the metrics.
    pub at: Duration,
    /// Last firing of each rule, by index.
    pub fired: Vec<Option<Duration>>,
}

/// Latest plan per policy. The driver writes; others read, or wait for a change.
#[derive(Debug, Default)]
pub struct PlanStore {
    plans: watch::Sender<Arc<Plans>>,
}

impl PlanStore {
    /// Current plans.
    pub fn plans(&self) -> Arc<Plans> {
        Arc::clone(&self.plans.borrow())
    }

    /// Receiver that is notified of every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Plans>> {
        self.plans.subscribe()
    }

    /// Replaces the plans.
    pub(super) fn put(&self, plans: Plans) {
        self.plans.send_replace(Arc::new(plans));
    }
}
