//! A dispatcher over some endpoints, made from a configuration; and filters alone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use usher::config::{ConfigError, EndpointPickerConfig};
use usher::endpoints::{
    CachedLocator, Candidates, Clock, EndpointSpec, Load, Store, StoreLocator, SubsetHint,
};
use usher::flow::{Attempts, Dispatcher, Policy, Rejection, Routed};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Context, Filter, Record, SchedulerMetrics, State};

use crate::support::{MAX_AGE, NOW};

/// Pipeline that is built from a configuration, experimental plugins included.
pub(crate) fn pipeline(config: &str, state: &State) -> Result<Pipeline, ConfigError> {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    Pipeline::build(Some(&EndpointPickerConfig::parse(config)?), true, &metrics, state)
}

/// A pool with its dispatcher. Scores are recorded.
pub(crate) struct Pool {
    dispatcher: Arc<Dispatcher>,
    pub(crate) store: Arc<Store>,
    pub(crate) state: Arc<State>,
    /// Registry of the plugins' metrics.
    pub(crate) registry: Registry,
    clock: Clock,
}

impl Pool {
    pub(crate) fn new(config: &str, endpoints: Vec<EndpointSpec>) -> Self {
        Self::with_state(config, endpoints, Arc::default())
    }

    pub(crate) fn with_state(config: &str, endpoints: Vec<EndpointSpec>, state: Arc<State>) -> Self {
        let store = Arc::new(Store::default());
        store.replace(endpoints);
        Self::of(config, store, state)
    }

    /// The same endpoints and the same state with another configuration.
    pub(crate) fn reloaded(&self, config: &str) -> Self {
        Self::of(config, Arc::clone(&self.store), Arc::clone(&self.state))
    }

    fn of(config: &str, store: Arc<Store>, state: Arc<State>) -> Self {
        let (clock, registry) = (state.clock().clone(), Registry::new());
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let config = EndpointPickerConfig::parse(config).unwrap();
        let pipeline = Pipeline::build(Some(&config), true, &metrics, &state).unwrap();
        let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
        let hour = Duration::from_secs(3600);
        let policy = Policy { scheduler, stages, max_age: hour, record: Record::Scores };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), hour, 16);
        let attempts = Arc::new(Attempts::register(&Registry::new()).unwrap());
        let dispatcher = Arc::new(Dispatcher::new(cached, policy, clock.clone(), attempts));
        Self { dispatcher, store, state, registry, clock }
    }

    pub(crate) fn route(&self, request: &Request) -> Result<Routed, Rejection> {
        self.route_within(request, &SubsetHint::Missing)
    }

    /// The same where a plugin may hold the request.
    pub(crate) async fn dispatch(&self, request: &Request) -> Result<Routed, Rejection> {
        self.dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided().await
    }

    /// Finds a destination at once; `None` where that is not possible.
    pub(crate) fn try_dispatch(
        &self,
        request: &Request,
        subset: &SubsetHint,
    ) -> Option<Result<Routed, Rejection>> {
        self.dispatcher.decide_now(request, subset, &mut rand::rng())
    }

    pub(crate) fn route_within(&self, request: &Request, subset: &SubsetHint) -> Result<Routed, Rejection> {
        self.dispatcher.enter(&Arc::new(request.clone()), subset).decided().now_or_never().unwrap()
    }

    /// The positions of the endpoints that the filters left; none of them is a refusal.
    pub(crate) fn kept(&self, request: &Request) -> Vec<u32> {
        match self.route(request) {
            Ok(routed) => routed.decision().primary().record.as_deref().unwrap().survivors.clone(),
            Err(rejection) => {
                assert_eq!(rejection.message, "no endpoints available for the given request");
                assert_eq!((rejection.code.status(), rejection.reason), (429, Some("rejected-saturated")));
                Vec::new()
            }
        }
    }

    /// The load of an endpoint, and now on its clock.
    pub(crate) fn load(&self, position: usize) -> (Arc<Load>, u64) {
        (Arc::clone(self.store.snapshot().endpoints()[position].load()), self.clock.now_ms())
    }
}

/// A configuration whose only profile has these plugins, in this order.
pub(crate) fn profile_of(plugins: &[&str]) -> String {
    let mut config = "plugins:\n".to_owned();
    for (number, plugin) in plugins.iter().enumerate() {
        config += &format!("- {{name: p{number}, {plugin}}}\n");
    }
    config += "schedulingProfiles:\n- name: default\n  plugins:\n";
    for number in 0..plugins.len() {
        config += &format!("  - pluginRef: p{number}\n");
    }
    config
}

/// Endpoints at 10.0.0.1, 10.0.0.2 … with these labels.
pub(crate) fn labelled(labels: &[&[(&str, &str)]]) -> Vec<EndpointSpec> {
    let spec = |(index, labels): (usize, &&[(&str, &str)])| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let address = ([10, 0, 0, u8::try_from(index).unwrap() + 1], 8000);
        EndpointSpec { labels: labels.collect(), ..EndpointSpec::new(format!("pod-{index}"), address) }
    };
    labels.iter().enumerate().map(spec).collect()
}

/// Endpoints without labels at these addresses.
pub(crate) fn at(addresses: &[&str]) -> Vec<EndpointSpec> {
    let spec = |(index, address): (usize, &&str)| {
        let address: std::net::SocketAddr = address.parse().unwrap();
        EndpointSpec::new(format!("pod-{index}"), address)
    };
    addresses.iter().enumerate().map(spec).collect()
}

/// These endpoints, all of them candidates.
pub(crate) fn all(endpoints: Vec<EndpointSpec>) -> Candidates {
    let store = Store::default();
    store.replace(endpoints);
    store.snapshot().all()
}

/// A request without a body.
pub(crate) fn asking(headers: &[(&str, &str)]) -> Request {
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let headers: Headers = headers.iter().copied().collect();
    RequestParser::new(headers, &parsers).without_body()
}

/// Indices that a filter keeps, of all candidates.
pub(crate) fn filtered(filter: &dyn Filter, candidates: &Candidates) -> Vec<u32> {
    filtered_for(filter, candidates, &Request::default())
}

/// The same for a request.
pub(crate) fn filtered_for(filter: &dyn Filter, candidates: &Candidates, request: &Request) -> Vec<u32> {
    let mut kept = candidates.indices().to_vec();
    filter.filter(&Context::new(request, NOW, MAX_AGE), candidates.snapshot(), &mut kept, &mut rand::rng());
    kept
}
