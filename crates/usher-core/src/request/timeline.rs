//! Times of a traced request's decision, profile by profile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Most profile runs that are kept of a request. A decision that is made again runs its profiles again.
const MAX_RUNS: usize = 16;

/// Profile runs of one request, in the order in which they ended.
#[derive(Debug, Default)]
pub struct Timeline {
    // Written by the thread that decides, read by the one that ends the request.
    runs: Mutex<Vec<ProfileRun>>,
}

/// One run of a scheduling profile.
#[derive(Clone, Debug)]
pub struct ProfileRun {
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Start of the filters.
    pub started: Instant,
    /// End of the filters and start of the scorers.
    pub filtered: Instant,
    /// End of the scorers and start of the picker; equal to `filtered` where no candidate was left.
    pub scored: Instant,
    /// End of the picker.
    pub ended: Instant,
    /// Endpoints before the filters.
    pub candidates: usize,
    /// Endpoints after the filters.
    pub survivors: usize,
    /// Scorers in the order in which they ran.
    pub scorers: Vec<ScorerRun>,
    /// Error of a run that picked nothing.
    pub error: Option<String>,
}

/// One call of a scorer. It starts at the end of the one before.
#[derive(Clone, Debug)]
pub struct ScorerRun {
    /// Type of the plugin.
    pub plugin_type: Arc<str>,
    /// Name of the plugin in the configuration.
    pub name: Arc<str>,
    /// Weight of its scores.
    pub weight: f64,
    /// Highest score, from 0 to 1.
    pub highest: f32,
    /// Mean of the scores, from 0 to 1.
    pub mean: f32,
    /// End of the call.
    pub ended: Instant,
}

impl Timeline {
    /// Adds a run; ignored once there are 16.
    pub fn push(&self, run: ProfileRun) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() < MAX_RUNS {
            runs.push(run);
        }
    }

    /// Takes the runs.
    pub fn take(&self) -> Vec<ProfileRun> {
        std::mem::take(&mut *self.runs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ProfileRun {
    /// A run that starts now.
    pub fn begin(profile: &Arc<str>, now: Instant, candidates: usize) -> Self {
        Self {
            profile: Arc::clone(profile),
            started: now,
            filtered: now,
            scored: now,
            ended: now,
            candidates,
            survivors: 0,
            scorers: Vec::new(),
            error: None,
        }
    }
}

impl ScorerRun {
    /// A call that ended at `ended`, with these scores.
    pub fn new(plugin_type: &Arc<str>, name: &Arc<str>, weight: f64, scores: &[f32], ended: Instant) -> Self {
        let sum: f32 = scores.iter().sum();
        Self {
            plugin_type: Arc::clone(plugin_type),
            name: Arc::clone(name),
            weight,
            highest: scores.iter().copied().fold(0.0, f32::max),
            mean: if scores.is_empty() { 0.0 } else { sum / scores.len() as f32 },
            ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_keeps_sixteen_runs() {
        let timeline = Timeline::default();
        let run = ProfileRun::begin(&"default".into(), Instant::now(), 3);
        (0..100).for_each(|_| timeline.push(run.clone()));
        assert_eq!(timeline.take().len(), 16);
        assert!(timeline.take().is_empty());
    }

    #[test]
    fn a_scorer_run_sums_up_its_scores() {
        let of = |scores: &[f32]| {
            let run = ScorerRun::new(&"queue-scorer".into(), &"queue".into(), 2.0, scores, Instant::now());
            (run.highest, run.mean)
        };
        assert_eq!(of(&[0.0, 1.0, 0.5, 0.5]), (1.0, 0.5));
        assert_eq!(of(&[]), (0.0, 0.0));
    }
}
