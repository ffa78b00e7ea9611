//! Where endpoints and their numbers come from.

use crate::config::{ConfigError, EndpointPickerConfig, Name, Reference, Source};

use super::instances::{Instance, Instances, wrong_kind};
use super::pipeline::MetricsSource;
use super::profiles::START;
use super::resolved::{ResolvedSource, Use};
use super::types::Kind;

const SOURCE: &str = "metrics-data-source";
const EXTRACTOR: &str = "core-metrics-extractor";

/// The configured sources, and whether the last one is the default.
pub(super) struct Sources {
    written: Vec<Source>,
    defaulted: bool,
}

/// Adds the model servers' metrics unless they are configured or not wanted.
pub(super) fn add_defaults(
    config: &EndpointPickerConfig,
    instances: &mut Instances<'_>,
) -> Result<Sources, ConfigError> {
    let layer = &config.data_layer;
    let mut written = layer.sources.clone();
    let defaulted = layer.inject_defaults && written.iter().all(|source| source.plugin_ref.value != SOURCE);
    if defaulted {
        instances.inject(SOURCE, START)?;
        instances.inject(EXTRACTOR, START)?;
        let name = |name: &str| Name { at: START, value: name.to_owned() };
        let extractors = vec![Reference { plugin_ref: name(EXTRACTOR) }];
        written.push(Source { plugin_ref: name(SOURCE), extractors });
    }
    Ok(Sources { written, defaulted })
}

/// What is polled.
pub(super) fn sources(
    sources: &Sources,
    instances: &Instances<'_>,
    notes: &mut Vec<String>,
) -> Result<(Vec<MetricsSource>, Vec<ResolvedSource>), ConfigError> {
    let (mut built, mut resolved) = (Vec::new(), Vec::new());
    for (index, source) in sources.written.iter().enumerate() {
        let key = "dataLayer.sources";
        let instance = instances.get_kind(key, &source.plugin_ref, Kind::DataSource)?;
        let params = instance.built.source.clone();
        let params = params.ok_or_else(|| wrong_kind(key, &source.plugin_ref, "a data source"))?;
        let mut extractors = Vec::new();
        for Reference { plugin_ref } in &source.extractors {
            extractors.push(instances.get_kind("extractors", plugin_ref, Kind::Extractor)?);
        }
        let engines: Vec<_> =
            extractors.iter().filter_map(|extractor| extractor.built.engines.clone()).collect();
        if engines.is_empty() {
            notes.push(format!("data source '{}' is not polled, as no extractor reads it", instance.name));
        }
        built.push(MetricsSource { params, engines });
        let defaulted = sources.defaulted && index + 1 == sources.written.len();
        let extractors = extractors.iter().map(|extractor| extractor.name.clone()).collect();
        resolved.push(ResolvedSource { source: Use::of(&instance.name, defaulted), extractors });
    }
    let is_listed = |name| resolved.iter().any(|source: &ResolvedSource| source.extractors.contains(name));
    for extractor in instances.iter().filter(|instance| instance.built.engines.is_some()) {
        if !is_listed(&extractor.name) {
            notes.push(format!("extractor '{}' has no effect, as no data source lists it", extractor.name));
        }
    }
    if built.is_empty() {
        notes.push("no data source: no metrics are read, and scorers see all endpoints as equal".to_owned());
    }
    Ok((built, resolved))
}

/// The plugin that finds endpoints, and the checks of what surrounds it.
pub(super) fn discovery<'a>(
    config: &EndpointPickerConfig,
    instances: &'a Instances<'_>,
) -> Result<Option<&'a Instance>, ConfigError> {
    let layer = &config.data_layer;
    if let Some(Reference { plugin_ref }) = &layer.peer_discovery {
        instances.get("dataLayer.peerDiscovery", plugin_ref)?;
        return Err(wrong_kind("dataLayer.peerDiscovery", plugin_ref, "a peer discovery plugin"));
    }
    if let Some(syncer) = &layer.cross_replica_syncer_plugin_ref {
        let key = "dataLayer.crossReplicaSyncerPluginRef";
        instances.get(key, syncer)?;
        return Err(wrong_kind(key, syncer, "a cross-replica syncer"));
    }
    let Some(Reference { plugin_ref }) = &layer.discovery else { return Ok(None) };
    instances.get_kind("dataLayer.discovery", plugin_ref, Kind::Discovery).map(Some)
}
