//! State of a policy before its first tick here, from its status or its previous version.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::capacity::policy::{Role, Sizing};
use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::{Change, Growth, Policy, State, Surge};

/// State restored from a policy's status or its previous version.
#[derive(Debug)]
pub(super) struct PriorState {
    /// Time for which fired rules have been known, if earlier ones are unknown.
    pub(super) unknown: Option<Duration>,
    /// State and goals of the group, if they belong to this version.
    pub(super) at: Option<(State, Vec<u32>)>,
    /// Changes of roles in progress.
    pub(super) changes: Vec<Change>,
    /// Roles that grew, and those that kept pods meanwhile.
    pub(super) growth: Growth,
    /// Pods asked for, by role, if known.
    pub(super) asked: Vec<Option<u32>>,
    /// Admitted pods, by role.
    pub(super) admitted: Vec<u32>,
    /// Rules that have fired, by index, with the time since.
    pub(super) fired: Vec<(usize, Duration)>,
}

impl Default for PriorState {
    /// No prior state: rules may have fired.
    fn default() -> Self {
        Self { unknown: Some(Duration::ZERO), ..Self::none() }
    }
}

impl PriorState {
    /// Prior state in which nothing happened.
    pub(super) fn none() -> Self {
        Self {
            unknown: None,
            at: None,
            changes: Vec::new(),
            growth: Growth::default(),
            asked: Vec::new(),
            admitted: Vec::new(),
            fired: Vec::new(),
        }
    }

    /// Reads the state from a status, at this time.
    pub(super) fn of(
        policy: &Policy,
        generation: Option<i64>,
        status: &PolicyStatus,
        now: Timestamp,
    ) -> Self {
        let (at, changes) = (group_state(policy, generation, status), changes(policy, status));
        let is_in_status = |role: &Role| status.roles.iter().any(|known| known.name == role.name);
        let surges: Vec<_> = policy.roles.iter().map(|role| surge(role, status)).collect();
        let asked = policy.roles.iter().map(|role| asked(role, status)).collect();
        // Without a waiting role only if the status has all roles.
        let is_known = status.observed_generation.is_some()
            && (policy.roles.iter().all(is_in_status) || surges.iter().any(Option::is_some));
        let growth = if is_known { Growth::of(surges) } else { Growth::default() };
        // A role never written may not have been writable.
        let unknown = if status.observed_generation.is_some() { None } else { Some(Duration::ZERO) };
        let Sizing::Rules(rules) = &policy.sizing else {
            return Self { at, changes, growth, asked, unknown, ..Self::none() };
        };
        let fired = rules.iter().enumerate().filter_map(|(place, rule)| {
            let known = status.rules.iter().find(|known| known.name == rule.name)?;
            let at: Timestamp = known.last_trigger_time.as_ref()?.parse().ok()?;
            // A time in the future is of another clock.
            Some((place, Duration::try_from(now.duration_since(at)).unwrap_or_default()))
        });
        Self { at, changes, growth, asked, fired: fired.collect(), unknown, ..Self::none() }
    }
}

/// Changes of a policy's roles in its status, of whichever version. None unless it names all roles.
fn changes(policy: &Policy, status: &PolicyStatus) -> Vec<Change> {
    let change = |role: &Role| {
        let known = status.roles.iter().find(|known| known.name == role.name)?;
        Some(Change { from: known.current, to: known.goal.unwrap_or(known.desired) })
    };
    policy.roles.iter().map(change).collect::<Option<_>>().unwrap_or_default()
}

/// Pods that a role keeps until others have grown, by a status.
fn surge(role: &Role, status: &PolicyStatus) -> Option<Surge> {
    let known = status.roles.iter().find(|known| known.is_of(role))?;
    let goal = known.goal.filter(|goal| *goal < known.desired)?;
    Some(Surge { desired: known.desired, goal })
}

/// Pods asked for, by a status: no more than the admitted ones of a step in progress.
fn asked(role: &Role, status: &PolicyStatus) -> Option<u32> {
    let known = status.roles.iter().find(|known| known.is_of(role))?;
    Some(known.desired.min(known.admitted.max(known.current)))
}

/// State and goals of the group in the policy's status. `None` if absent, or of another version.
fn group_state(policy: &Policy, generation: Option<i64>, status: &PolicyStatus) -> Option<(State, Vec<u32>)> {
    if status.observed_generation != generation {
        return None;
    }
    let said = status.state.as_deref()?;
    let state = State::ALL.into_iter().find(|state| state.to_string() == said)?;
    let goal = |role: &Role| Some(status.roles.iter().find(|known| known.name == role.name)?.desired);
    Some((state, policy.roles.iter().map(goal).collect::<Option<_>>()?))
}
