//! From candidates to a decision.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rand::Rng;
use smallvec::SmallVec;
use usher_plugin::{
    Context, Decision, DecisionContext, Outcome, PluginId, ProfileHandler, Record, Run, Runs, ScheduleError,
    Settlement,
};

use crate::endpoints::Candidates;
use crate::metrics::Timing;

use super::metrics::{Point, SchedulerMetrics};
use super::profile::{Placed, Profile, charge};
use super::scratch::Scratch;

/// The profiles of a configuration and the handler that chooses among them.
pub struct Scheduler {
    profiles: Vec<Profile>,
    names: Arc<[Arc<str>]>,
    handler: Placed<dyn ProfileHandler>,
    /// Profile that picks the prefill endpoint.
    prefill: Option<usize>,
    /// The handler keeps totals of a profile, to settle picks by them.
    settles: bool,
    finish_duration: Timing,
    e2e: Timing,
}

impl Scheduler {
    /// A scheduler over these profiles, in the order of the configuration.
    pub fn new(
        mut profiles: Vec<Profile>,
        id: &PluginId,
        handler: Arc<dyn ProfileHandler>,
        metrics: &SchedulerMetrics,
    ) -> Self {
        let duration = metrics.duration(Point::ProfilePicker, id);
        let finish_duration = metrics.duration(Point::ProcessProfilesResults, id);
        let handler = Placed { plugin: handler, id: id.clone(), duration };
        for (position, profile) in profiles.iter_mut().enumerate() {
            profile.position = position;
            profile.keeps_totals = handler.plugin.keeps_totals(profile.name());
        }
        let settles = profiles.iter().any(|profile| profile.keeps_totals);
        let prefill = profiles.iter().position(|profile| **profile.name() == *handler.plugin.prefill());
        let names = profiles.iter().map(|profile| Arc::clone(profile.name())).collect();
        Self { profiles, names, handler, prefill, settles, finish_duration, e2e: metrics.e2e.clone() }
    }

    /// The profiles, in the order of the configuration.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Returns `true` if a filter of a profile removes candidates for their load alone.
    pub fn drops_the_busy(&self) -> bool {
        self.profiles.iter().any(Profile::drops_the_busy)
    }

    /// Chooses endpoints among the candidates. A function of its arguments and
    /// the live load of the candidates: it books nothing and sends nothing.
    ///
    /// # Errors
    /// `ScheduleError` if no profile has a result; also without candidates, which callers refuse before with
    /// another status.
    pub fn decide(
        &self,
        cx: &Context<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
        record: Record,
    ) -> Result<Decision, ScheduleError> {
        let start = Instant::now();
        let decision = self.run(cx, candidates, rng, scratch, record, start);
        self.e2e.observe(start.elapsed());
        decision
    }

    fn run(
        &self,
        cx: &Context<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
        record: Record,
        start: Instant,
    ) -> Result<Decision, ScheduleError> {
        let mut mark = start;
        scratch.trace.begin();
        let mut outcomes: SmallVec<[Outcome; 3]> = self.profiles.iter().map(|_| Outcome::Waiting).collect();
        loop {
            let runs = Runs::new(&self.names, &outcomes, candidates);
            let next = self.handler.plugin.next(cx, &runs);
            charge(&self.handler.duration, &mut mark);
            let mut ran = false;
            for index in next {
                let Some(profile) = self.profiles.get(index) else { continue };
                if !matches!(outcomes[index], Outcome::Waiting) {
                    continue;
                }
                ran = true;
                let runs = Runs::new(&self.names, &outcomes, candidates);
                let handler = &self.handler.plugin;
                let cx =
                    Context { peer: handler.peer(index, &runs), part: handler.part(index, &runs), ..*cx };
                outcomes[index] = match profile.run(&cx, candidates, rng, scratch, record, &mut mark) {
                    Ok(run) => Outcome::Picked(run),
                    Err(error) => Outcome::Failed(error),
                };
            }
            if !ran {
                break;
            }
        }
        if self.settles {
            let mut open = Settlement::new(&self.names, &mut outcomes, candidates);
            let settled = self.handler.plugin.settle(cx, &mut open, rng);
            if record == Record::No {
                forget_totals(&mut outcomes);
            }
            settled?;
        }
        let runs = Runs::new(&self.names, &outcomes, candidates);
        let primary = self.handler.plugin.finish(cx, &runs);
        charge(&self.finish_duration, &mut mark);
        match primary {
            Ok(primary) => conclude(self.shared(candidates, scratch), outcomes, primary),
            Err(error) => Err(self.first_failure(outcomes).unwrap_or(error)),
        }
    }

    /// State that this thread's decisions among these candidates share.
    fn shared(&self, candidates: &Candidates, scratch: &mut Scratch) -> Arc<DecisionContext> {
        let known = scratch.shared.take().filter(|shared| shared.is_of(candidates, &self.names));
        let shared = known.unwrap_or_else(|| {
            Arc::new(DecisionContext::new(candidates.clone(), Arc::clone(&self.names), self.prefill))
        });
        scratch.shared = Some(Arc::clone(&shared));
        shared
    }

    /// The error of the first failed profile by name, as llm-d-router chooses it.
    fn first_failure(&self, outcomes: SmallVec<[Outcome; 3]>) -> Option<ScheduleError> {
        let failed = self.profiles.iter().zip(outcomes).filter_map(|(profile, outcome)| match outcome {
            Outcome::Failed(error) => Some((profile.name(), error)),
            _ => None,
        });
        failed.min_by_key(|(name, _)| Arc::clone(name)).map(|(_, error)| error)
    }
}

/// Drops the totals that were kept for the handler alone: a decision stays as long as
/// its stream, and they are as long as the pool.
fn forget_totals(outcomes: &mut [Outcome]) {
    for outcome in outcomes {
        if let Outcome::Picked(run) = outcome {
            run.record = None;
        }
    }
}

fn conclude(
    shared: Arc<DecisionContext>,
    outcomes: SmallVec<[Outcome; 3]>,
    primary: usize,
) -> Result<Decision, ScheduleError> {
    let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
    let mut position = None;
    for (index, outcome) in outcomes.into_iter().enumerate() {
        if let Outcome::Picked(run) = outcome {
            if index == primary {
                position = Some(runs.len());
            }
            runs.push(run);
        }
    }
    position
        .and_then(|position| Decision::new(shared, runs, position))
        .ok_or_else(|| ScheduleError::NoTarget("the chosen profile picked nothing".to_owned()))
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("profiles", &self.profiles)
            .field("handler", &self.handler.id.name)
            .finish()
    }
}
