//! The result of scheduling, and what is kept to explain it.

use std::sync::Arc;

use smallvec::SmallVec;
use usher_core::endpoints::{Candidates, Endpoint};

/// Part of a decision that is kept beside the picks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Record {
    /// Off; costs no time.
    #[default]
    No,
    /// The total of each candidate that survived the filters (`--emit-endpoint-scores`).
    Scores,
    /// The totals, and what every scorer gave.
    Columns,
}

/// Common part of all decisions of one thread among the same candidates. A thread
/// has its own, so that counting who holds it takes no turns with other threads.
#[derive(Debug)]
pub struct DecisionContext {
    candidates: Candidates,
    profiles: Arc<[Arc<str>]>,
    prefill: Option<usize>,
}

impl DecisionContext {
    /// Common part of decisions among these candidates. `profiles`: names of all profiles; `prefill`: index
    /// of the profile that picks the endpoint which computes the prompt, if there is one.
    pub fn new(candidates: Candidates, profiles: Arc<[Arc<str>]>, prefill: Option<usize>) -> Self {
        Self { candidates, profiles, prefill }
    }

    /// Returns `true` if it is that of these candidates and profiles.
    pub fn is_of(&self, candidates: &Candidates, profiles: &Arc<[Arc<str>]>) -> bool {
        self.candidates.is_same(candidates) && Arc::ptr_eq(&self.profiles, profiles)
    }
}

/// Endpoints that a request goes to.
#[derive(Clone, Debug)]
pub struct Decision {
    shared: Arc<DecisionContext>,
    runs: SmallVec<[Run; 1]>,
    primary: usize,
}

impl Decision {
    /// The decision of these runs, of which the one at `primary` has the endpoints that the gateway gets.
    /// `None` unless there is such a run and every pick exists.
    pub fn new(shared: Arc<DecisionContext>, runs: SmallVec<[Run; 1]>, primary: usize) -> Option<Self> {
        let endpoints = shared.candidates.snapshot().endpoints().len();
        let sound = |run: &Run| {
            run.profile < shared.profiles.len()
                && !run.picks.is_empty()
                && run.picks.iter().all(|&pick| (pick as usize) < endpoints)
        };
        (primary < runs.len() && runs.iter().all(sound)).then_some(Self { shared, runs, primary })
    }

    /// Candidates that could be picked.
    #[inline]
    pub fn candidates(&self) -> &Candidates {
        &self.shared.candidates
    }

    /// The profiles that picked, in the order of the configuration.
    #[inline]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The run whose picks go to the gateway.
    #[inline]
    pub fn primary(&self) -> &Run {
        &self.runs[self.primary]
    }

    /// The run of the profile with this name, if it picked.
    pub fn run(&self, profile: &str) -> Option<&Run> {
        self.runs.iter().find(|run| self.profile(run) == profile)
    }

    /// The run that picked who computes the prompt: that of the profile which the handler
    /// knows as such, if it picked. It may be the primary one. Without it, who responds
    /// computes the prompt.
    pub fn prefill(&self) -> Option<&Run> {
        let prefill = self.shared.prefill?;
        self.runs.iter().find(|run| run.profile == prefill)
    }

    /// The name of the profile of one of this decision's runs.
    pub fn profile(&self, run: &Run) -> &str {
        &self.shared.profiles[run.profile]
    }

    /// Endpoint that the request goes to first.
    #[inline]
    pub fn primary_endpoint(&self) -> &Arc<Endpoint> {
        self.endpoint(self.primary().picks[0])
    }

    /// Adds the primary picks of another decision of the same request among endpoints of
    /// the same snapshot as fallbacks, as many as that one has picks.
    pub fn fall_back_on(&mut self, other: &Self) {
        let most = other.primary().picks.len();
        let same = Arc::ptr_eq(self.candidates().snapshot(), other.candidates().snapshot());
        let Some(run) = self.runs.get_mut(self.primary).filter(|_| same) else { return };
        for pick in &other.primary().picks {
            if run.picks.len() < most && !run.picks.contains(pick) {
                run.picks.push(*pick);
            }
        }
    }

    /// The primary picks, best first; the others are fallbacks.
    pub fn endpoints(&self) -> impl ExactSizeIterator<Item = &Arc<Endpoint>> {
        self.endpoints_of(self.primary())
    }

    /// The picks of one of this decision's runs, best first.
    pub fn endpoints_of<'a>(&'a self, run: &'a Run) -> impl ExactSizeIterator<Item = &'a Arc<Endpoint>> {
        run.picks.iter().map(|&pick| self.endpoint(pick))
    }

    /// Address (`host:port`) and total of every candidate that survived the
    /// primary profile's filters. Empty unless scores were recorded.
    pub fn scores(&self) -> impl Iterator<Item = (&Arc<str>, f64)> {
        let scores = self.primary().record.as_deref();
        let pairs = scores.map(|s| s.survivors.iter().zip(&s.totals)).into_iter().flatten();
        pairs.map(|(&survivor, &total)| (self.endpoint(survivor).authority(), total))
    }

    /// Gives up what was recorded of the scores.
    pub fn forget_scores(&mut self) {
        self.runs.iter_mut().for_each(|run| run.record = None);
    }

    fn endpoint(&self, index: u32) -> &Arc<Endpoint> {
        &self.shared.candidates.snapshot().endpoints()[index as usize]
    }
}

/// Picks of one profile.
#[derive(Clone, Debug)]
pub struct Run {
    /// The profile, by its position in the configuration.
    pub profile: usize,
    /// Positions in the snapshot, best first; at least one.
    pub picks: SmallVec<[u32; 2]>,
    /// Scores behind the picks, if they were asked for.
    pub record: Option<Box<Scores>>,
}

/// The scores of a profile's run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// The candidates that survived the filters, as positions in the snapshot.
    pub survivors: Vec<u32>,
    /// Total score of each survivor.
    pub totals: Vec<f64>,
    /// One column per scorer, in the order of the profile; empty when only totals were asked for.
    pub columns: Vec<Column>,
}

/// Scores of one scorer.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Instance name of the scorer.
    pub scorer: Arc<str>,
    /// Weight in the profile.
    pub weight: f64,
    /// The score of each survivor as it counted: in 0..=1, and 0 for what was no number.
    pub scores: Vec<f32>,
}
