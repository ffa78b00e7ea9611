//! Numbers of the decision under way, in buffers that decisions of a thread reuse.

use std::sync::Arc;

use smallvec::SmallVec;
use usher_plugin::LatencyEstimate;

/// Candidates up to which all of them are recorded; of larger pools the best are.
pub const DETAILED: usize = 48;

/// Candidates of a large pool that each profile adds to a record: the best by their totals.
const BEST: usize = 8;

/// Totals of which the highest is known while the best are looked for: about the root of a large pool's number.
const TOGETHER: usize = 32;

/// Numbers that are compared at once.
const LANES: usize = 8;

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

impl Shape {
    /// Total of an endpoint with these scores, one of each scorer: what the profile added up.
    pub(super) fn total(&self, scores: impl Iterator<Item = f32>) -> f64 {
        let weights = self.scorers.iter().map(|(_, weight)| weight);
        weights.zip(scores).fold(0.0, |total, (weight, score)| total + weight * f64::from(score))
    }
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
    /// Totals of the survivors of a small pool.
    totals: Vec<f64>,
    /// Places among the survivors of the best totals of a large pool, best first.
    pub(super) best: SmallVec<[u32; BEST]>,
    pub(super) estimates: SmallVec<[(u32, LatencyEstimate); 2]>,
    columns: Vec<Vec<f32>>,
    /// Columns of this run; the rest are buffers of earlier ones.
    scored: usize,
    before: Vec<u32>,
    /// Buffer.
    highest_of_parts: Vec<f64>,
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

    /// Notes the totals of a small pool, and which are the best of a large one, whose totals it uses up.
    pub fn totalled(&mut self, totals: &mut [f64]) {
        if totals.len() > DETAILED {
            self.best = best(totals, &mut self.highest_of_parts);
        } else {
            self.totals.extend_from_slice(totals);
        }
    }

    /// Place among the survivors of the one with the highest total besides the one at `first`.
    pub fn best_except(&self, first: usize) -> Option<usize> {
        if self.totals.is_empty() {
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

/// Places of the highest totals, highest first; of equal ones the first. Each becomes minus infinity when it is found,
/// and so does the highest of its part, so that few are looked at for the next one, and about as many whatever the
/// totals are.
fn best(totals: &mut [f64], highest_of_parts: &mut Vec<f64>) -> SmallVec<[u32; BEST]> {
    highest_of_parts.clear();
    highest_of_parts.extend(totals.chunks(TOGETHER).map(highest));
    let mut places = SmallVec::new();
    while places.len() < BEST {
        let found = highest(highest_of_parts);
        let is_found = |total: &f64| *total == found;
        // Nothing is below minus infinity but numbers that are none.
        let Some(part) = highest_of_parts.iter().position(is_found).filter(|_| found > f64::NEG_INFINITY)
        else {
            break;
        };
        let (first, end) = (part * TOGETHER, totals.len().min((part + 1) * TOGETHER));
        let together = &mut totals[first..end];
        let Some(place) = together.iter().position(is_found) else { break };
        places.push(u32::try_from(first + place).unwrap_or(u32::MAX));
        together[place] = f64::NEG_INFINITY;
        highest_of_parts[part] = highest(together);
    }
    places
}

/// The highest of some numbers; minus infinity if there is none. Several are compared at once, without branches.
#[inline]
fn highest(numbers: &[f64]) -> f64 {
    let higher = |one: f64, other: f64| if other > one { other } else { one };
    let (parts, rest) = numbers.as_chunks::<LANES>();
    let mut lanes = [f64::NEG_INFINITY; LANES];
    for part in parts {
        for (lane, &number) in lanes.iter_mut().zip(part) {
            *lane = higher(*lane, number);
        }
    }
    lanes.iter().chain(rest).copied().fold(f64::NEG_INFINITY, higher)
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
    fn large_pool_trace_keeps_only_numbers() {
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
        assert_eq!(run.best_except(sorted[0] as usize), Some(sorted[1] as usize));
        assert_eq!(run.best_except(999), Some(sorted[0] as usize));
    }

    #[test]
    fn best_totals_are_found_at_any_position() {
        let numbers =
            |order: fn(u32) -> u32| (0..1000).map(|place| f64::from(order(place))).collect::<Vec<_>>();
        let mut odd = numbers(|place| place * 271 % 1000);
        (odd[3], odd[500], odd[900]) = (f64::NAN, f64::NEG_INFINITY, f64::INFINITY);
        let orders = [
            numbers(|place| place),
            numbers(|place| 1000 - place),
            numbers(|_| 5),
            numbers(|place| place / 100),
            numbers(|place| u32::from(place.is_multiple_of(12))),
            odd,
        ];
        let found = |mut totals: Vec<f64>| best(&mut totals, &mut vec![1.0; 90]);
        for totals in orders {
            let mut sorted: Vec<u32> = (0..1000).filter(|place| !totals[*place as usize].is_nan()).collect();
            sorted.sort_by(|a, b| totals[*b as usize].total_cmp(&totals[*a as usize]));
            assert_eq!(found(totals).as_slice(), &sorted[..BEST]);
        }
        assert_eq!([f64::NAN, f64::NEG_INFINITY].map(|total| found(vec![total; 60]).len()), [0, 0]);
        let few = [vec![f64::NAN; 90], vec![1.0, 2.0], vec![f64::NAN; 90]].concat();
        assert_eq!(found(few).as_slice(), [91, 90]);
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
