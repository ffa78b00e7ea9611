//! Endpoints, plugins and schedulers to test with.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use usher::endpoints::{Candidates, EndpointSpec, Snapshot, Store, View};
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{
    Context, Decision, Facts, Filter, MaxScorePicker, Part, Picker, PluginId, Profile, Record, ScheduleError,
    Scheduler, SchedulerMetrics, Scorer, Scratch, SingleProfileHandler,
};

pub(crate) const NOW: u64 = 10_000;
pub(crate) const MAX_AGE: Duration = Duration::from_secs(2);

/// Reading of an endpoint's metric and its age in milliseconds; `None`: there is none.
pub(crate) type Reading = Option<(f64, u64)>;

/// Endpoints with a waiting queue and a KV-cache usage each.
pub(crate) fn candidates(loads: &[(Reading, Reading)]) -> Candidates {
    let store = Store::default();
    let spec = |index: usize| {
        EndpointSpec::new(
            format!("pod-{index}"),
            ([10, 0, (index / 250) as u8, (index % 250) as u8 + 1], 8000),
        )
    };
    store.replace((0..loads.len()).map(spec).collect());
    let snapshot = store.snapshot();
    for (endpoint, (waiting, kv)) in snapshot.endpoints().iter().zip(loads) {
        if let Some((value, age)) = waiting {
            endpoint.load().waiting.set(*value, NOW - age);
        }
        if let Some((value, age)) = kv {
            endpoint.load().kv_usage.set(*value, NOW - age);
        }
    }
    snapshot.all()
}

pub(crate) fn request() -> Request {
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    RequestParser::new(Headers::default(), &parsers).without_body()
}

pub(crate) fn with_context<T>(run: impl FnOnce(&Context<'_>) -> T) -> T {
    let request = request();
    run(&Context::new(&request, NOW, MAX_AGE))
}

pub(crate) fn metrics() -> SchedulerMetrics {
    SchedulerMetrics::register(&Registry::new()).unwrap()
}

pub(crate) fn id(name: &str) -> PluginId {
    PluginId::new(name, name)
}

pub(crate) fn top(count: usize) -> Arc<dyn Picker> {
    Arc::new(MaxScorePicker::new(NonZeroUsize::new(count).unwrap()))
}

/// Gives each endpoint the number that stands at its position in the snapshot.
pub(crate) struct Fixed(pub(crate) Vec<f32>);

impl Scorer for Fixed {
    fn score(&self, _cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        for (out, index) in out.iter_mut().zip(candidates.indices()) {
            *out = self.0[*index as usize];
        }
    }
}

/// Keeps the endpoints whose position in the snapshot is in the list.
pub(crate) struct Only(pub(crate) Vec<u32>);

impl Filter for Only {
    fn filter(&self, _cx: &Context<'_>, _snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        kept.retain(|index| self.0.contains(index));
    }
}

/// A scheduler with one profile.
pub(crate) fn single(
    filter: Option<Only>,
    scorers: Vec<(Arc<dyn Scorer>, f64)>,
    picker: Arc<dyn Picker>,
) -> Scheduler {
    let metrics = metrics();
    let mut builder = Profile::builder("default", &metrics);
    if let Some(filter) = filter {
        builder.filter(&id("only"), Arc::new(filter));
    }
    for (index, (scorer, weight)) in scorers.into_iter().enumerate() {
        builder.scorer(&id(&format!("scorer-{index}")), scorer, weight);
    }
    let profile = builder.picker(&id("picker"), picker);
    Scheduler::new(vec![profile], &id("handler"), Arc::new(SingleProfileHandler), &metrics)
}

pub(crate) fn decide(
    scheduler: &Scheduler,
    candidates: &Candidates,
    seed: u64,
    record: Record,
) -> Result<Decision, ScheduleError> {
    let mut rng = StdRng::seed_from_u64(seed);
    with_context(|cx| scheduler.decide(cx, candidates, &mut rng, &mut Scratch::default(), record))
}

pub(crate) fn fresh(value: f64) -> Reading {
    Some((value, 0))
}

/// Pool of `count` endpoints, each adapted by `change`.
pub(crate) fn pool(count: usize, change: impl Fn(usize, &mut EndpointSpec)) -> Candidates {
    let store = Store::default();
    let spec = |index: usize| {
        let mut spec = EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index as u8 + 1], 8000));
        change(index, &mut spec);
        spec
    };
    store.replace((0..count).map(spec).collect());
    store.snapshot().all()
}

/// Scores that a scorer gives to the candidates.
pub(crate) fn column(
    scorer: &dyn Scorer,
    request: &Request,
    facts: &Facts,
    candidates: &Candidates,
) -> Vec<f32> {
    column_of(Part::Whole, scorer, request, facts, candidates)
}

/// The same of a candidate that would do this part of the request.
pub(crate) fn column_of(
    part: Part,
    scorer: &dyn Scorer,
    request: &Request,
    facts: &Facts,
    candidates: &Candidates,
) -> Vec<f32> {
    let mut out = vec![0.0; candidates.len()];
    let cx = Context { facts, part, ..Context::new(request, NOW, MAX_AGE) };
    scorer.score(&cx, candidates.view(), &mut out);
    out
}
