//! Sources of endpoints and their numbers.

use usher_plugin::{Kind, wrong_kind};

use crate::config::{ConfigError, EndpointPickerConfig, Name, Reference, Source};
use crate::scrape::Engines;
use crate::scrape::params::{SourceKind, SourceParams};

use super::instances::{Instance, Instances, START};
use super::resolved::{ResolvedSource, Use};
use super::table::{ReadsModels, Source as DataSource};

const SOURCE: &str = "metrics-data-source";
const EXTRACTOR: &str = "core-metrics-extractor";

/// The configured sources, and whether the last one is the default.
pub(super) struct Sources {
    written: Vec<Source>,
    defaulted: bool,
}

/// A source of numbers about endpoints that is polled.
#[derive(Clone, Debug)]
pub struct MetricsSource {
    /// Location and interval.
    pub params: SourceParams,
    /// Metrics that each extractor reads of the page, by engine, in the order of the extractors. Empty:
    /// no extractor reads metrics.
    pub engines: Vec<Engines>,
    /// `true` if the page is read as a list of models.
    pub models: bool,
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

/// Data sources that can be polled, and all of them as they are shown.
pub(super) fn sources(
    sources: &Sources,
    instances: &Instances<'_>,
    notes: &mut Vec<String>,
) -> Result<(Vec<MetricsSource>, Vec<ResolvedSource>), ConfigError> {
    let (mut parts, mut resolved) = (Vec::new(), Vec::new());
    for (index, source) in sources.written.iter().enumerate() {
        let key = "dataLayer.sources";
        let instance = instances.get_kind(key, &source.plugin_ref, Kind::DataSource)?;
        let mut extractors = Vec::new();
        match instance.parts.extra() {
            None => return Err(wrong_kind(key, &source.plugin_ref, "a data source")),
            Some(DataSource::Polled(params)) => {
                for Reference { plugin_ref } in &source.extractors {
                    let extractor = instances.get_kind("extractors", plugin_ref, Kind::Extractor)?;
                    check_reads(extractor, plugin_ref, instance, params.kind)?;
                    extractors.push(extractor);
                }
                let engines: Vec<_> = extractors
                    .iter()
                    .filter_map(|extractor| extractor.parts.extra::<Engines>().cloned())
                    .collect();
                let models = extractors.iter().any(|extractor| reads_models(extractor));
                if engines.is_empty() && !models {
                    let name = &instance.name;
                    notes.push(format!("data source '{name}' is not polled, as no extractor reads it"));
                }
                parts.push(MetricsSource { params: params.clone(), engines, models });
            }
            Some(DataSource::Notifications) => {
                // Any plugin may want to be notified.
                for Reference { plugin_ref } in &source.extractors {
                    extractors.push(instances.get("extractors", plugin_ref)?);
                }
                let name = &instance.name;
                notes.push(format!(
                    "data source '{name}' has no effect: plugins learn of endpoints from discovery"
                ));
            }
        }
        let defaulted = sources.defaulted && index + 1 == sources.written.len();
        let extractors = extractors.iter().map(|extractor| extractor.name.clone()).collect();
        resolved.push(ResolvedSource { source: Use::of(&instance.name, defaulted), extractors });
    }
    let is_listed = |name| resolved.iter().any(|source: &ResolvedSource| source.extractors.contains(name));
    let reads = |instance: &&Instance| reads_metrics(instance) || reads_models(instance);
    for extractor in instances.iter().filter(reads) {
        if !is_listed(&extractor.name) {
            notes.push(format!("extractor '{}' has no effect, as no data source lists it", extractor.name));
        }
    }
    if parts.is_empty() {
        notes.push("no data source: no metrics are read, and scorers see all endpoints as equal".to_owned());
    }
    Ok((parts, resolved))
}

fn reads_metrics(extractor: &Instance) -> bool {
    extractor.parts.extra::<Engines>().is_some()
}

fn reads_models(extractor: &Instance) -> bool {
    extractor.parts.extra::<ReadsModels>().is_some()
}

/// Lists of models and metrics are different pages.
fn check_reads(
    extractor: &Instance,
    reference: &Name,
    source: &Instance,
    kind: SourceKind,
) -> Result<(), ConfigError> {
    let [brings, reads] = [kind == SourceKind::Models, reads_models(extractor)].map(|models| match models {
        true => "lists of models",
        false => "metrics",
    });
    if brings == reads || !reads_models(extractor) && !reads_metrics(extractor) {
        return Ok(());
    }
    let (extractor, source) = (&extractor.name, &source.name);
    let message =
        format!("extractor '{extractor}' reads {reads}, and data source '{source}' brings {brings}");
    Err(ConfigError::at(reference.at, message).hint("list it with a source of the other kind"))
}

/// The plugin that finds endpoints.
pub(super) fn discovery<'a>(
    config: &EndpointPickerConfig,
    instances: &'a Instances<'_>,
) -> Result<Option<&'a Instance>, ConfigError> {
    let Some(Reference { plugin_ref }) = &config.data_layer.discovery else { return Ok(None) };
    instances.get_kind("dataLayer.discovery", plugin_ref, Kind::Discovery).map(Some)
}
