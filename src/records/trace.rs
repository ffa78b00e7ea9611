//! Numbers of the decision under way, in buffers that decisions of a thread reuse.

use std::sync::Arc;

use smallvec::SmallVec;
use usher_plugin::LatencyEstimate;

/// Candidates up to which all of them are recorded; of larger pools the best are.
pub const DETAILED: usize = 64;

/// Part of a profile that is the same in all its runs.
#[derive(Debug, Default, PartialEq)]
pub struct Shape {
    /// Name of the profile.
    pub profile: Arc<str>,
    /// Names of its filters, in the order in which they run.
    pub filters: Box<[Arc<str>]>,
    /// Names of its scorers and their weights.
    pub scorers: Box<[(Arc<str>, f64)]>,
    /// Name of its picker.
    pub picker: Arc<str>,
}

/// One filter's part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Position of the filter in the profile.
    pub filter: u16,
    /// Candidates that it left.
    pub left: u32,
}

/// Numbers of one profile's run.
#[derive(Debug, Default)]
pub struct RunTrace {
    pub(super) profile: usize,
    pub(super) shape: Arc<Shape>,
    pub(super) steps: Vec<Step>,
    pub(super) dropped: Vec<(u16, u32)>,
    pub(super) survivors: Vec<u32>,
    pub(super) totals: Vec<f64>,
    pub(super) columns: Vec<f32>,
    pub(super) estimates: SmallVec<[(u32, LatencyEstimate); 2]>,
    before: Vec<u32>,
}

impl RunTrace {
    fn begin(&mut self, profile: usize, shape: &Arc<Shape>) {
        self.profile = profile;
        if !Arc::ptr_eq(&self.shape, shape) {
            self.shape = Arc::clone(shape);
        }
        self.steps.clear();
        self.dropped.clear();
        self.survivors.clear();
        self.totals.clear();
        self.columns.clear();
        self.estimates.clear();
    }

    /// A filter is about to run among these.
    pub fn filters(&mut self, kept: &[u32]) {
        self.before.clear();
        if kept.len() <= DETAILED {
            self.before.extend_from_slice(kept);
        }
    }

    /// The filter has left these.
    pub fn filtered(&mut self, filter: usize, kept: &[u32]) {
        let filter = u16::try_from(filter).unwrap_or(u16::MAX);
        self.steps.push(Step { filter, left: u32::try_from(kept.len()).unwrap_or(u32::MAX) });
        if kept.len() == self.before.len() {
            return;
        }
        // Nearly always they are in the same order.
        let mut next = 0;
        for &position in &self.before {
            if kept.get(next) == Some(&position) {
                next += 1;
            } else if !kept.contains(&position) {
                self.dropped.push((filter, position));
            }
        }
    }

    /// Candidates that the filters have left.
    pub fn survive(&mut self, survivors: &[u32]) {
        self.survivors.extend_from_slice(survivors);
    }

    /// The next scorer's column.
    pub fn scored(&mut self, column: &[f32]) {
        self.columns.extend_from_slice(column);
    }

    /// The totals.
    pub fn totalled(&mut self, totals: &[f64]) {
        self.totals.extend_from_slice(totals);
    }

    /// Place among the survivors of the one with the highest total besides the one at `first`.
    pub fn best_but(&self, first: usize) -> Option<usize> {
        let others = self.totals.iter().enumerate().filter(|(place, _)| *place != first);
        others.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(place, _)| place)
    }

    /// Latency that a scorer expects at a position of the snapshot.
    pub fn estimated(&mut self, position: u32, estimate: LatencyEstimate) {
        self.estimates.push((position, estimate));
    }
}

/// Numbers of the decision under way. Off by default, and nothing is written then.
#[derive(Debug, Default)]
pub struct Trace {
    is_on: bool,
    used: usize,
    runs: Vec<RunTrace>,
}

impl Trace {
    /// Starts to record, or stops; what was recorded stays.
    pub fn set(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Returns `true` if it records.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Forgets the last decision.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// A decision begins: it replaces the last, if this records.
    #[inline]
    pub fn begin(&mut self) {
        if self.is_on {
            self.used = 0;
        }
    }

    /// A profile's run begins; `None` while nothing is recorded.
    #[inline]
    pub fn run(&mut self, profile: usize, shape: &Arc<Shape>) -> Option<&mut RunTrace> {
        if !self.is_on {
            return None;
        }
        if self.used == self.runs.len() {
            self.runs.push(RunTrace::default());
        }
        let run = self.runs.get_mut(self.used)?;
        self.used += 1;
        run.begin(profile, shape);
        Some(run)
    }

    /// The runs of the last decision, in the order in which they ran.
    pub fn runs(&self) -> &[RunTrace] {
        self.runs.get(..self.used).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_candidates_are_noted_with_their_filter_in_any_order() {
        let mut run = RunTrace::default();
        run.filters(&[1, 3, 5, 7]);
        run.filtered(0, &[1, 5, 7]);
        run.filters(&[1, 5, 7]);
        run.filtered(1, &[7, 1]);
        assert_eq!(run.steps, [Step { filter: 0, left: 3 }, Step { filter: 1, left: 2 }]);
        assert_eq!(run.dropped, [(0, 3), (1, 5)]);
    }

    #[test]
    fn of_a_large_pool_only_the_numbers_are_noted() {
        let mut run = RunTrace::default();
        let many: Vec<u32> = (0..=64).collect();
        run.filters(&many);
        run.filtered(0, &many[..10]);
        assert_eq!((run.steps[0].left, run.dropped.len()), (10, 0));
    }

    #[test]
    fn nothing_is_recorded_while_it_is_off() {
        let mut trace = Trace::default();
        assert!(trace.run(0, &Arc::default()).is_none() && trace.runs().is_empty());
        trace.set(true);
        assert!(trace.run(0, &Arc::default()).is_some());
        trace.set(false);
        trace.begin();
        assert_eq!(trace.runs().len(), 1, "what was recorded stays");
    }
}
