//! Sends events after a plan is applied, within the time limit of a tick; the rest follows at the next tick.

use std::time::Duration;

use serde_json::Value;

use super::event::{self, About, Kind};
use super::state::Actuator;
use super::target::Target;
use crate::cluster::Problem;

/// Most pending events of a policy. Older ones are dropped.
const MOST: usize = 32;

/// Timeout of one event request.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns `true` if an event is sent again: the API server was unreachable or overloaded.
fn is_kept(problem: &Problem) -> bool {
    !problem.is_response() || problem.is_of_the_server()
}

impl Actuator {
    /// Queues an event about an object.
    pub(super) fn record_event(
        &mut self,
        policy: &str,
        target: &Target,
        kind: Kind,
        reason: &str,
        message: &str,
    ) {
        let Target { reference, uid, .. } = target;
        let about =
            About { api_version: &reference.api_version, kind: &reference.kind, name: &reference.name, uid };
        let event = event::event(&self.namespace, about, kind, reason, message);
        let waiting = self.events.entry(policy.to_owned()).or_default();
        if waiting.len() >= MOST {
            waiting.pop_front();
        }
        waiting.push_back(event.to_string().into_bytes());
    }

    /// Sends pending events of a policy, as far as time allows.
    pub(super) async fn send_events(&mut self, policy: &str) {
        let subject = "events about writes";
        let mut waiting = self.events.remove(policy).unwrap_or_default();
        while let Some(event) = waiting.front() {
            let path = event::path(&self.namespace);
            let sent: Result<Value, Problem> =
                self.cluster.put(http::Method::POST, &path, event.clone(), LIMIT).await;
            match sent {
                Ok(_) => self.clear_problem(subject),
                Err(Problem::Unsent) => {
                    self.is_unfinished = true;
                    break;
                }
                Err(problem) => {
                    self.report_problem(subject, &problem);
                    if is_kept(&problem) {
                        break;
                    }
                }
            }
            waiting.pop_front();
        }
        if !waiting.is_empty() {
            self.events.insert(policy.to_owned(), waiting);
        }
    }
}
