//! Plugins around a decision: sessions, rollouts, admission.

mod admitter;
mod durations;
mod rollout;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use usher::config::{ConfigError, EndpointPickerConfig};
use usher::endpoints::{CachedLocator, Candidates, Clock, EndpointSpec, Store, StoreLocator};
use usher::flow::{Attempts, Dispatcher, Policy};
use usher::registry::Pipeline;
use usher::request::{ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, State};

/// `pod-0`, `pod-1` … with these labels.
fn labelled(labels: &[Vec<(&str, String)>]) -> Candidates {
    let store = Store::default();
    let spec = |(index, labels): (usize, &Vec<(&str, String)>)| {
        let mut spec = EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index as u8 + 1], 8000));
        spec.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        spec
    };
    store.replace(labels.iter().enumerate().map(spec).collect());
    store.snapshot().all()
}

fn with_headers(headers: &[(&str, &str)]) -> Request {
    let headers = headers.iter().copied().collect();
    RequestParser::new(headers, &Parsers::new(&[ParserKind::PassThrough])).without_body()
}

fn of_priority(priority: i32) -> Request {
    let mut request = with_headers(&[]);
    request.priority = priority;
    request
}

fn build(config: &str, registry: &Registry, state: &State) -> Result<Pipeline, ConfigError> {
    let metrics = SchedulerMetrics::register(registry).unwrap();
    Pipeline::build(Some(&EndpointPickerConfig::parse(config)?), true, &metrics, state)
}

/// A configuration at work on the endpoints of a store.
fn dispatcher(config: &str, store: &Arc<Store>, state: &State) -> Arc<Dispatcher> {
    dispatcher_in(config, store, state, &Registry::new())
}

/// The same, counting in a registry.
fn dispatcher_in(config: &str, store: &Arc<Store>, state: &State, registry: &Registry) -> Arc<Dispatcher> {
    let clock = Clock::start();
    let pipeline = build(config, registry, state).unwrap();
    let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
    let policy = Policy { scheduler, stages, max_age: Duration::from_secs(2), record: Record::No };
    let locator = Arc::new(StoreLocator::new(Arc::clone(store), false));
    let cached = CachedLocator::new(locator, clock.clone(), Duration::ZERO, 16);
    Arc::new(Dispatcher::new(cached, policy, clock, Arc::new(Attempts::register(registry).unwrap())))
}
