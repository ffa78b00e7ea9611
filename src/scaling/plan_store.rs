//! The plans that stand, for all who want to know.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::groups::Group;
use super::objects::Known;
use crate::actuator::Write;
use crate::capacity::resource::status::LetThrough;
use crate::capacity::{Condition, Plan};

/// All policies and their last plans. Replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// By their order in the file, or by their age.
    pub policies: Vec<PolicyEntry>,
    /// Policies that are objects of the API server, those that can't be used included.
    pub objects: Arc<[Known]>,
}

/// A policy and its last plan.
#[derive(Clone, Debug)]
pub struct PolicyEntry {
    /// The policy.
    pub group: Group,
    /// `None` before its first tick, and while another replica leads.
    pub latest: Option<Arc<Latest>>,
    /// Reason that it has not ticked since; `None` if it has.
    pub held: Option<Held>,
    /// The last write to the replicas of each role that was written to, by its name.
    pub writes: Vec<(String, Write)>,
    /// Pods of each role that were let through their gate, where that is known.
    pub let_through: Vec<LetThrough>,
}

/// Reason that a policy is not ticked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// In one word.
    pub condition: Condition,
    /// In a sentence.
    pub why: Arc<str>,
}

/// A plan, and what it is of.
#[derive(Clone, Debug)]
pub struct Latest {
    /// The plan.
    pub plan: Plan,
    /// Requests that waited.
    pub waiting: u64,
    /// Time on the clock of the readings.
    pub at: Duration,
    /// Last firing of each rule, by its place in the policy.
    pub fired: Vec<Option<Duration>>,
}

/// Latest plan of each policy. The driver writes; all others read, or wait for a change.
#[derive(Debug, Default)]
pub struct PlanStore {
    plans: watch::Sender<Arc<Plans>>,
}

impl PlanStore {
    /// Current plans.
    pub fn plans(&self) -> Arc<Plans> {
        Arc::clone(&self.plans.borrow())
    }

    /// Wakes whenever something else stands there.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Plans>> {
        self.plans.subscribe()
    }

    /// Puts up something else.
    pub(super) fn put(&self, plans: Plans) {
        self.plans.send_replace(Arc::new(plans));
    }
}
