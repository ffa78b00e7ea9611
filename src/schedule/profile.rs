//! One profile: filters, then scorers, then the picker.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use prometheus::IntCounter;
use rand::Rng;
use usher_plugin::{Column, Context, Filter, Picker, PluginId, Record, Run, ScheduleError, Scorer, Scores};

use crate::endpoints::{Candidates, View};
use crate::metrics::Timing;
use crate::records::{RunTrace, Shape};
use crate::request::{ProfileRun, ScorerRun};

use super::metrics::{Point, SchedulerMetrics};
use super::scratch::Scratch;

/// A plugin in its place, with what it counts.
pub(super) struct Placed<T: ?Sized> {
    pub(super) plugin: Arc<T>,
    pub(super) id: PluginId,
    pub(super) duration: Timing,
}

struct Weighted {
    placed: Placed<dyn Scorer>,
    weight: f64,
    invalid: IntCounter,
}

/// A named list of plugins that narrows candidates down to picks.
pub struct Profile {
    name: Arc<str>,
    /// Position in the configuration; set by the scheduler.
    pub(super) position: usize,
    /// The handler wants its totals, whatever is recorded; set by the scheduler.
    pub(super) keeps_totals: bool,
    filters: Vec<Placed<dyn Filter>>,
    scorers: Vec<Weighted>,
    picker: Placed<dyn Picker>,
    /// Names for records of decisions.
    shape: Arc<Shape>,
}

impl Profile {
    /// Starts a profile; plugins run in the order in which they are added.
    pub fn builder(name: impl Into<Arc<str>>, metrics: &SchedulerMetrics) -> ProfileBuilder<'_> {
        ProfileBuilder { name: name.into(), metrics, filters: Vec::new(), scorers: Vec::new() }
    }

    /// The name in the configuration.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns `true` if a filter removes candidates for their load alone.
    pub(super) fn drops_the_busy(&self) -> bool {
        self.filters.iter().any(|filter| filter.plugin.drops_the_busy())
    }

    /// Runs the profile. `mark` is the time of the last measurement; each
    /// plugin is charged with what passed since, so that one reading of the
    /// clock ends one measurement and starts the next.
    pub(super) fn run(
        &self,
        cx: &Context<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
        record: Record,
        mark: &mut Instant,
    ) -> Result<Run, ScheduleError> {
        let timeline = cx.request.timeline.as_deref();
        let mut times = timeline.map(|_| ProfileRun::begin(&self.name, *mark, candidates.len()));
        let run = self.run_timed(cx, candidates, rng, scratch, record, mark, times.as_mut());
        if let (Some(timeline), Some(mut times)) = (timeline, times) {
            times.ended = *mark;
            times.error = run.as_ref().err().map(ToString::to_string);
            timeline.push(times);
        }
        run
    }

    #[expect(clippy::too_many_arguments, reason = "the state of a run, and its times where it is traced")]
    fn run_timed(
        &self,
        cx: &Context<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        scratch: &mut Scratch,
        record: Record,
        mark: &mut Instant,
        mut times: Option<&mut ProfileRun>,
    ) -> Result<Run, ScheduleError> {
        let record = match record {
            Record::No if self.keeps_totals => Record::Scores,
            record => record,
        };
        let Scratch { kept, column, totals, picks, trace, .. } = scratch;
        let mut trace = trace.run(self.position, &self.shape);
        let survivors = self.filter(cx, candidates, rng, kept, trace.as_deref_mut(), mark);
        if let Some(times) = &mut times {
            (times.filtered, times.scored, times.survivors) = (*mark, *mark, survivors.len());
        }
        if survivors.is_empty() {
            return Err(ScheduleError::Drained);
        }
        if let Some(trace) = &mut trace {
            trace.survive(survivors);
        }
        let view = View::new(candidates.snapshot(), survivors);
        totals.clear();
        totals.resize(view.len(), 0.0);
        let mut columns = Vec::new();
        for scorer in &self.scorers {
            column.clear();
            column.resize(view.len(), 0.0);
            scorer.placed.plugin.score(cx, view, column);
            scorer.add(column, totals);
            charge(&scorer.placed.duration, mark);
            if let Some(times) = &mut times {
                let PluginId { plugin_type, name, .. } = &scorer.placed.id;
                times.scorers.push(ScorerRun::new(plugin_type, name, scorer.weight, column, *mark));
                times.scored = *mark;
            }
            if record == Record::Columns {
                let (scorer, weight) = (Arc::clone(&scorer.placed.id.name), scorer.weight);
                columns.push(Column { scorer, weight, scores: column.clone() });
            }
            if let Some(trace) = &mut trace {
                trace.scored(column);
            }
        }
        picks.clear();
        self.picker.plugin.pick(cx, view, totals, rng, picks);
        charge(&self.picker.duration, mark);
        let chosen = picks.positions().iter().filter_map(|&p| survivors.get(p as usize).copied()).collect();
        let scores = || Box::new(Scores { survivors: survivors.to_vec(), totals: totals.clone(), columns });
        let record = (record != Record::No).then(scores);
        if let Some(trace) = trace {
            trace.totalled(totals);
            self.estimate(cx, view, picks.positions(), trace);
        }
        let run = Run { profile: self.position, picks: chosen, record };
        if run.picks.is_empty() {
            let text = format!("the picker of profile '{}' picked nothing", self.name);
            return Err(ScheduleError::NoTarget(text));
        }
        Ok(run)
    }

    /// Notes the latency that a scorer expects of the first pick and of the best other candidate.
    fn estimate(&self, cx: &Context<'_>, view: View<'_>, picks: &[u32], trace: &mut RunTrace) {
        let Some(&first) = picks.first() else { return };
        let runner_up = trace.best_except(first as usize);
        for place in [Some(first as usize), runner_up].into_iter().flatten() {
            let Some(&position) = view.indices().get(place) else { continue };
            let endpoint = view.get(place);
            let estimate = |scorer: &Weighted| scorer.placed.plugin.estimate(cx, endpoint, position);
            if let Some(estimate) = self.scorers.iter().find_map(estimate) {
                trace.estimated(position, estimate);
            }
        }
    }

    fn filter<'a>(
        &self,
        cx: &Context<'_>,
        candidates: &'a Candidates,
        rng: &mut dyn Rng,
        kept: &'a mut Vec<u32>,
        mut trace: Option<&mut RunTrace>,
        mark: &mut Instant,
    ) -> &'a [u32] {
        if self.filters.is_empty() {
            return candidates.indices();
        }
        kept.clear();
        kept.extend_from_slice(candidates.indices());
        for (place, filter) in self.filters.iter().enumerate() {
            if kept.is_empty() {
                break;
            }
            if cx.despite_load && filter.plugin.drops_the_busy() {
                continue;
            }
            if let Some(trace) = &mut trace {
                trace.filters(kept);
            }
            filter.plugin.filter(cx, candidates.snapshot(), kept, rng);
            charge(&filter.duration, mark);
            if let Some(trace) = &mut trace {
                trace.filtered(place, kept);
            }
        }
        kept
    }
}

impl Weighted {
    /// Adds a column to the totals and leaves in it what counted.
    fn add(&self, column: &mut [f32], totals: &mut [f64]) {
        let mut invalid = 0;
        for (score, total) in column.iter_mut().zip(totals) {
            if score.is_finite() {
                *score = score.clamp(0.0, 1.0);
            } else {
                *score = 0.0;
                invalid += 1;
            }
            *total += self.weight * f64::from(*score);
        }
        if invalid > 0 {
            self.invalid.inc_by(invalid);
        }
    }
}

/// Books what passed since `mark` and moves it to now.
pub(super) fn charge(duration: &Timing, mark: &mut Instant) {
    let now = Instant::now();
    duration.observe(now - *mark);
    *mark = now;
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("filters", &self.filters.iter().map(|p| &p.id.name).collect::<Vec<_>>())
            .field("scorers", &self.scorers.iter().map(|s| (&s.placed.id.name, s.weight)).collect::<Vec<_>>())
            .field("picker", &self.picker.id.name)
            .finish()
    }
}

/// Puts a [`Profile`] together.
pub struct ProfileBuilder<'a> {
    name: Arc<str>,
    metrics: &'a SchedulerMetrics,
    filters: Vec<Placed<dyn Filter>>,
    scorers: Vec<Weighted>,
}

impl ProfileBuilder<'_> {
    /// Adds a filter after those that are there.
    pub fn filter(&mut self, id: &PluginId, plugin: Arc<dyn Filter>) {
        let duration = self.metrics.duration(Point::Filter, id);
        self.filters.push(Placed { plugin, id: id.clone(), duration });
    }

    /// Adds a scorer. Any finite weight counts as it is, also 0 and negative ones.
    pub fn scorer(&mut self, id: &PluginId, plugin: Arc<dyn Scorer>, weight: f64) {
        let duration = self.metrics.duration(Point::Scorer, id);
        let invalid = self.metrics.invalid_scores(id);
        self.scorers.push(Weighted { placed: Placed { plugin, id: id.clone(), duration }, weight, invalid });
    }

    /// Ends the profile with its picker.
    pub fn picker(self, id: &PluginId, plugin: Arc<dyn Picker>) -> Profile {
        let duration = self.metrics.duration(Point::Picker, id);
        let picker = Placed { plugin, id: id.clone(), duration };
        let Self { name, filters, scorers, .. } = self;
        let shape = Arc::new(Shape {
            profile: Arc::clone(&name),
            filters: filters.iter().map(|filter| Arc::clone(&filter.id.name)).collect(),
            scorers: scorers.iter().map(|each| (Arc::clone(&each.placed.id.name), each.weight)).collect(),
            picker: Arc::clone(&picker.id.name),
        });
        Profile { name, position: 0, keeps_totals: false, filters, scorers, picker, shape }
    }
}
