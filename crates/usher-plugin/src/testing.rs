//! A place where plugins are tried: built as a configuration builds them, and called for a request.

use std::time::Duration;

use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher_core::config::{ConfigError, Node, Position};
use usher_core::endpoints::{Candidates, Endpoint, EndpointSpec, Store, View};
use usher_core::request::Request;

use super::build::{Build, BuildContext, PluginParts};
use super::build_state::BuildState;
use super::context::Context;
use super::facts::{Fact, Facts, Key};
use super::families::Families;
use super::state::State;
use super::types::PluginType;

/// The clock of the harness, on which readings of loads have to be stamped to be fresh.
pub const NOW_MS: u64 = 1;

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
    /// Wrong parameters; plugins that the parameters name are not there.
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

    /// Says what a producer would have learned about the request.
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
        let endpoints = candidates.snapshot().endpoints();
        let name = |endpoint: &Endpoint| endpoint.name().to_owned();
        Some(kept.iter().filter_map(|&position| endpoints.get(position as usize).map(|e| name(e))).collect())
    }

    fn context<'a>(&'a self, request: &'a Request) -> Context<'a> {
        Context { facts: &self.facts, ..Context::new(request, NOW_MS, Duration::from_secs(1)) }
    }
}
