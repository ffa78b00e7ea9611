//! Tells in the policies' statuses what became of them: only the leader, only what has changed, and of
//! each policy once per interval at most, but for what the next leader goes by.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::policy_store::Known;
use super::times::Times;
use super::written::{EventTold, Told, Untold};
use crate::actuator::event::{self, About, Kind};
use crate::capacity::policy::spec::KIND;
use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::resource::{GROUP, POLICIES, VERSION};
use crate::cluster::{Cluster, PatchType, Problem};
use crate::endpoints::Clock;
use crate::leader::Term;
use crate::scaling::plan_store::Board;

/// How often it is asked who leads, and what is due.
const LOOK: Duration = Duration::from_secs(1);

/// Time for an event.
const REQUEST: Duration = Duration::from_secs(5);

/// Writes statuses of policies.
pub struct Teller {
    cluster: Cluster,
    namespace: String,
    board: Arc<Board>,
    /// The time in which this replica is the one to tell.
    term: Arc<Term>,
    times: Times,
    told: Told,
    /// Whether the last event could not be written, which was said.
    lacks_events: bool,
}

impl Teller {
    /// Of the policies of a namespace.
    pub fn new(
        cluster: Cluster,
        namespace: String,
        board: Arc<Board>,
        clock: Clock,
        term: Arc<Term>,
    ) -> Self {
        Self {
            cluster,
            namespace,
            board,
            term,
            times: Times::start(clock),
            told: Told::default(),
            lacks_events: false,
        }
    }

    /// Tells, until it is dropped.
    pub async fn run(mut self) {
        let mut plans = self.board.subscribe();
        loop {
            if self.term.lasts() {
                self.tell().await;
            } else {
                // What others tell from now on is in the objects.
                self.told = Told::default();
            }
            let next = Instant::now() + LOOK;
            tokio::select! {
                changed = plans.changed() => if changed.is_err() { return },
                () = sleep_until(next) => {}
            }
        }
    }

    async fn tell(&mut self) {
        let plans = self.board.plans();
        let due = self.told.due(&plans, self.times.clock.elapsed(), &self.times);
        for due in due {
            let written = self.term.write(self.write(&due.known, &due.status)).await;
            if !self.term.lasts() {
                return;
            }
            self.told.note(due, self.times.clock.elapsed(), written);
        }
        for untold in self.told.untold(self.times.clock.elapsed()) {
            let told = self.tell_event(&untold).await;
            if !self.term.lasts() {
                return;
            }
            self.told.note_event(&untold, told, self.times.clock.elapsed());
            if told == EventTold::Unanswered {
                break;
            }
        }
    }

    async fn write(&self, known: &Known, status: &PolicyStatus) -> Result<(), Problem> {
        let (namespace, name) = (&self.namespace, &known.name);
        let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{POLICIES}/{name}/status");
        // With the uid, another object of this name refuses it.
        let patch = json!({"metadata": {"uid": known.uid}, "status": status});
        self.cluster.patch::<IgnoredAny>(&path, PatchType::Merge, &patch).await.map(|_| ())
    }

    /// Says of a policy that it stands still, where `kubectl describe` shows it.
    async fn tell_event(&mut self, untold: &Untold) -> EventTold {
        let Untold { name, uid, reason, message } = untold;
        let api_version = format!("{GROUP}/{VERSION}");
        let about = About { api_version: &api_version, kind: KIND, name, uid };
        let event = event::event(&self.namespace, about, Kind::Warning, reason, message);
        let (path, body) = (event::path(&self.namespace), event.to_string().into_bytes());
        let told = self.cluster.put::<IgnoredAny>(Method::POST, &path, body, REQUEST).await;
        match told {
            Ok(_) => self.lacks_events = false,
            Err(problem) => {
                if !std::mem::replace(&mut self.lacks_events, true) {
                    tracing::info!(%problem, "no events about capacity policies; their statuses say the same");
                }
                return match problem {
                    // It will be no other time, and the log has said so.
                    Problem::Denied(_) => EventTold::Done,
                    problem if problem.is_unsure() => EventTold::Unanswered,
                    _ => EventTold::Refused,
                };
            }
        }
        EventTold::Done
    }
}

impl std::fmt::Debug for Teller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Teller").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
