//! Puts plugins into the stages around a decision. Every declared plugin takes all its
//! places there, whether or not a profile refers to it, as in llm-d-router.

use std::sync::Arc;

use usher_plugin::params::PREFIX_PRODUCER;

use crate::config::ConfigError;
use crate::schedule::{DataType, Key, SchedulerMetrics, Stages, StagesBuilder};

use super::instances::{Instances, START};
use super::profiles::id;
use super::resolved::{ResolvedProfile, ResolvedStages};

/// Builds the stages. `sheds_by` is the plugin that says when requests of negative
/// priority are refused, if they are.
pub(super) fn place(
    instances: &Instances<'_>,
    profiles: &[ResolvedProfile],
    sheds_by: Option<&str>,
    metrics: &SchedulerMetrics,
) -> Result<(Stages, ResolvedStages), ConfigError> {
    let mut stages = StagesBuilder::new(metrics);
    let mut resolved = ResolvedStages::default();
    for instance in instances.iter() {
        let (id, parts) = (id(instance), &instance.parts);
        if let Some(plugin) = &parts.header_processor {
            stages.header_processor(&id, Arc::clone(plugin));
            resolved.header_processors.push(instance.name.clone());
        }
        if let Some(plugin) = &parts.gatherer {
            stages.gatherer(Arc::clone(plugin));
            resolved.gatherers.push(instance.name.clone());
        }
        if let Some(plugin) = &parts.screener {
            stages.screener(&id, Arc::clone(plugin));
            resolved.screeners.push(instance.name.clone());
        }
        if let Some(plugin) = &parts.admitter {
            stages.admitter(&id, Arc::clone(plugin));
            resolved.admitters.push(instance.name.clone());
        }
        if let Some(plugin) = &parts.pre_request {
            stages.pre_request(&id, Arc::clone(plugin));
            resolved.pre_request.push(instance.name.clone());
        }
    }
    if let Some(detector) = sheds_by.and_then(|name| instances.find(name)?.parts.detector.as_ref()) {
        stages.sheds_by(Arc::clone(detector));
    }
    for name in producers(instances)? {
        if let Some(instance) = instances.find(name)
            && let Some(plugin) = &instance.parts.producer
        {
            stages.producer(&id(instance), Arc::clone(plugin));
            resolved.producers.push(instance.name.clone());
        }
    }
    let graph = instances.graph();
    let reads_in_flight = |plugin: &String| {
        graph.read_by(plugin).any(|(data, _)| data == DataType::InFlightLoad)
            || instances.find(plugin).is_some_and(|instance| instance.parts.books)
    };
    let handler_books =
        instances.iter().any(|instance| instance.parts.handler.is_some() && instance.parts.books);
    let books = handler_books
        || profiles.iter().any(|profile| {
            let scorers = profile.scorers.iter().map(|scorer| &scorer.plugin);
            profile.filters.iter().chain(scorers).any(reads_in_flight)
        });
    // Whose match a conditional request asks for: that of what engines tell, where they do.
    let precise = graph.producers_of(DataType::KvEventsMatch).next();
    let precise = precise.and_then(|producer| graph.produced(DataType::PrefixCacheMatchInfo, producer));
    let prefix = precise.or_else(|| graph.produced(DataType::PrefixCacheMatchInfo, PREFIX_PRODUCER));
    if let Some(producer) = DataType::TokenizedPrompt.default_producer()
        && let Some(key) = graph.produced(DataType::TokenizedPrompt, producer)
    {
        stages.tokens(Key::new(key));
    }
    // Of several the first is explained.
    if let Some(producer) = graph.producers_of(DataType::KvEventsMatch).next()
        && let Some(key) = graph.produced(DataType::KvEventsMatch, producer)
    {
        stages.kv_events(Key::new(key));
    }
    Ok((stages.build(books, prefix.map(Key::new)), resolved))
}

/// The names of the producers, in the order in which they run.
fn producers<'a>(instances: &'a Instances<'_>) -> Result<Vec<&'a str>, ConfigError> {
    let all = instances.iter().filter(|instance| instance.parts.producer.is_some());
    let names: Vec<&str> = all.map(|instance| instance.name.as_str()).collect();
    instances.graph().ordered(&names).map_err(|circle| {
        let first = circle.first().and_then(|name| instances.find(name)).and_then(|instance| instance.at);
        let message = format!("these plugins read each other's data: {}", circle.join(", "));
        ConfigError::at(first.unwrap_or(START), message).hint("let one of them read another producer's")
    })
}
