//! Changes that a profile handler may make when all profiles have run.

use std::sync::Arc;

use usher_core::endpoints::Candidates;

use super::context::{Outcome, Runs};
use super::decision::Scores;

/// The profiles that ran, open to a change of their picks: a handler that wants two
/// endpoints which fit together looks at the scores of both profiles and replaces what
/// each picked alone.
#[derive(Debug)]
pub struct Settlement<'a> {
    names: &'a [Arc<str>],
    outcomes: &'a mut [Outcome],
    candidates: &'a Candidates,
}

impl<'a> Settlement<'a> {
    /// The profiles of these names with their outcomes.
    pub fn new(names: &'a [Arc<str>], outcomes: &'a mut [Outcome], candidates: &'a Candidates) -> Self {
        Self { names, outcomes, candidates }
    }

    /// Outcomes of the profiles.
    pub fn runs(&self) -> Runs<'_> {
        Runs::new(self.names, self.outcomes, self.candidates)
    }

    /// The candidates that survived a profile's filters, and their totals. `None` unless
    /// it picked, and its totals are kept
    /// ([`ProfileHandler::keeps_totals`](super::ProfileHandler::keeps_totals)).
    pub fn scores(&self, profile: usize) -> Option<&Scores> {
        match self.outcomes.get(profile)? {
            Outcome::Picked(run) => run.record.as_deref(),
            _ => None,
        }
    }

    /// Replaces the picks of a profile, the best first, as positions in the snapshot. Says
    /// whether it did: a profile whose totals are not kept keeps its picks, and so does
    /// one that is to get nothing, or what its filters removed.
    pub fn replace(&mut self, profile: usize, picks: &[u32]) -> bool {
        let Some(Outcome::Picked(run)) = self.outcomes.get_mut(profile) else { return false };
        let Some(scores) = run.record.as_deref() else { return false };
        let fits = !picks.is_empty() && picks.iter().all(|pick| scores.survivors.contains(pick));
        if fits {
            run.picks.clear();
            run.picks.extend_from_slice(picks);
        }
        fits
    }

    /// Leaves a profile without a pick, as if it had not run.
    pub fn withdraw(&mut self, profile: usize) {
        if let Some(outcome) = self.outcomes.get_mut(profile) {
            *outcome = Outcome::Waiting;
        }
    }
}
