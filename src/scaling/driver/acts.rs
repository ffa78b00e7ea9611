//! Plans that are carried out, each in a task of its own: policies act side by side, and none waits for an API
//! server that doesn't respond for another.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::actuator::{Observed, Outcome, Part};
use crate::capacity::{Condition, Policy};
use crate::scaling::plan_store::Latest;

/// Policies that act at a time. Each has one request under way.
const SIDE_BY_SIDE: usize = 8;

/// A plan that is to be carried out, or was.
#[derive(Debug)]
pub(super) struct Acting {
    pub(super) policy: Arc<Policy>,
    pub(super) latest: Latest,
    pub(super) was_stuck: bool,
    /// Condition that keeps it from writing.
    pub(super) frozen: Option<Condition>,
}

/// Outcome of a policy's acts.
#[derive(Debug)]
pub(super) struct Acted {
    pub(super) acting: Acting,
    pub(super) part: Part,
    /// Roles, by place, whose replicas should have been written and were not.
    pub(super) unwritten: Vec<usize>,
}

/// Acts that are under way. Each ends within its limit.
#[derive(Debug)]
pub(super) struct Acts {
    tasks: JoinSet<Acted>,
    turns: Arc<Semaphore>,
}

impl Default for Acts {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), turns: Arc::new(Semaphore::new(SIDE_BY_SIDE)) }
    }
}

impl Acts {
    /// Begins acts on what was observed at that time, when it is their turn.
    pub(super) fn begin(&mut self, mut acting: Acting, mut part: Part, observed: Observed, now: Duration) {
        let turns = Arc::clone(&self.turns);
        self.tasks.spawn(async move {
            // It is never closed.
            let _turn = turns.acquire_owned().await;
            let Outcome { plan, unwritten } =
                part.act(&acting.latest.plan, observed, now, acting.frozen).await;
            acting.latest.plan = plan;
            Acted { acting, part, unwritten }
        });
    }

    /// Waits for some to end; `None`: none are under way, or they broke off.
    pub(super) async fn next(&mut self) -> Option<Acted> {
        self.tasks.join_next().await?.ok()
    }
}
