//! Numbers of the decision under way, in buffers that decisions of a thread reuse.

use std::sync::Arc;

use smallvec::SmallVec;
use usher_plugin::LatencyEstimate;

/// Candidates up to which all of them are recorded; of larger pools the best are.
pub const DETAILED: usize = 48;

/// Candidates of a large pool that each profile adds to a record: the best by their totals.
const BEST: usize = 12;

/// Totals that are compared with the last of the best at once.
const TOGETHER: usize = 16;

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
    /// Places among the survivors of the best totals of a large pool, best first.
    pub(super) best: SmallVec<[u32; BEST]>,
    pub(super) estimates: SmallVec<[(u32, LatencyEstimate); 2]>,
    columns: Vec<Vec<f32>>,
    /// Columns of this run; the rest are buffers of earlier ones.
    scored: usize,
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
        self.best.clear();
        self.scored = 0;
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

    /// Takes the next scorer's column, and leaves the buffer of an earlier one for it.
    pub fn scored(&mut self, column: &mut Vec<f32>) {
        if self.scored == self.columns.len() {
            self.columns.push(Vec::new());
        }
        if let Some(buffer) = self.columns.get_mut(self.scored) {
            std::mem::swap(buffer, column);
            self.scored += 1;
        }
    }

    /// Columns of the scorers, in the order in which they ran.
    pub(super) fn columns(&self) -> &[Vec<f32>] {
        self.columns.get(..self.scored).unwrap_or_default()
    }

    /// Takes the totals, and leaves the buffer of earlier ones for them.
    pub fn totalled(&mut self, totals: &mut Vec<f64>) {
        std::mem::swap(&mut self.totals, totals);
        if self.totals.len() > DETAILED {
            self.best = best(&self.totals);
        }
    }

    /// Place among the survivors of the one with the highest total besides the one at `first`.
    pub fn best_but(&self, first: usize) -> Option<usize> {
        if self.totals.len() > DETAILED {
            return self.best.iter().map(|place| *place as usize).find(|place| *place != first);
        }
        let others = self.totals.iter().enumerate().filter(|(place, _)| *place != first);
        others.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(place, _)| place)
    }

    /// Latency that a scorer expects at a position of the snapshot.
    pub fn estimated(&mut self, position: u32, estimate: LatencyEstimate) {
        self.estimates.push((position, estimate));
    }
}

/// Places of the highest totals, highest first; of equal ones the first.
fn best(totals: &[f64]) -> SmallVec<[u32; BEST]> {
    // Nothing is below minus infinity but numbers that are none.
    let (mut highest, mut places) = ([f64::NEG_INFINITY; BEST], [0; BEST]);
    for (first, together) in (0..).step_by(TOGETHER).zip(totals.chunks(TOGETHER)) {
        // Nearly all are below the best: they are compared together, without branches.
        let last = highest[BEST - 1];
        if !together.iter().fold(false, |any, total| any | (*total > last)) {
            continue;
        }
        for (place, &total) in (first..).zip(together) {
            if total > highest[BEST - 1] {
                insert(&mut highest, &mut places, total, place);
            }
        }
    }
    let found = highest.iter().take_while(|total| **total > f64::NEG_INFINITY).count();
    places.iter().take(found).copied().collect()
}

/// Moves one in before the first that is lower, by selects instead of branches, which would be mispredicted.
#[inline]
fn insert(highest: &mut [f64; BEST], places: &mut [u32; BEST], total: f64, place: u32) {
    for at in (1..BEST).rev() {
        let (is_above, is_here) = (total > highest[at - 1], total > highest[at]);
        let here = (if is_here { total } else { highest[at] }, if is_here { place } else { places[at] });
        highest[at] = if is_above { highest[at - 1] } else { here.0 };
        places[at] = if is_above { places[at - 1] } else { here.1 };
    }
    if total > highest[0] {
        (highest[0], places[0]) = (total, place);
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
        let many: Vec<u32> = (0..=50).collect();
        run.filters(&many);
        run.filtered(0, &many[..10]);
        assert_eq!((run.steps[0].left, run.dropped.len()), (10, 0));
    }

    #[test]
    fn the_best_totals_come_first_and_of_equal_ones_the_first() {
        let totals: Vec<f64> = (0..1000).map(|place| f64::from(place * 7 % 100)).collect();
        let mut sorted: Vec<u32> = (0..1000).collect();
        sorted.sort_by(|a, b| totals[*b as usize].total_cmp(&totals[*a as usize]));
        let mut run = RunTrace::default();
        run.totalled(&mut totals.clone());
        assert_eq!(run.best.as_slice(), &sorted[..BEST]);
        assert_eq!(run.best_but(sorted[0] as usize), Some(sorted[1] as usize));
        assert_eq!(run.best_but(999), Some(sorted[0] as usize));
    }

    #[test]
    fn columns_of_an_earlier_run_are_not_those_of_this() {
        let mut run = RunTrace::default();
        for columns in [3, 1] {
            run.begin(0, &Arc::default());
            for number in 0..columns {
                let mut column = vec![number as f32; 2];
                run.scored(&mut column);
            }
            assert_eq!(run.columns().len(), columns);
        }
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
