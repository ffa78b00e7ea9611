//! A place where plugins are tried: built as a configuration builds them, and called for a request.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher_core::config::{ConfigError, Node, Position};
use usher_core::endpoints::{Candidates, EndpointSpec, Store, View};
use usher_core::request::Request;

use super::build::{Build, BuildContext, PluginParts};
use super::build_state::BuildState;
use super::context::{Context, Outcome, Runs, ScheduleError};
use super::decision::Run;
use super::facts::{Fact, Facts, Key};
use super::families::Families;
use super::lifecycle::{Denied, RequestContext};
use super::picks::Picks;
use super::state::State;
use super::types::PluginType;

/// The clock of the harness, on which readings of loads have to be stamped to be fresh.
pub const NOW_MS: u64 = 1;

const MAX_AGE: Duration = Duration::from_secs(1);

/// Endpoints, and plugins that are built and called for them.
///
/// ```
/// use usher_core::endpoints::EndpointSpec;
/// use usher_core::request::Request;
/// use usher_plugin::testing::Harness;
/// # use std::sync::Arc;
/// # use usher_core::config::ConfigError;
/// # use usher_core::endpoints::View;
/// # use usher_plugin::{Build, PluginParts, Context, Kind, PluginType, Scorer, BuildContext, beta};
/// # static TYPE: PluginType = beta("one-scorer", &[Kind::Scorer], "All score 1.", Build::Reading(build));
/// # fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
/// #     cx.takes_nothing()?;
/// #     Ok(PluginParts { scorer: Some(Arc::new(One)), ..PluginParts::bare() })
/// # }
/// # struct One;
/// # impl Scorer for One {
/// #     fn score(&self, _: &Context<'_>, _: View<'_>, out: &mut [f32]) {
/// #         out.fill(1.0);
/// #     }
/// # }
/// let mut harness = Harness::new(vec![EndpointSpec::new("a", ([10, 0, 0, 1], 8000))]);
/// let plugin = harness.build(&TYPE, "{}")?;
/// assert_eq!(harness.scores(&plugin, &Request::default()), Some(vec![1.0]));
/// assert!(harness.build(&TYPE, "{unknown: 1}").is_err());
/// # Ok::<(), ConfigError>(())
/// ```
pub struct Harness {
    store: Store,
    state: State,
    families: Families,
    build_state: BuildState,
    facts: Facts,
}

impl Harness {
    /// A harness with these endpoints.
    pub fn new(endpoints: Vec<EndpointSpec>) -> Self {
        let store = Store::default();
        store.replace(endpoints);
        Self {
            store,
            state: State::default(),
            families: Families::new(Registry::new()),
            build_state: BuildState::default(),
            facts: Facts::default(),
        }
    }

    /// Builds a plugin that is named as its type, from parameters in YAML.
    ///
    /// # Errors
    /// `ConfigError` for invalid parameters, and for plugins that they name and that aren't declared.
    pub fn build(
        &mut self,
        plugin_type: &'static PluginType,
        parameters: &str,
    ) -> Result<PluginParts, ConfigError> {
        let parameters = Node::parse(parameters)?;
        let what = (plugin_type.name, Position { line: 1, column: 1 }, &parameters);
        let mut cx = BuildContext::new(what, &self.state, &self.families, &[], &mut self.build_state);
        match plugin_type.build {
            Build::Reading(build) | Build::Ignoring(build) => build(&mut cx),
            Build::Unsupported => Err(ConfigError::new("the type can't be built")),
        }
    }

    /// Sets the facts of a producer about the request.
    pub fn learn<T: Fact>(&mut self, producer: &str, fact: T) {
        let key = Key::new(self.build_state.graph.produce(T::DATA, producer));
        self.facts.set(key, fact);
    }

    /// All endpoints.
    pub fn candidates(&self) -> Candidates {
        self.store.snapshot().all()
    }

    /// Scores of the endpoints; `None` for a plugin that is no scorer.
    pub fn scores(&self, plugin: &PluginParts, request: &Request) -> Option<Vec<f32>> {
        let scorer = plugin.scorer.as_ref()?;
        let candidates = self.candidates();
        let mut scores = vec![0.0; candidates.indices().len()];
        let view = View::new(candidates.snapshot(), candidates.indices());
        scorer.score(&self.context(request), view, &mut scores);
        Some(scores)
    }

    /// The names of the endpoints that a filter keeps; `None` for a plugin that is no filter.
    pub fn kept(&self, plugin: &PluginParts, request: &Request) -> Option<Vec<String>> {
        let filter = plugin.filter.as_ref()?;
        let candidates = self.candidates();
        let mut kept = candidates.indices().to_vec();
        let mut rng = StdRng::seed_from_u64(0);
        filter.filter(&self.context(request), candidates.snapshot(), &mut kept, &mut rng);
        Some(self.names(kept.into_iter()))
    }

    /// Names of the endpoints that a picker chooses for these totals, one per endpoint, the best first; `None` for a
    /// plugin that is no picker.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use rand::Rng;
    /// # use usher_core::config::ConfigError;
    /// # use usher_core::endpoints::{EndpointSpec, View};
    /// # use usher_core::request::Request;
    /// # use usher_plugin::testing::Harness;
    /// # use usher_plugin::{Build, BuildContext, Context, Kind, Picker, Picks, PluginParts, PluginType, beta};
    /// /// Picks the first candidate, whatever its total.
    /// struct First;
    ///
    /// impl Picker for First {
    ///     fn pick(&self, _: &Context<'_>, _: View<'_>, _: &[f64], _: &mut dyn Rng, picks: &mut Picks) {
    ///         picks.push(0);
    ///     }
    /// }
    /// # static TYPE: PluginType = beta("first-picker", &[Kind::Picker], "Picks the first.", Build::Reading(build));
    /// # fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    /// #     cx.takes_nothing()?;
    /// #     Ok(PluginParts { picker: Some(Arc::new(First)), ..PluginParts::bare() })
    /// # }
    ///
    /// let endpoint = |name: &str, host| EndpointSpec::new(name, ([10, 0, 0, host], 8000));
    /// let mut harness = Harness::new(vec![endpoint("a", 1), endpoint("b", 2)]);
    /// let plugin = harness.build(&TYPE, "{}")?;
    /// assert_eq!(harness.picked(&plugin, &Request::default(), &[0.5, 0.9]), Some(vec!["a".to_owned()]));
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn picked(&self, plugin: &PluginParts, request: &Request, totals: &[f64]) -> Option<Vec<String>> {
        let picker = plugin.picker.as_ref()?;
        let candidates = self.candidates();
        let view = View::new(candidates.snapshot(), candidates.indices());
        let mut picks = Picks::default();
        picker.pick(&self.context(request), view, totals, &mut StdRng::seed_from_u64(0), &mut picks);
        let positions =
            picks.positions().iter().filter_map(|&pick| candidates.indices().get(pick as usize).copied());
        Some(self.names(positions))
    }

    /// Lets a producer learn about the request and all endpoints. Later calls of other plugins see its facts.
    /// Returns `false` for a plugin that is no producer.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use usher_core::config::ConfigError;
    /// # use usher_core::endpoints::{Candidates, EndpointSpec, View};
    /// # use usher_core::request::Request;
    /// # use usher_plugin::testing::Harness;
    /// # use usher_plugin::data::SessionId;
    /// # use usher_plugin::{
    /// #     Build, BuildContext, Context, Facts, Key, Kind, PluginParts, PluginType, DataProducer, Scorer, RequestContext, beta,
    /// # };
    /// /// Produces one session for all requests.
    /// struct OneSession(Key<SessionId>);
    ///
    /// impl DataProducer for OneSession {
    ///     fn produce(&self, _: &RequestContext<'_>, _: &Candidates, facts: &mut Facts) {
    ///         facts.set(self.0, SessionId("all".into()));
    ///     }
    /// }
    /// # static TYPE: PluginType = beta("one-session", &[Kind::DataProducer, Kind::Scorer], "One session.", Build::Reading(build));
    /// # fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    /// #     cx.takes_nothing()?;
    /// #     let key = cx.produces();
    /// #     let scorer = Some(Arc::new(HasSession(key)) as Arc<dyn Scorer>);
    /// #     Ok(PluginParts { producer: Some(Arc::new(OneSession(key))), scorer, ..PluginParts::bare() })
    /// # }
    /// # struct HasSession(Key<SessionId>);
    /// # impl Scorer for HasSession {
    /// #     fn score(&self, cx: &Context<'_>, _: View<'_>, out: &mut [f32]) {
    /// #         out.fill(if cx.facts.get(self.0).is_some() { 1.0 } else { 0.0 });
    /// #     }
    /// # }
    ///
    /// let mut harness = Harness::new(vec![EndpointSpec::new("a", ([10, 0, 0, 1], 8000))]);
    /// let plugin = harness.build(&TYPE, "{}")?;
    /// assert_eq!(harness.scores(&plugin, &Request::default()), Some(vec![0.0]));
    /// assert!(harness.produce(&plugin, &Request::default()));
    /// assert_eq!(harness.scores(&plugin, &Request::default()), Some(vec![1.0]));
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn produce(&mut self, plugin: &PluginParts, request: &Request) -> bool {
        let Some(producer) = &plugin.producer else { return false };
        let cx = RequestContext { request, now_ms: NOW_MS, max_age: MAX_AGE };
        producer.produce(&cx, &self.candidates(), &mut self.facts);
        true
    }

    /// Runs an admitter on the request; `None` for a plugin that is no admitter.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use rand::Rng;
    /// # use usher_core::config::ConfigError;
    /// # use usher_core::endpoints::Candidates;
    /// # use usher_core::request::Request;
    /// # use usher_plugin::testing::Harness;
    /// # use usher_plugin::{Admitter, Build, BuildContext, Context, Denied, Kind, PluginParts, PluginType, beta};
    /// /// Admits requests of priority 0 or more.
    /// struct NonNegative;
    ///
    /// impl Admitter for NonNegative {
    ///     fn admit(&self, cx: &Context<'_>, _: &Candidates, _: &mut dyn Rng) -> Result<(), Denied> {
    ///         if cx.request.priority < 0 { Err(Denied("low priority".into())) } else { Ok(()) }
    ///     }
    /// }
    /// # static TYPE: PluginType = beta("non-negative", &[Kind::Admitter], "Priorities.", Build::Reading(build));
    /// # fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    /// #     cx.takes_nothing()?;
    /// #     Ok(PluginParts { admitter: Some(Arc::new(NonNegative)), ..PluginParts::bare() })
    /// # }
    ///
    /// let mut harness = Harness::new(Vec::new());
    /// let plugin = harness.build(&TYPE, "{}")?;
    /// let mut low = Request::default();
    /// low.priority = -1;
    /// assert_eq!(harness.admitted(&plugin, &low), Some(Err(Denied("low priority".into()))));
    /// assert_eq!(harness.admitted(&plugin, &Request::default()), Some(Ok(())));
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn admitted(&self, plugin: &PluginParts, request: &Request) -> Option<Result<(), Denied>> {
        let admitter = plugin.admitter.as_ref()?;
        Some(admitter.admit(&self.context(request), &self.candidates(), &mut StdRng::seed_from_u64(0)))
    }

    /// Runs a profile handler until it asks for no further profile. A profile picks the endpoint whose name is beside
    /// its own; without one it fails. Returns the profiles in the order in which they ran, and the one whose picks go
    /// to the gateway; `None` for a plugin that is no profile handler. [`ProfileHandler::settle`] is not called.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use usher_core::config::ConfigError;
    /// # use usher_core::endpoints::EndpointSpec;
    /// # use usher_core::request::Request;
    /// # use usher_plugin::testing::{Handled, Harness};
    /// # use usher_plugin::{
    /// #     Build, BuildContext, Context, Kind, Outcome, PluginParts, PluginType, ProfileHandler, ProfileSet, Runs,
    /// #     ScheduleError, beta,
    /// # };
    /// /// Runs the second profile where the first finds no endpoint.
    /// struct Fallback;
    ///
    /// impl ProfileHandler for Fallback {
    ///     fn next(&self, _: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
    ///         match (runs.outcome(0), runs.outcome(1)) {
    ///             (Outcome::Waiting, _) => ProfileSet::from_slice(&[0]),
    ///             (Outcome::Failed(_), Outcome::Waiting) => ProfileSet::from_slice(&[1]),
    ///             _ => ProfileSet::new(),
    ///         }
    ///     }
    ///
    ///     fn finish(&self, _: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
    ///         (0..2).find(|&profile| runs.picked(profile).is_some()).ok_or(ScheduleError::Drained)
    ///     }
    /// }
    /// # static TYPE: PluginType = beta("fallback", &[Kind::ProfileHandler], "Two profiles.", Build::Reading(build));
    /// # fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    /// #     cx.takes_nothing()?;
    /// #     Ok(PluginParts { handler: Some(Arc::new(Fallback)), ..PluginParts::bare() })
    /// # }
    ///
    /// let mut harness = Harness::new(vec![EndpointSpec::new("a", ([10, 0, 0, 1], 8000))]);
    /// let plugin = harness.build(&TYPE, "{}")?;
    /// let handled = harness.handled(&plugin, &Request::default(), &[("near", None), ("far", Some("a"))]);
    /// let Handled { ran, primary } = handled.unwrap();
    /// assert_eq!((ran, primary), (vec!["near".to_owned(), "far".to_owned()], Ok("far".to_owned())));
    /// # Ok::<(), ConfigError>(())
    /// ```
    ///
    /// [`ProfileHandler::settle`]: super::ProfileHandler::settle
    pub fn handled(
        &self,
        plugin: &PluginParts,
        request: &Request,
        profiles: &[(&str, Option<&str>)],
    ) -> Option<Handled> {
        let handler = plugin.handler.as_ref()?;
        let (cx, candidates) = (self.context(request), self.candidates());
        let names: Vec<Arc<str>> = profiles.iter().map(|(name, _)| Arc::from(*name)).collect();
        let mut outcomes = vec![Outcome::Waiting; profiles.len()];
        let mut ran = Vec::new();
        loop {
            let mut new = false;
            for profile in handler.next(&cx, &Runs::new(&names, &outcomes, &candidates)) {
                if let (Some(outcome @ Outcome::Waiting), Some((name, pick))) =
                    (outcomes.get_mut(profile), profiles.get(profile))
                {
                    *outcome = picks(profile, *pick, &candidates);
                    ran.push((*name).to_owned());
                    new = true;
                }
            }
            // A profile that has run isn't run again, as by the scheduler.
            if !new {
                break;
            }
        }
        let runs = Runs::new(&names, &outcomes, &candidates);
        let primary = handler.finish(&cx, &runs).map(|profile| runs.name(profile).to_owned());
        Some(Handled { ran, primary })
    }

    fn names(&self, positions: impl Iterator<Item = u32>) -> Vec<String> {
        let candidates = self.candidates();
        let endpoints = candidates.snapshot().endpoints();
        let name = |position: u32| Some(endpoints.get(position as usize)?.name().to_owned());
        positions.filter_map(name).collect()
    }

    fn context<'a>(&'a self, request: &'a Request) -> Context<'a> {
        Context { facts: &self.facts, ..Context::new(request, NOW_MS, MAX_AGE) }
    }
}

/// Run of a profile handler in the [`Harness`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Names of the profiles that ran, in order.
    pub ran: Vec<String>,
    /// Name of the profile whose picks go to the gateway.
    pub primary: Result<String, ScheduleError>,
}

/// Outcome of a profile that picks the endpoint of this name.
fn picks(profile: usize, name: Option<&str>, candidates: &Candidates) -> Outcome {
    let endpoints = candidates.snapshot().endpoints();
    let of_name = |position: &u32| endpoints.get(*position as usize).is_some_and(|e| Some(e.name()) == name);
    match candidates.indices().iter().copied().find(of_name) {
        Some(pick) => Outcome::Picked(Run { profile, picks: [pick].into_iter().collect(), record: None }),
        None => Outcome::Failed(ScheduleError::Drained),
    }
}
