//! Statuses and events of policies: written ones and due ones. No I/O.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::policy_store::Known;
use super::times::Times;
use crate::actuator::Write;
use crate::capacity::Condition;
use crate::capacity::resource::status::{
    LastWrite, PolicyStatus, StatusCondition, StatusInput, TickStatus, status,
};
use crate::cluster::Problem;
use crate::scaling::plan_store::{Plans, PolicyEntry};

/// Time between two writes of the status of a policy that isn't ticked.
const UNTICKED: Duration = Duration::from_secs(15);

/// Time until a failed event is retried.
const AGAIN: Duration = Duration::from_secs(15);

/// A status to write.
#[derive(Debug, PartialEq)]
pub(super) struct Due {
    pub(super) known: Known,
    pub(super) status: PolicyStatus,
    /// New reasons for which the policy is blocked, each with a sentence.
    pub(super) new_stops: Vec<(String, String)>,
}

/// Fields of a status that the next leader restores: last firings of rules, last writes, admitted pods.
fn left(status: &PolicyStatus) -> impl PartialEq {
    let fired = status.rules.iter().map(|rule| (rule.name.clone(), rule.last_trigger_time.clone()));
    let let_through =
        status.roles.iter().map(|role| (role.name.clone(), role.let_through, role.domains.clone()));
    (fired.collect::<Vec<_>>(), status.last_writes.clone(), let_through.collect::<Vec<_>>())
}

/// Reasons for which a policy is blocked by a status, each once, with a sentence.
fn stops(status: &PolicyStatus) -> Vec<(String, String)> {
    let freezes = |name: &str| Condition::ALL.into_iter().any(|of| of.freezes() && format!("{of:?}") == name);
    let holds = |condition: &&StatusCondition| match condition.of.as_str() {
        "Accepted" => condition.status == "False",
        name => condition.status == "True" && freezes(name),
    };
    let all = status.conditions.iter().filter(holds);
    let mut stops: Vec<_> = all.map(|of| (of.reason.clone(), of.message.clone())).collect();
    // A policy rejected for a blocking condition has a condition of that name, too.
    let mut said = HashSet::new();
    stops.retain(|(reason, _)| said.insert(reason.clone()));
    stops
}

/// Reasons in one status that the one before lacks.
fn new_stops(status: &PolicyStatus, before: &PolicyStatus) -> Vec<(String, String)> {
    let (mut new_stops, old) = (stops(status), stops(before));
    new_stops.retain(|(reason, _)| !old.iter().any(|(of, _)| of == reason));
    new_stops
}

/// Written statuses, by the objects' uids. No I/O.
#[derive(Debug, Default)]
pub(super) struct WrittenStatuses(HashMap<String, WrittenStatus>);

/// Outcome of writing an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventOutcome {
    Done,
    /// Refused.
    Refused,
    /// No response; none is expected for others either.
    Unanswered,
}

/// An event to write.
#[derive(Debug, PartialEq)]
pub(super) struct PendingEvent {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) reason: String,
    pub(super) message: String,
}

#[derive(Debug)]
struct WrittenStatus {
    name: String,
    status: PolicyStatus,
    at: Duration,
    /// Events to write: reasons, each with a sentence.
    pending_events: Vec<(String, String)>,
    /// Time of the next attempt.
    tries: Duration,
    /// Error of the last write, which was logged.
    problem: Option<Problem>,
}

impl WrittenStatuses {
    /// Statuses to write now.
    pub(super) fn due(&mut self, plans: &Plans, now: Duration, times: &Times) -> Vec<Due> {
        self.0.retain(|uid, _| plans.objects.iter().any(|known| known.uid == *uid));
        let due = plans.objects.iter().filter_map(|known| {
            let entry = plans.policies.iter().find(|entry| entry.group.policy.name == known.name);
            let written = self.0.get(&known.uid);
            let interval = entry.map_or(UNTICKED, |entry| entry.group.policy.interval);
            let is_early = written.is_some_and(|written| now.saturating_sub(written.at) < interval);
            if is_early && written.is_some_and(|written| written.problem.is_some()) {
                return None;
            }
            let before = written.map_or(&known.status, |written| &written.status);
            let status = of(known, entry, before, &times.at(now), times);
            let is_due = if is_early { left(&status) != left(before) } else { status != *before };
            is_due.then(|| Due { known: known.clone(), new_stops: new_stops(&status, before), status })
        });
        due.collect()
    }

    pub(super) fn note(&mut self, due: Due, at: Duration, written: Result<(), Problem>) {
        let Due { known, status, new_stops } = due;
        let old = self.0.remove(&known.uid);
        let Known { name, uid, status: seen, .. } = known;
        let (before, mut pending_events, tries, last) = match old {
            Some(old) => (old.status, old.pending_events, old.tries, old.problem),
            None => (seen, Vec::new(), at, None),
        };
        let record = match written {
            Ok(()) => {
                // Reasons that no longer hold need no event.
                let stops = stops(&status);
                pending_events.retain(|(reason, _)| stops.iter().any(|(of, _)| of == reason));
                pending_events.extend(new_stops);
                WrittenStatus { name, status, at, pending_events, tries, problem: None }
            }
            Err(problem) => {
                if last.as_ref() != Some(&problem) {
                    let hint = if matches!(problem, Problem::Denied(_)) {
                        "; allow the verb patch for capacitypolicies/status in the picker's Role"
                    } else {
                        ""
                    };
                    tracing::warn!(
                        policy = name,
                        problem = format!("{problem}{hint}"),
                        "cannot write the status of a capacity policy"
                    );
                }
                WrittenStatus { name, status: before, at, pending_events, tries, problem: Some(problem) }
            }
        };
        self.0.insert(uid, record);
    }

    /// Events to write now.
    pub(super) fn pending_events(&self, now: Duration) -> Vec<PendingEvent> {
        let due = self.0.iter().filter(|(_, record)| record.tries <= now);
        let of = |(uid, record): (&String, &WrittenStatus)| {
            let (uid, name) = (uid.clone(), record.name.clone());
            let pending_events = record.pending_events.clone().into_iter();
            pending_events.map(move |(reason, message)| PendingEvent {
                name: name.clone(),
                uid: uid.clone(),
                reason,
                message,
            })
        };
        due.flat_map(of).collect()
    }

    /// Records the outcome of an event. Without a response none is tried for a while, as statuses would wait
    /// for each.
    pub(super) fn note_event(&mut self, event: &PendingEvent, outcome: EventOutcome, now: Duration) {
        let record = self.0.get_mut(&event.uid);
        match (outcome, record) {
            (EventOutcome::Done, Some(record)) => {
                record.pending_events.retain(|(reason, _)| *reason != event.reason);
            }
            (EventOutcome::Refused, Some(record)) => record.tries = now + AGAIN,
            (EventOutcome::Unanswered, _) => {
                self.0.values_mut().for_each(|record| record.tries = now + AGAIN);
            }
            (_, None) => {}
        }
    }
}

/// Status of a policy, from its current plan.
fn of(
    known: &Known,
    entry: Option<&PolicyEntry>,
    before: &PolicyStatus,
    now: &str,
    times: &Times,
) -> PolicyStatus {
    let fired: Vec<Option<String>> = entry
        .and_then(|entry| entry.latest.as_ref())
        .map(|latest| latest.fired.iter().map(|at| at.map(|at| times.at(at))).collect())
        .unwrap_or_default();
    let written = |(role, write): &(String, Write)| LastWrite {
        role: role.clone(),
        time: times.at(write.at),
        from: write.from,
        to: write.to,
        reason: write.reason.clone(),
    };
    let writes: Vec<LastWrite> = entry.into_iter().flat_map(|entry| &entry.writes).map(written).collect();
    let ticked = entry.and_then(|entry| {
        let latest = entry.latest.as_ref()?;
        let policy = entry.group.policy.as_ref();
        let let_through = entry.let_through.as_slice();
        Some(TickStatus { policy, plan: &latest.plan, fired: &fired, writes: &writes, let_through })
    });
    let held = entry.and_then(|entry| entry.held.as_ref());
    let held = held.map(|held| (held.condition, &*held.why));
    let input = StatusInput { generation: known.generation, verdict: &known.verdict, ticked, held };
    status(input, before, now)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::capacity::plan::{Plan, RolePlan, RuleOutcome, RuleStage, Stages, State};
    use crate::capacity::policy::file;
    use crate::capacity::resource::status::LetThrough;
    use crate::capacity::resource::status::Verdict;
    use crate::endpoints::Clock;
    use crate::scaling::objects::times::at_zero;
    use crate::scaling::{Group, Latest};

    const SECOND: Duration = Duration::from_secs(1);

    fn times() -> Times {
        let clock = Clock::stopped();
        Times { zero: at_zero(&clock, Timestamp::from_second(1_767_225_600).unwrap()), clock }
    }

    fn known(verdict: &'static str) -> Known {
        Known {
            name: "p".to_owned(),
            uid: "u".to_owned(),
            generation: Some(1),
            verdict: Verdict { is_accepted: verdict == "Accepted", reason: verdict, message: String::new() },
            status: PolicyStatus::default(),
        }
    }

    fn plans(desired: u32, outcome: RuleOutcome, fired: Option<Duration>) -> Plans {
        let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  interval: 10s\n  roles: {a: {max: 5}}\n  rules: [{name: up, role: a, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 1}]\n";
        let policy = Arc::new(file::parse(text).unwrap().remove(0).policy);
        let role = RolePlan { name: "a".to_owned(), desired, ..RolePlan::default() };
        let rules = vec![RuleStage { name: "up".to_owned(), value: Some(1.0), outcome }];
        let stages = Stages { rules, ..Stages::default() };
        let plan = Plan { roles: vec![role], total: desired, state: State::Idle, stages, ..Plan::default() };
        let latest = Latest { plan, waiting: 0, at: Duration::ZERO, fired: vec![fired] };
        let group = Group { policy, signals: Vec::new(), frozen: None };
        let entry = PolicyEntry {
            group,
            latest: Some(Arc::new(latest)),
            held: None,
            writes: Vec::new(),
            let_through: Vec::new(),
        };
        Plans { policies: vec![entry], objects: vec![known("Accepted")].into() }
    }

    #[test]
    fn changed_status_is_written_once_per_interval() {
        let (mut written, times) = (WrittenStatuses::default(), times());
        let first = written.due(&plans(1, RuleOutcome::Quiet, None), SECOND, &times).remove(0);
        assert_eq!(first.status.desired, Some(1));
        assert_eq!(first.status.conditions[0].last_transition_time, "2026-01-01T00:00:01Z");
        written.note(first, SECOND, Ok(()));
        // As it was; changed, but too early; changed.
        assert!(written.due(&plans(1, RuleOutcome::Quiet, None), 60 * SECOND, &times).is_empty());
        assert!(written.due(&plans(2, RuleOutcome::Quiet, None), 10 * SECOND, &times).is_empty());
        assert_eq!(written.due(&plans(2, RuleOutcome::Quiet, None), 11 * SECOND, &times).len(), 1);
        let fired = plans(2, RuleOutcome::Fired, Some(9 * SECOND));
        let second = written.due(&fired, 11 * SECOND, &times).remove(0);
        assert_eq!(second.status.desired, Some(2));
        assert_eq!(second.status.rules[0].last_trigger_time.as_deref(), Some("2026-01-01T00:00:09Z"));
        written.note(second, 11 * SECOND, Ok(()));
        // Another replica that leads goes on from what it sees.
        let mut seen = plans(2, RuleOutcome::Cooldown, None);
        seen.objects = [Known { status: written.0["u"].status.clone(), ..known("Accepted") }].into();
        let third = WrittenStatuses::default().due(&seen, 12 * SECOND, &times).remove(0);
        assert_eq!(third.status.rules[0].last_trigger_time.as_deref(), Some("2026-01-01T00:00:09Z"));
        assert_eq!(third.status.rules[0].last_skip_reason.as_deref(), Some("Cooldown"));
        assert_eq!(third.status.conditions[0].last_transition_time, "2026-01-01T00:00:01Z");
        seen.objects = Vec::new().into();
        assert!(written.due(&seen, 99 * SECOND, &times).is_empty() && written.0.is_empty());
    }

    #[test]
    fn failed_status_write_is_retried_later() {
        let (mut written, times) = (WrittenStatuses::default(), times());
        let now = plans(1, RuleOutcome::Quiet, None);
        let first = written.due(&now, SECOND, &times).remove(0);
        written.note(first, SECOND, Err(Problem::Denied("no".to_owned())));
        assert!(written.due(&now, 2 * SECOND, &times).is_empty());
        assert_eq!(written.due(&now, 11 * SECOND, &times).len(), 1);
    }

    #[test]
    fn state_for_the_next_leader_is_written_at_once() {
        let (mut written, times) = (WrittenStatuses::default(), times());
        let first = written.due(&plans(1, RuleOutcome::Quiet, None), SECOND, &times).remove(0);
        written.note(first, SECOND, Ok(()));
        let fired = || plans(1, RuleOutcome::Cooldown, Some(2 * SECOND));
        let mut passed = plans(1, RuleOutcome::Quiet, None);
        passed.policies[0].let_through =
            vec![LetThrough { role: "a".to_owned(), pods: 3, domains: Vec::new() }];
        let mut wrote = plans(1, RuleOutcome::Quiet, None);
        let write = Write { from: 1, to: 2, at: SECOND, reason: String::new() };
        wrote.policies[0].writes = vec![("a".to_owned(), write)];
        for now in [fired(), passed, wrote] {
            assert_eq!(written.due(&now, 2 * SECOND, &times).len(), 1);
        }
        // Where the API server doesn't take it, as late as the rest.
        let second = written.due(&fired(), 2 * SECOND, &times).remove(0);
        written.note(second, 2 * SECOND, Err(Problem::TimedOut(SECOND)));
        assert!(written.due(&fired(), 11 * SECOND, &times).is_empty());
        assert_eq!(written.due(&fired(), 12 * SECOND, &times).len(), 1);
    }

    #[test]
    fn failed_event_is_retried_while_its_reason_holds() {
        let (mut written, times) = (WrittenStatuses::default(), times());
        let refused = Plans { policies: Vec::new(), objects: [known("Invalid")].into() };
        let first = written.due(&refused, SECOND, &times).remove(0);
        assert!(written.pending_events(SECOND).is_empty(), "the status comes first");
        written.note(first, SECOND, Ok(()));
        let event = written.pending_events(SECOND).remove(0);
        assert_eq!((event.name.as_str(), event.reason.as_str()), ("p", "Invalid"));
        written.note_event(&event, EventOutcome::Refused, SECOND);
        assert!(written.pending_events(15 * SECOND).is_empty());
        assert_eq!(written.pending_events(16 * SECOND), [event]);
        // Another reason by then.
        let other = Plans { objects: [known("TargetConflict")].into(), ..refused };
        let second = written.due(&other, 16 * SECOND, &times).remove(0);
        written.note(second, 16 * SECOND, Ok(()));
        let event = written.pending_events(16 * SECOND).remove(0);
        assert_eq!((event.reason.as_str(), written.pending_events(16 * SECOND).len()), ("TargetConflict", 1));
        written.note_event(&event, EventOutcome::Done, 16 * SECOND);
        assert!(written.pending_events(99 * SECOND).is_empty());
    }

    #[test]
    fn refused_event_delays_itself_and_unanswered_one_delays_all() {
        let other = Known { name: "q".to_owned(), uid: "v".to_owned(), ..known("Invalid") };
        let plans = Plans { policies: Vec::new(), objects: [known("Invalid"), other].into() };
        for (outcome, waits) in [(EventOutcome::Refused, 1), (EventOutcome::Unanswered, 2)] {
            let (mut written, times) = (WrittenStatuses::default(), times());
            for due in written.due(&plans, SECOND, &times) {
                written.note(due, SECOND, Ok(()));
            }
            let first = written.pending_events(SECOND).remove(0);
            written.note_event(&first, outcome, SECOND);
            assert_eq!(written.pending_events(2 * SECOND).len(), 2 - waits, "{outcome:?}");
            assert_eq!(written.pending_events(16 * SECOND).len(), 2, "{outcome:?}");
        }
    }

    #[test]
    fn refused_policy_gets_a_status_without_a_plan() {
        let (mut written, times) = (WrittenStatuses::default(), times());
        let refused = Plans { policies: Vec::new(), objects: [known("Invalid")].into() };
        let due = written.due(&refused, SECOND, &times).remove(0);
        let accepted = &due.status.conditions[0];
        assert_eq!((accepted.of.as_str(), accepted.status.as_str()), ("Accepted", "False"));
        assert_eq!(due.new_stops, [("Invalid".to_owned(), String::new())]);
        // Whoever leads next says it once more only where it is another reason.
        let seen = Known { status: due.status, ..known("Invalid") };
        let again = Plans { objects: [seen.clone()].into(), ..refused };
        assert!(WrittenStatuses::default().due(&again, SECOND, &times).is_empty());
        let other = Known { verdict: known("TargetConflict").verdict, ..seen };
        let other = Plans { objects: [other].into(), ..again };
        let due = WrittenStatuses::default().due(&other, SECOND, &times).remove(0);
        assert_eq!(due.new_stops, [("TargetConflict".to_owned(), String::new())]);
        assert_eq!(due.status.state, None);
    }
}
