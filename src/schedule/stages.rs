//! Stages of a request around its decision: the plugins of every stage, in the order of the
//! configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use rand::Rng;
use usher_plugin::data::{KvEventsMatch, PrefixMatch, PromptTokens};
use usher_plugin::{
    Admitter, Context, DataProducer, Decision, Denied, Effects, Facts, Gathered, Gatherer, Key, PluginId,
    PreRequest, RequestContext, RequestHeaderProcessor, SaturationDetector, Screener,
};

use crate::endpoints::Candidates;
use crate::metrics::Timing;
use crate::request::Request;

use super::metrics::{Point, SchedulerMetrics};
use super::profile::{Placed, charge};

/// The plugins around the scheduler. Empty for a configuration that uses none.
#[derive(Default)]
pub struct Stages {
    headers: Vec<Placed<dyn RequestHeaderProcessor>>,
    screeners: Vec<Observing<dyn Screener>>,
    gatherers: Vec<Arc<dyn Gatherer>>,
    producers: Vec<Placed<dyn DataProducer>>,
    admitters: Vec<Placed<dyn Admitter>>,
    acting: Vec<Observing<dyn PreRequest>>,
    books: bool,
    prefix: Option<Key<PrefixMatch>>,
    tokens: Option<Key<PromptTokens>>,
    kv_events: Option<Key<KvEventsMatch>>,
    sheds_by: Option<Arc<dyn SaturationDetector>>,
}

/// A plugin that may add observers of the response.
struct Observing<T: ?Sized> {
    placed: Placed<T>,
    received: Timing,
    streaming: Timing,
}

impl<T: ?Sized> Observing<T> {
    /// Calls the plugin. The time is charged to it, and so is that of its observers.
    fn call(&self, effects: &mut Effects, mark: &mut Instant, call: impl FnOnce(&T, &mut Effects)) {
        effects.timed(&self.received, &self.streaming, |effects| call(&self.placed.plugin, effects));
        charge(&self.placed.duration, mark);
    }
}

impl Stages {
    /// Returns `true` if a profile reads what is in flight, so that deciding and booking
    /// have to be one step.
    pub fn books(&self) -> bool {
        self.books
    }

    /// Key of the match of the default prefix cache, if there is one.
    pub fn prefix(&self) -> Option<Key<PrefixMatch>> {
        self.prefix
    }

    /// Key of the length of prompts, as the default producer counts it, if there is one.
    pub fn tokens(&self) -> Option<Key<PromptTokens>> {
        self.tokens
    }

    /// Key of the match by KV events, if a plugin follows them.
    pub fn kv_events(&self) -> Option<Key<KvEventsMatch>> {
        self.kv_events
    }

    /// Detector that says when requests of negative priority are refused; `None`: they aren't.
    pub fn sheds_by(&self) -> Option<&dyn SaturationDetector> {
        self.sheds_by.as_deref()
    }

    /// Lets the header processors note what they look for.
    pub fn process_headers(&self, request: &mut Request) {
        if self.headers.is_empty() {
            return;
        }
        let mut mark = Instant::now();
        for placed in &self.headers {
            placed.plugin.process(request);
            charge(&placed.duration, &mut mark);
        }
    }

    /// Returns `true` if requests may see different candidates of a view.
    pub fn screens(&self) -> bool {
        !self.screeners.is_empty()
    }

    /// Returns `true` if requests are held before they are decided.
    pub fn gathers(&self) -> bool {
        !self.gatherers.is_empty()
    }

    /// Lets the gatherers hold the request, all at the same time.
    pub async fn gather(&self, cx: &RequestContext<'_>, candidates: &Candidates) -> Vec<Gathered> {
        join_all(self.gatherers.iter().filter_map(|plugin| plugin.gather(cx, candidates))).await
    }

    /// The candidates that every screener keeps; `None` when there are no screeners.
    pub fn screen(
        &self,
        cx: &RequestContext<'_>,
        candidates: &Candidates,
        rng: &mut dyn Rng,
        effects: &mut Effects,
    ) -> Option<Candidates> {
        if self.screeners.is_empty() {
            return None;
        }
        let mut mark = Instant::now();
        let mut all: Option<Vec<u32>> = None;
        for screener in &self.screeners {
            let mut kept = candidates.indices().to_vec();
            screener.call(effects, &mut mark, |screener, effects| {
                screener.screen(cx, candidates, rng, &mut kept, effects);
            });
            all = Some(match all {
                None => kept,
                Some(all) => all.into_iter().filter(|index| kept.binary_search(index).is_ok()).collect(),
            });
        }
        all.map(|indices| candidates.narrowed(&indices))
    }

    /// Lets the producers learn about the request.
    pub fn produce(&self, cx: &RequestContext<'_>, candidates: &Candidates, facts: &mut Facts) {
        if self.producers.is_empty() {
            return;
        }
        let mut mark = Instant::now();
        for placed in &self.producers {
            placed.plugin.produce(cx, candidates, facts);
            charge(&placed.duration, &mut mark);
        }
    }

    /// Asks the admitters. The first denial counts.
    ///
    /// # Errors
    /// `Denied` by the first admitter that denies the request.
    pub fn admit(&self, cx: &Context<'_>, candidates: &Candidates, rng: &mut dyn Rng) -> Result<(), Denied> {
        if self.admitters.is_empty() {
            return Ok(());
        }
        let mut mark = Instant::now();
        for placed in &self.admitters {
            let admitted = placed.plugin.admit(cx, candidates, rng);
            charge(&placed.duration, &mut mark);
            admitted?;
        }
        Ok(())
    }

    /// Does what follows from a decision.
    pub fn act(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        if self.acting.is_empty() {
            return;
        }
        let mut mark = Instant::now();
        for acting in &self.acting {
            acting.call(effects, &mut mark, |plugin, effects| plugin.decided(cx, decision, effects));
        }
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn names<T: ?Sized>(placed: &[Placed<T>]) -> Vec<&Arc<str>> {
            placed.iter().map(|placed| &placed.id.name).collect()
        }
        fn observing<T: ?Sized>(observing: &[Observing<T>]) -> Vec<&Arc<str>> {
            observing.iter().map(|observing| &observing.placed.id.name).collect()
        }
        f.debug_struct("Stages")
            .field("headers", &names(&self.headers))
            .field("gatherers", &self.gatherers.len())
            .field("screeners", &observing(&self.screeners))
            .field("producers", &names(&self.producers))
            .field("admitters", &names(&self.admitters))
            .field("acting", &observing(&self.acting))
            .field("books", &self.books)
            .finish_non_exhaustive()
    }
}

/// Puts [`Stages`] together; plugins of a stage run in the order in which they are added.
pub struct StagesBuilder<'a> {
    metrics: &'a SchedulerMetrics,
    stages: Stages,
}

impl<'a> StagesBuilder<'a> {
    /// No plugins yet.
    pub fn new(metrics: &'a SchedulerMetrics) -> Self {
        Self { metrics, stages: Stages::default() }
    }

    /// Adds a header processor.
    pub fn header_processor(&mut self, id: &PluginId, plugin: Arc<dyn RequestHeaderProcessor>) {
        let placed = self.placed(Point::RequestHeader, id, plugin);
        self.stages.headers.push(placed);
    }

    /// Adds a gatherer. It is waited for, so its calls are not timed.
    pub fn gatherer(&mut self, plugin: Arc<dyn Gatherer>) {
        self.stages.gatherers.push(plugin);
    }

    /// Adds a screener.
    pub fn screener(&mut self, id: &PluginId, plugin: Arc<dyn Screener>) {
        let observing = self.observing(Point::Screener, id, plugin);
        self.stages.screeners.push(observing);
    }

    /// Adds a producer. Those whose facts it reads have to be there already.
    pub fn producer(&mut self, id: &PluginId, plugin: Arc<dyn DataProducer>) {
        let placed = self.placed(Point::DataProducer, id, plugin);
        self.stages.producers.push(placed);
    }

    /// Adds an admitter.
    pub fn admitter(&mut self, id: &PluginId, plugin: Arc<dyn Admitter>) {
        let placed = self.placed(Point::Admission, id, plugin);
        self.stages.admitters.push(placed);
    }

    /// Adds a plugin that acts on decisions.
    pub fn pre_request(&mut self, id: &PluginId, plugin: Arc<dyn PreRequest>) {
        let observing = self.observing(Point::PreRequest, id, plugin);
        self.stages.acting.push(observing);
    }

    /// Refuses requests of negative priority when the pool is full, as this detector
    /// says it is.
    pub fn sheds_by(&mut self, detector: Arc<dyn SaturationDetector>) {
        self.stages.sheds_by = Some(detector);
    }

    /// Says where the length of prompts is.
    pub fn tokens(&mut self, key: Key<PromptTokens>) {
        self.stages.tokens = Some(key);
    }

    /// Says where the match by KV events is.
    pub fn kv_events(&mut self, key: Key<KvEventsMatch>) {
        self.stages.kv_events = Some(key);
    }

    /// The stages. `books`: a profile reads what is in flight; `prefix`: where the
    /// match of the default prefix cache is.
    pub fn build(self, books: bool, prefix: Option<Key<PrefixMatch>>) -> Stages {
        Stages { books, prefix, ..self.stages }
    }

    fn observing<T: ?Sized>(&self, point: Point, id: &PluginId, plugin: Arc<T>) -> Observing<T> {
        let received = self.metrics.duration(Point::ResponseReceived, id);
        let streaming = self.metrics.duration(Point::ResponseStreaming, id);
        Observing { placed: self.placed(point, id, plugin), received, streaming }
    }

    fn placed<T: ?Sized>(&self, point: Point, id: &PluginId, plugin: Arc<T>) -> Placed<T> {
        Placed { plugin, id: id.clone(), duration: self.metrics.duration(point, id) }
    }
}
