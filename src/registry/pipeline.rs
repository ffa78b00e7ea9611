//! A configuration with its defaults, built and ready to run.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{ConfigError, EndpointPickerConfig};
use crate::discovery::params::FileDiscoveryParams;
use crate::request::ParserKind;
use crate::schedule::flow_control::FlowControlSpec;
use crate::schedule::{Scheduler, SchedulerMetrics, Stages, State};
use crate::scrape::Engines;
use usher_plugins::KvEventsSource;

use super::data::MetricsSource;
use super::instances::{self, Instances};
use super::replayed::{BUILT_IN_TTFT, EXPECTED_LATENCY_TTFT};
use super::replicas::Sharing;
use super::resolved::{Resolved, ResolvedPlugin, Use};
use super::types::PluginTypes;
use super::{data, flow, handler, parsers, profiles, replicas, stages};

/// Configuration that llm-d-router runs when it is given none.
const BUILT_IN: &str = "
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
";

/// A configuration, ready to run.
#[derive(Debug)]
pub struct Pipeline {
    /// Chooses endpoints.
    pub scheduler: Scheduler,
    /// Plugins around a decision.
    pub stages: Arc<Stages>,
    /// The parsers in the order in which they are asked.
    pub parsers: Vec<ParserKind>,
    /// The file that lists the endpoints; `None`: the configuration doesn't say
    /// where they come from.
    pub discovery: Option<FileDiscoveryParams>,
    /// Data sources, polled where an extractor reads them. Empty: nothing is polled.
    pub sources: Vec<MetricsSource>,
    /// KV events that are followed. Empty: no plugin asks for any.
    pub kv_events: Vec<KvEventsSource>,
    /// State that replicas share.
    pub sharing: Sharing,
    /// Flow control; `None`: requests don't wait.
    pub flow_control: Option<FlowControlSpec>,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
    /// Features that the configuration asks for and doesn't get, one sentence each.
    pub warnings: Vec<String>,
    /// The configuration with its defaults filled in.
    pub resolved: Resolved,
    /// The detectors in use that go by what endpoints say, and from which age on they
    /// take that for full.
    staleness: Vec<(String, Duration)>,
}

impl Pipeline {
    /// Builds a configuration, or the built-in one.
    ///
    /// # Errors
    /// `ConfigError` of the first part that can't be built, with its position.
    pub fn build(
        config: Option<&EndpointPickerConfig>,
        allow_experimental: bool,
        metrics: &SchedulerMetrics,
        state: &State,
    ) -> Result<Self, ConfigError> {
        Self::build_with(&PluginTypes::default(), config, allow_experimental, metrics, state)
    }

    /// Builds a configuration that may name these plugin types.
    ///
    /// # Errors
    /// Same as [`Self::build`].
    pub fn build_with(
        types: &PluginTypes,
        config: Option<&EndpointPickerConfig>,
        allow_experimental: bool,
        metrics: &SchedulerMetrics,
        state: &State,
    ) -> Result<Self, ConfigError> {
        match config {
            Some(config) => Self::of(types, (config, false), allow_experimental, metrics, state),
            None => {
                let built_in = EndpointPickerConfig::parse(BUILT_IN)?;
                Self::of(types, (&built_in, true), allow_experimental, metrics, state)
            }
        }
    }

    /// Notes on detectors whose numbers grow old between two readings, one sentence each.
    /// `tick`: how often sources are polled that don't say it themselves, if that is known.
    pub fn notes_on_staleness(&self, tick: Option<Duration>) -> Vec<String> {
        let sources = self.sources.iter();
        let fed = sources.filter(|source| source.engines.iter().any(Engines::say_how_full));
        let interval = fed.filter_map(|source| source.params.own_interval().or(tick)).max();
        let Some(interval) = interval else { return Vec::new() };
        let enough = 2 * interval;
        let short = self.staleness.iter().filter(|(_, threshold)| *threshold < enough);
        let note = |(name, threshold): &(String, Duration)| {
            format!(
                "'{name}' takes endpoints for full whose numbers are {threshold:?} old, and they are read every {interval:?}: set metricsStalenessThreshold to {enough:?} or more"
            )
        };
        short.map(note).collect()
    }

    fn of(
        types: &PluginTypes,
        (config, built_in): (&EndpointPickerConfig, bool),
        allow_experimental: bool,
        metrics: &SchedulerMetrics,
        state: &State,
    ) -> Result<Self, ConfigError> {
        let mut notes = config.notes.clone();
        let mut instances = Instances::declare(&config.plugins, types, metrics, state)?;
        if built_in {
            instances.forget_places();
            notes.push(format!(
                "no configuration, or an empty one: the built-in configuration runs, llm-d-router's default policy; \
                 where prompts begin alike, its mean TTFT in replay was {BUILT_IN_TTFT}, that of \
                 deploy/config/expected-latency.yaml {EXPECTED_LATENCY_TTFT}"
            ));
        } else {
            let declared = config.plugins.iter().zip(instances.iter());
            notes.extend(declared.filter_map(|(plugin, parts)| instances::note(parts.plugin_type, plugin)));
        }

        // Everything that the defaults add, so that the file may refer to it.
        let written = profiles::written(config, &instances);
        let handler_defaulted = handler::add(&mut instances, written.len())?;
        let default_picker = profiles::default_picker(&mut instances)?;
        flow::add_defaults(&mut instances)?;
        let parser_names = parsers::add(config, &mut instances)?;
        let detector = flow::add_detector(config, &mut instances)?;
        let sources = data::add_defaults(config, &mut instances)?;
        // What the file refers to.
        profiles::check(&written, &instances)?;
        flow::check_detector(&detector, &instances)?;
        parsers::check(&parser_names, &instances)?;
        // Every plugin into its places.
        let defaulted = built_in || config.profiles.is_empty();
        let place =
            |profile| profiles::place(profile, defaulted, &instances, &default_picker, metrics, &mut notes);
        let placed: Vec<_> = written.iter().map(place).collect::<Result<_, _>>()?;
        let (built_profiles, resolved_profiles): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
        let (handler, handler_plugin) = handler::only(&instances, &written, &mut notes)?;
        notes.extend(profiles::unknown(&written, &instances));
        let handler_id = profiles::id(handler);
        let (sources, resolved_sources) = data::sources(&sources, &instances, &mut notes)?;
        let discovery = data::discovery(config, &instances)?;
        let mut warnings = Vec::new();
        let (sharing, syncer) = replicas::sharing(config, &instances, &mut warnings)?;
        warnings.extend(profiles::negative_weights(&resolved_profiles));
        let resolved_discovery = discovery.map(|instance| Use::of(&instance.name, false));
        let discovery = discovery.and_then(|instance| instance.parts.extra().cloned());
        let flow_control = flow::flow_control(config, &detector, &instances, &mut notes)?;
        let (parsers, resolved_parsers) =
            parsers::asked(&parser_names, config.parsers.is_empty(), &instances, &mut notes)?;
        let saturation_detector =
            flow::detector(&detector, config.saturation_detector.is_none(), &instances)?;
        // What they read of each other.
        instances.add_producers()?;
        notes.extend(instances.iter().flat_map(|instance| instance.parts.notes.clone()));
        // With flow control such requests wait instead.
        let sheds_by = (!config.feature_gates.flow_control).then_some(saturation_detector.plugin.as_str());
        let (stages, resolved_stages) = stages::place(&instances, &resolved_profiles, sheds_by, metrics)?;
        instances.check_stability(allow_experimental)?;
        let (flow_control, resolved_flow) = flow_control.unzip();
        let filters = resolved_profiles.iter().flat_map(|profile| &profile.filters);
        let asked: HashSet<&String> = filters.chain([&saturation_detector.plugin]).collect();
        let staleness = instances
            .iter()
            .filter(|instance| asked.contains(&instance.name))
            .filter_map(|instance| Some((instance.name.clone(), instance.parts.staleness?)))
            .collect();
        let kv_events = instances.iter().filter_map(|instance| instance.parts.extra().cloned()).collect();
        // Nothing is refused from here on.
        instances.expect_rate();
        Ok(Self {
            scheduler: Scheduler::new(built_profiles, &handler_id, handler_plugin, metrics),
            stages: Arc::new(stages),
            parsers,
            discovery,
            sources,
            kv_events,
            sharing: Sharing { counters: replicas::counters(&instances), ..sharing },
            flow_control,
            notes,
            warnings,
            staleness,
            resolved: Resolved {
                feature_gates: config.feature_gates,
                profiles: resolved_profiles,
                profile_handler: Use::of(&handler_id.name, handler_defaulted),
                parsers: resolved_parsers,
                discovery: resolved_discovery,
                syncer,
                sources: resolved_sources,
                saturation_detector,
                flow_control: resolved_flow,
                stages: resolved_stages,
                plugins: instances
                    .iter()
                    .map(|instance| ResolvedPlugin::of(instance, instances.graph()))
                    .collect(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::schedule::DataType;

    #[test]
    fn precise_producers_read_an_approximate_match_of_any_name() {
        let approx = "{type: approx-prefix-cache-producer}";
        for (others, expected) in [
            ("", "approx-prefix-cache-producer"),
            (", {type: approx-prefix-cache-producer, name: mine}", "mine"),
            (", {type: approx-prefix-cache-producer, name: mine}, APPROX", "approx-prefix-cache-producer"),
            (
                ", {type: approx-prefix-cache-producer, name: mine}, {type: approx-prefix-cache-producer, name: b}",
                "mine",
            ),
        ] {
            for kind in ["producer", "scorer"] {
                let others = others.replace("APPROX", approx);
                let text = format!("plugins: [{{type: precise-prefix-cache-{kind}, name: precise}}{others}]");
                let config = EndpointPickerConfig::parse(&text).unwrap();
                let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
                let built = Pipeline::build(Some(&config), true, &metrics, &State::default()).unwrap();
                let precise = built.resolved.plugins.iter().find(|plugin| plugin.name == "precise").unwrap();
                let mut reads = precise.reads.iter();
                let reads = reads.find(|read| read.data == DataType::PrefixCacheMatchInfo).unwrap();
                assert_eq!(reads.producer, expected, "{text}");
                let count = built.resolved.plugins.iter();
                let count =
                    count.filter(|plugin| plugin.plugin_type == "approx-prefix-cache-producer").count();
                assert_eq!(count, others.matches("approx-prefix").count().max(1), "{text}");
            }
        }
    }
}
