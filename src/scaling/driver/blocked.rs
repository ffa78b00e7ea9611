//! Blocked policies, and scheduling gates opened between ticks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::{Driver, GATE_INTERVAL};
use crate::capacity::Condition;
use crate::scaling::objects::Known;
use crate::scaling::plan_store::Held;

/// The same interval while the API server is slow, as the driver waits for its responses.
const SLOW_GATE_INTERVAL: Duration = Duration::from_secs(30);

/// Pause after such a check before another one, triggered by a changed pod.
const GATE_PAUSE: Duration = Duration::from_secs(1);

/// Pause before a policy is observed again whose pods or targets could not be read: the first time, when
/// lists may just have been requested, and later.
const OBSERVED_SOON: Duration = Duration::from_secs(1);
const OBSERVED_AGAIN: Duration = Duration::from_secs(15);

/// Messages while the lease is not renewed: for policies with a plan, and new ones.
const LEASE_LOST: &str =
    "nothing is written: the lease was not renewed in time, and another replica may lead by now";
const LEASE_NEW: &str =
    "nothing is written yet: this replica leads, and waits until no other can still write";

impl Driver {
    /// Blocks a policy for this reason, except that gates of replacement pods open, and schedules another
    /// attempt.
    pub(super) async fn block(&mut self, place: usize, condition: Condition) {
        let (Some(running), Some(actuator)) = (self.running.get_mut(place), &mut self.live.actuator) else {
            return;
        };
        let policy = Arc::clone(&running.group.policy);
        let is_again = running.stopped.replace(condition) == Some(condition);
        let is_lost = condition == Condition::LeaseNotRenewed;
        if is_lost {
            let why: &str = if running.latest.is_none() { LEASE_NEW } else { LEASE_LOST };
            if !is_again && running.latest.is_some() {
                warn!(policy = policy.name, why, "capacity policy blocked");
            }
            running.held = Some(Held { condition, why: why.into() });
        } else if is_again {
            running.held = Some(Held { condition, why: actuator.why_unobserved().into() });
        } else {
            running.held = None;
        }
        let again = if is_again && !is_lost { OBSERVED_AGAIN } else { OBSERVED_SOON };
        let now = self.live.clock.elapsed();
        // Waits asked for by requests of other policies don't apply.
        let pause = if is_lost { Duration::ZERO } else { actuator.pause() };
        running.not_before = now + pause;
        running.due = running.due.min(now + again).max(running.not_before);
        actuator.open_replacement_gates(&policy).await;
        running.note_late(actuator.is_late(), self.live.clock.elapsed());
        self.metrics.freezes(&policy.name, &[format!("{condition:?}")]);
    }

    /// Opens gates of replacement pods, also for deleted policies and those without a usable version.
    pub(super) async fn open_gates(&mut self) {
        let may_act = (self.live.may_plan)() && (self.live.may_act)();
        let Some(actuator) = &mut self.live.actuator else { return };
        actuator.open_gates_of_retired().await;
        let mut is_late = actuator.is_late();
        if actuator.has_updates_to_resume() {
            actuator.resume_updates(&self.policy_store.held_targets()).await;
            is_late |= actuator.is_late();
        }
        if may_act {
            actuator.open_all_replacement_gates().await;
            is_late |= actuator.is_late();
            for policy in actuator.unusable().to_vec() {
                actuator.restore_admissions(&policy, Known::roles_of(&self.objects, &policy.name));
            }
            actuator.open_gates_of_unusable().await;
            is_late |= actuator.is_late();
        }
        self.last_gates = Instant::now();
        let pause = if is_late { SLOW_GATE_INTERVAL } else { GATE_INTERVAL };
        // Changed pods don't trigger requests to a slow API server.
        self.is_server_late = is_late;
        self.next_gates = actuator.may_have_gates().then(|| self.last_gates + pause);
    }

    /// Schedules a check of gates soon, after a pod changed.
    pub(super) fn open_gates_soon(&mut self) {
        if self.is_server_late {
            return;
        }
        let soon = Instant::now().max(self.last_gates + GATE_PAUSE);
        self.next_gates = self.next_gates.map(|at| at.min(soon));
    }
}
