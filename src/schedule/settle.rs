//! What a profile handler may change when all profiles have run.

use std::sync::Arc;

use crate::endpoints::Candidates;

use super::context::{Outcome, Runs};
use super::decision::{Record, Scores};

/// The profiles that ran, open to a change of their picks: a handler that wants two
/// endpoints which fit together looks at the scores of both profiles and replaces what
/// each picked alone.
#[derive(Debug)]
pub struct Settlement<'a> {
    /// Of the profiles.
    pub(super) names: &'a [Arc<str>],
    pub(super) outcomes: &'a mut [Outcome],
    pub(super) candidates: &'a Candidates,
}

impl Settlement<'_> {
    /// What became of the profiles.
    pub fn runs(&self) -> Runs<'_> {
        Runs { names: self.names, outcomes: self.outcomes, candidates: self.candidates }
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

    /// Drops the totals that were kept for the handler alone: a decision stays as long as
    /// its stream, and they are as long as the pool.
    pub(super) fn end(self, record: Record) {
        if record != Record::No {
            return;
        }
        for outcome in self.outcomes {
            if let Outcome::Picked(run) = outcome {
                run.record = None;
            }
        }
    }
}
