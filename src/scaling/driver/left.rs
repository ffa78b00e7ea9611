//! Record of a policy's earlier ticks: by another leader, before a restart, or of an earlier version.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::capacity::policy::{Role, Sizing};
use crate::capacity::resource::status::PolicyStatus;
use crate::capacity::{Change, Growth, Policy, State, Surge};

/// Record of a policy's ticks elsewhere, from its status, or of the version before.
#[derive(Debug)]
pub(super) struct Left {
    /// For how long it has been known which rules fire, where it isn't known which did before.
    pub(super) unknown: Option<Duration>,
    /// Its state and goals, where they are of this version of the policy.
    pub(super) at: Option<(State, Vec<u32>)>,
    /// Changes of its roles that were under way.
    pub(super) changes: Vec<Change>,
    /// Its roles that grew, and those that kept pods until others had grown.
    pub(super) growth: Growth,
    /// Pods of each role that were asked for, where that is known.
    pub(super) asked: Vec<Option<u32>>,
    /// Pods of each role that were let through their gate.
    pub(super) admitted: Vec<u32>,
    /// Rules that have fired, by place, and how long ago.
    pub(super) fired: Vec<(usize, Duration)>,
}

impl Default for Left {
    /// No record: rules may have fired.
    fn default() -> Self {
        Self { unknown: Some(Duration::ZERO), ..Self::nothing() }
    }
}

impl Left {
    /// A record that nothing happened.
    pub(super) fn nothing() -> Self {
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

    /// Reads the record of a status, at that time.
    pub(super) fn of(
        policy: &Policy,
        generation: Option<i64>,
        status: &PolicyStatus,
        now: Timestamp,
    ) -> Self {
        let (at, changes) = (left_at(policy, generation, status), changes(policy, status));
        let is_told = |role: &Role| status.roles.iter().any(|known| known.name == role.name);
        let surges: Vec<_> = policy.roles.iter().map(|role| surge(role, status)).collect();
        let asked = policy.roles.iter().map(|role| asked(role, status)).collect();
        // That nobody waited is known where all are told of.
        let is_known = status.observed_generation.is_some()
            && (policy.roles.iter().all(is_told) || surges.iter().any(Option::is_some));
        let growth = if is_known { Growth::of(surges) } else { Growth::default() };
        // One that was never written may not have been allowed to be.
        let unknown = if status.observed_generation.is_some() { None } else { Some(Duration::ZERO) };
        let Sizing::Rules(rules) = &policy.sizing else {
            return Self { at, changes, growth, asked, unknown, ..Self::nothing() };
        };
        let fired = rules.iter().enumerate().filter_map(|(place, rule)| {
            let known = status.rules.iter().find(|known| known.name == rule.name)?;
            let at: Timestamp = known.last_trigger_time.as_ref()?.parse().ok()?;
            // One that lies ahead is of another clock.
            Some((place, Duration::try_from(now.duration_since(at)).unwrap_or_default()))
        });
        Self { at, changes, growth, asked, fired: fired.collect(), unknown, ..Self::nothing() }
    }
}

/// Changes of a policy's roles that its status tells of, whichever version of the policy asked for them. None
/// where it doesn't name all roles.
fn changes(policy: &Policy, status: &PolicyStatus) -> Vec<Change> {
    let change = |role: &Role| {
        let known = status.roles.iter().find(|known| known.name == role.name)?;
        Some(Change { from: known.current, to: known.goal.unwrap_or(known.desired) })
    };
    policy.roles.iter().map(change).collect::<Option<_>>().unwrap_or_default()
}

/// Pods that a role keeps until others have grown, as a status says.
fn surge(role: &Role, status: &PolicyStatus) -> Option<Surge> {
    let known = status.roles.iter().find(|known| known.is_of(role))?;
    let goal = known.goal.filter(|goal| *goal < known.desired)?;
    Some(Surge { desired: known.desired, goal })
}

/// Pods that a role was asked to have, as a status says: of a step that is under way no more than were admitted.
fn asked(role: &Role, status: &PolicyStatus) -> Option<u32> {
    let known = status.roles.iter().find(|known| known.is_of(role))?;
    Some(known.desired.min(known.admitted.max(known.current)))
}

/// State and goals of the group in the policy's status. `None`: the status lacks them, or is of another version of the
/// policy.
fn left_at(policy: &Policy, generation: Option<i64>, status: &PolicyStatus) -> Option<(State, Vec<u32>)> {
    if status.observed_generation != generation {
        return None;
    }
    let said = status.state.as_deref()?;
    let state = State::ALL.into_iter().find(|state| state.to_string() == said)?;
    let goal = |role: &Role| Some(status.roles.iter().find(|known| known.name == role.name)?.desired);
    Some((state, policy.roles.iter().map(goal).collect::<Option<_>>()?))
}
