//! Plans being applied, each in a task of its own: a slow API server delays no other policy.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::actuator::{Observed, Outcome, PolicyActuator};
use crate::capacity::{Condition, Policy};
use crate::scaling::plan_store::Latest;

/// Policies applied at a time. Each has one request in flight.
const SIDE_BY_SIDE: usize = 8;

/// A plan to apply.
#[derive(Debug)]
pub(super) struct ApplyTask {
    pub(super) policy: Arc<Policy>,
    pub(super) latest: Latest,
    pub(super) was_stuck: bool,
    /// Condition that forbids writes.
    pub(super) frozen: Option<Condition>,
}

/// Result of applying a plan.
#[derive(Debug)]
pub(super) struct ApplyResult {
    pub(super) task: ApplyTask,
    pub(super) actuator: PolicyActuator,
    /// Roles, by index, whose replicas were not written.
    pub(super) unwritten: Vec<usize>,
}

/// Running tasks that apply plans. Each ends within a time limit.
#[derive(Debug)]
pub(super) struct Applies {
    tasks: JoinSet<ApplyResult>,
    turns: Arc<Semaphore>,
}

impl Default for Applies {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), turns: Arc::new(Semaphore::new(SIDE_BY_SIDE)) }
    }
}

impl Applies {
    /// Starts a task, which waits for its turn.
    pub(super) fn begin(
        &mut self,
        mut task: ApplyTask,
        mut actuator: PolicyActuator,
        observed: Observed,
        now: Duration,
    ) {
        let turns = Arc::clone(&self.turns);
        self.tasks.spawn(async move {
            // It is never closed.
            let _turn = turns.acquire_owned().await;
            let Outcome { plan, unwritten } =
                actuator.apply(&task.latest.plan, observed, now, task.frozen).await;
            task.latest.plan = plan;
            ApplyResult { task, actuator, unwritten }
        });
    }

    /// Waits for a task to end; `None`: none runs, or one was aborted.
    pub(super) async fn next(&mut self) -> Option<ApplyResult> {
        self.tasks.join_next().await?.ok()
    }
}
