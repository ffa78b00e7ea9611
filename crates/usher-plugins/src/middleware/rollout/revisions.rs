//! The revisions of a pool: who belongs to which, and what each weighs.

use std::sync::{Arc, Weak};

use rand::{Rng, RngExt};
use smallvec::SmallVec;
use usher_core::endpoints::Snapshot;
use usher_plugin::LabelValues;

use super::params::{GatingMode, RolloutParams};

/// Revision and role of each endpoint of one snapshot. Made once per snapshot, so that a
/// request compares numbers instead of labels.
#[derive(Debug)]
pub(super) struct Revisions {
    /// Kept weakly: what is only looked up doesn't keep endpoints that are gone.
    of: Weak<Snapshot>,
    /// By position in the snapshot; `None`: out of scope.
    members: Vec<Option<Member>>,
    /// Revisions by name.
    names: Vec<String>,
    /// Number of roles.
    roles: usize,
    /// The required roles; `None` for one that no endpoint has.
    required: Vec<Option<usize>>,
    mode: GatingMode,
    /// Values of the header selectors' labels, in the order of the selectors.
    selected: Vec<LabelValues>,
}

/// An endpoint in the scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Position in the names; `None`: it has none, or none is chosen.
    pub(super) revision: Option<usize>,
    role: Option<usize>,
}

/// Weight of each revision, in endpoints; 0 for those that can't be chosen.
pub(super) type Weights = SmallVec<[u64; 8]>;

impl Revisions {
    pub(super) fn of(snapshot: &Arc<Snapshot>, params: &RolloutParams) -> Self {
        let gating = &params.revision_gating;
        let is_gated = gating.mode != GatingMode::Disabled;
        let in_scope = || {
            let selector = &params.scope.label_selector;
            snapshot
                .endpoints()
                .iter()
                .map(|endpoint| selector.matches(|key| endpoint.label(key)).then_some(endpoint))
        };
        let values = |key: &str| -> Vec<String> {
            let labels = in_scope().flatten().filter(|_| is_gated).filter_map(|endpoint| endpoint.label(key));
            let mut values: Vec<String> =
                labels.filter(|value| !value.is_empty()).map(str::to_owned).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let (names, roles) = (values(&gating.revision_label_key), values(&gating.role_label_key));
        let find = |values: &[String], value: Option<&str>| {
            values.binary_search_by(|known| known.as_str().cmp(value.unwrap_or_default())).ok()
        };
        let members = in_scope().map(|endpoint| {
            endpoint.map(|endpoint| Member {
                revision: find(&names, endpoint.label(&gating.revision_label_key)),
                role: find(&roles, endpoint.label(&gating.role_label_key)),
            })
        });
        let required = gating.require_roles.values.iter().map(|role| find(&roles, Some(role)));
        let selected = params
            .header_selectors
            .iter()
            .map(|selector| LabelValues::of(&selector.label_key, snapshot.endpoints()));
        Self {
            of: Arc::downgrade(snapshot),
            members: members.collect(),
            required: required.collect(),
            roles: roles.len(),
            names,
            mode: gating.mode,
            selected: selected.collect(),
        }
    }

    /// Values of the header selectors' labels, in the order of the selectors.
    pub(super) fn selected(&self) -> &[LabelValues] {
        &self.selected
    }

    /// Returns `true` if these are the revisions of this snapshot.
    pub(super) fn are_of(&self, snapshot: &Arc<Snapshot>) -> bool {
        // The weak reference keeps the address from being used again.
        std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(snapshot))
    }

    /// Revision and role of the endpoint at this position; `None`: out of scope.
    pub(super) fn member(&self, position: u32) -> Option<Member> {
        self.members.get(position as usize).copied().flatten()
    }

    /// The names, in the order of the weights.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Weight of each revision among these endpoints. A revision that lacks a required role
    /// weighs nothing.
    pub(super) fn weights(&self, positions: impl Iterator<Item = u32>) -> Weights {
        // Endpoints per revision and role; the last column is for those without a role.
        let width = self.roles + 1;
        let mut counts: SmallVec<[u64; 32]> = SmallVec::from_elem(0, self.names.len() * width);
        for position in positions {
            if let Some(Member { revision: Some(revision), role }) = self.member(position) {
                let column = role.unwrap_or(self.roles);
                if let Some(count) = counts.get_mut(revision * width + column) {
                    *count += 1;
                }
            }
        }
        let is_complete = |counts: &&[u64]| {
            self.required.iter().all(|role| role.is_some_and(|role| counts.get(role).is_some_and(|n| *n > 0)))
        };
        let largest = match self.mode {
            GatingMode::MaxRole => self.largest_role(counts.chunks_exact(width).filter(is_complete)),
            GatingMode::Sum | GatingMode::Disabled => None,
        };
        let weight = |counts: &[u64]| match largest {
            Some(role) => counts.get(role).copied().unwrap_or_default(),
            None => counts.iter().sum(),
        };
        counts
            .chunks_exact(width)
            .map(|counts| if is_complete(&counts) { weight(counts) } else { 0 })
            .collect()
    }

    /// The role with the most endpoints; of equals the first by name. `None` where no
    /// endpoint has a role.
    fn largest_role<'a>(&self, revisions: impl Iterator<Item = &'a [u64]>) -> Option<usize> {
        let mut totals: SmallVec<[u64; 8]> = SmallVec::from_elem(0, self.roles);
        for counts in revisions {
            totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        }
        let most = totals.iter().copied().max().filter(|most| *most > 0)?;
        totals.iter().position(|total| *total == most)
    }
}

/// A revision at random, each as likely as it weighs; `None` where nothing weighs anything.
pub(super) fn choose(weights: &Weights, rng: &mut dyn Rng) -> Option<usize> {
    let total: u64 = weights.iter().sum();
    if total == 0 {
        return None;
    }
    let mut lot = rng.random_range(0..total);
    weights.iter().position(|weight| {
        let is_it = lot < *weight;
        lot = lot.saturating_sub(*weight);
        is_it
    })
}
