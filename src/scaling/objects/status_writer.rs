//! Writes the statuses of policies: by the leader only, if changed, and at most once per interval, except for
//! fields that the next leader restores.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::policy_store::Known;
use super::times::Times;
use super::written::{EventOutcome, PendingEvent, WrittenStatuses};
use crate::actuator::event::{self, About, Kind};
use crate::capacity::policy::spec::KIND;
use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::resource::{GROUP, POLICIES, VERSION};
use crate::cluster::{Cluster, PatchType, Problem};
use crate::endpoints::Clock;
use crate::leader::Term;
use crate::scaling::plan_store::PlanStore;

/// Interval of checks for leadership and due statuses.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Timeout of an event.
const REQUEST: Duration = Duration::from_secs(5);

/// Writes statuses of policies.
pub struct StatusWriter {
    cluster: Cluster,
    namespace: String,
    plan_store: Arc<PlanStore>,
    /// Term in which this replica writes.
    term: Arc<Term>,
    times: Times,
    written: WrittenStatuses,
    /// `true` if the last event could not be written, which was logged.
    lacks_events: bool,
}

impl StatusWriter {
    /// Writer for the policies of a namespace.
    pub fn new(
        cluster: Cluster,
        namespace: String,
        plan_store: Arc<PlanStore>,
        clock: Clock,
        term: Arc<Term>,
    ) -> Self {
        Self {
            cluster,
            namespace,
            plan_store,
            term,
            times: Times::start(clock),
            written: WrittenStatuses::default(),
            lacks_events: false,
        }
    }

    /// Writes statuses and events, until dropped.
    pub async fn run(mut self) {
        let mut plans = self.plan_store.subscribe();
        loop {
            if self.term.lasts() {
                self.write_due().await;
            } else {
                // The statuses of other replicas are in the objects.
                self.written = WrittenStatuses::default();
            }
            let next = Instant::now() + POLL_INTERVAL;
            tokio::select! {
                changed = plans.changed() => if changed.is_err() { return },
                () = sleep_until(next) => {}
            }
        }
    }

    async fn write_due(&mut self) {
        let plans = self.plan_store.plans();
        let due = self.written.due(&plans, self.times.clock.elapsed(), &self.times);
        for due in due {
            let written = self.term.write(self.write(&due.known, &due.status)).await;
            if !self.term.lasts() {
                return;
            }
            self.written.note(due, self.times.clock.elapsed(), written);
        }
        for event in self.written.pending_events(self.times.clock.elapsed()) {
            let outcome = self.record_event(&event).await;
            if !self.term.lasts() {
                return;
            }
            self.written.note_event(&event, outcome, self.times.clock.elapsed());
            if outcome == EventOutcome::Unanswered {
                break;
            }
        }
    }

    async fn write(&self, known: &Known, status: &PolicyStatus) -> Result<(), Problem> {
        let (namespace, name) = (&self.namespace, &known.name);
        let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{POLICIES}/{name}/status");
        // With the uid, a new object of this name rejects it.
        let patch = json!({"metadata": {"uid": known.uid}, "status": status});
        self.cluster.patch::<IgnoredAny>(&path, PatchType::Merge, &patch).await.map(|_| ())
    }

    /// Writes an event about a blocked policy, for `kubectl describe`.
    async fn record_event(&mut self, event: &PendingEvent) -> EventOutcome {
        let PendingEvent { name, uid, reason, message } = event;
        let api_version = format!("{GROUP}/{VERSION}");
        let about = About { api_version: &api_version, kind: KIND, name, uid };
        let body = event::event(&self.namespace, about, Kind::Warning, reason, message);
        let (path, body) = (event::path(&self.namespace), body.to_string().into_bytes());
        let written = self.cluster.put::<IgnoredAny>(Method::POST, &path, body, REQUEST).await;
        match written {
            Ok(_) => self.lacks_events = false,
            Err(problem) => {
                if !std::mem::replace(&mut self.lacks_events, true) {
                    tracing::info!(%problem, "cannot write events about capacity policies; their statuses have the same conditions");
                }
                return match problem {
                    // Retrying is useless, and the failure was logged.
                    Problem::Denied(_) => EventOutcome::Done,
                    problem if problem.is_unsure() => EventOutcome::Unanswered,
                    _ => EventOutcome::Refused,
                };
            }
        }
        EventOutcome::Done
    }
}

impl std::fmt::Debug for StatusWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusWriter").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
