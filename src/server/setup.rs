//! Parts of a server before it listens.

use std::sync::Arc;

use prometheus::Registry;

use super::RunError;
use super::capacity::Policies;
use super::origin::Origin;
use super::sharing;
use crate::config::{self, EndpointPickerConfig};
use crate::endpoints::health::{HealthParams, OutlierDetector, OutlierMetrics};
use crate::endpoints::{Clock, PodLocator, Store};
use crate::memory::{Budget, cgroup};
use crate::observe::log_level::LogLevel;
use crate::registry::{Origin as Declared, Pipeline, PluginTypes, Resolved};
use crate::schedule::{SchedulerMetrics, State};
use crate::settings::{
    ConfigSource, ExchangeSettings, MemoryBudget, MemorySettings, OutlierSettings, ServeSettings,
    StateStoreSettings,
};

/// Note on a feature gate that has no effect.
const COLD_STANDBY: &str = "haPopulateNonLeaderDatastore=false has no effect with a state store: all replicas are ready and know the endpoints";

/// A configuration that has been read, and everything else a server is made of
/// before it listens.
pub struct Setup {
    pub(super) settings: ServeSettings,
    /// Types that a configuration may name.
    pub(super) types: PluginTypes,
    /// Text of the configuration; empty: there is none.
    pub(super) text: String,
    pub(super) pipeline: Pipeline,
    pub(super) registry: Registry,
    pub(super) scheduler_metrics: SchedulerMetrics,
    pub(super) state: Arc<State>,
    pub(super) origin: Option<Origin>,
    /// Replicas that don't lead know the endpoints, too.
    pub(super) warm: bool,
    pub(super) store: Arc<Store>,
    pub(super) locator: Option<Arc<dyn PodLocator>>,
    pub(super) outliers: Option<Arc<OutlierDetector>>,
    pub(super) policies: Option<Policies>,
    /// Store through which replicas share state, and the pace of it; `None`: nothing is shared.
    pub(super) sharing: Option<(StateStoreSettings, ExchangeSettings)>,
    /// Level of the log, for the admin port; `None`: it doesn't change.
    pub(super) log_level: Option<Arc<LogLevel>>,
}

impl Setup {
    /// Reads the configuration that the settings name.
    ///
    /// # Errors
    /// `RunError` with file, line and column if the configuration can't be read or is not valid.
    pub fn new(settings: ServeSettings) -> Result<Self, RunError> {
        Self::with_plugins(settings, &PluginTypes::default())
    }

    /// A setup whose configuration may name these plugin types.
    ///
    /// # Errors
    /// Same as [`Self::new`].
    pub fn with_plugins(settings: ServeSettings, types: &PluginTypes) -> Result<Self, RunError> {
        let registry = Registry::new();
        let scheduler_metrics = SchedulerMetrics::register(&registry)?;
        let (name, text) = match &settings.config {
            ConfigSource::Default => (String::new(), None),
            ConfigSource::Text(text) => ("--config-text".to_owned(), Some(text.clone())),
            ConfigSource::File(path) => {
                let name = path.display().to_string();
                let text = config::source::read_file(path)
                    .map_err(|error| RunError::Config(error.in_file(&name)))?;
                (name, Some(text))
            }
        };
        let in_file = |error: config::ConfigError| RunError::Config(error.in_file(&name));
        let text = text.unwrap_or_default();
        let config = EndpointPickerConfig::parse_unless_empty(&text).map_err(in_file)?;
        let allowed = settings.allow_experimental_plugins;
        let budget = Arc::new(memory_budget(settings.memory));
        let state = Arc::new(State::within(Clock::start(), budget));
        let mut pipeline = Pipeline::build_with(types, config.as_ref(), allowed, &scheduler_metrics, &state)
            .map_err(in_file)?;
        let stale = pipeline.notes_on_staleness(Some(settings.refresh_metrics_interval));
        pipeline.notes.extend(stale);
        let declared = || discovery_place(&name, &pipeline.resolved);
        let origin = Origin::new(&settings, pipeline.discovery.as_ref(), declared)?;
        pipeline.notes.extend(origin.as_ref().and_then(|origin| origin.note(&settings.pool)));
        let warm = config.as_ref().is_none_or(|config| config.feature_gates.ha_populate_non_leader_datastore);
        let outliers = settings.outliers.map(|outliers| watch(outliers, &registry, &state)).transpose()?;
        let store = Arc::new(outliers.clone().map(Store::watched).unwrap_or_default());
        let locator = None;
        let sharing = sharing::chosen(&settings, &pipeline.sharing, &pipeline.resolved, &name)?;
        if !warm && sharing.is_some() && settings.pool.leader_election {
            pipeline.notes.push(COLD_STANDBY.to_owned());
        }
        // All of them serve.
        let warm = warm || sharing.is_some();
        let can_act = matches!(origin, Some(Origin::Kubernetes(_)));
        let policies = Policies::load(&settings, &pipeline, &state, can_act)?;
        Ok(Self {
            settings,
            types: types.clone(),
            text,
            pipeline,
            registry,
            scheduler_metrics,
            state,
            origin,
            warm,
            locator,
            store,
            outliers,
            policies,
            sharing,
            log_level: None,
        })
    }

    /// The endpoints that the server knows: they are scraped, shown, kept from requests while
    /// they fail, and cleaned up after.
    /// Discovery writes them, or a locator that finds endpoints of its own.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Finds candidates with another locator than one that looks into the
    /// [store](Self::store). The cache stays in front of it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use usher::cli::{Command, parse};
    /// # use usher::endpoints::{Located, PodLocator, Store, SubsetHint};
    /// # struct Directory { store: Arc<Store> }
    /// # impl PodLocator for Directory {
    /// #     fn locate<'a>(&'a self, hint: &'a SubsetHint) -> Located<'a> {
    /// #         Box::pin(async move { self.store.snapshot().subset(hint) })
    /// #     }
    /// #     fn generation(&self) -> u64 { self.store.generation() }
    /// # }
    /// # let arguments = ["usher", "serve", "--locator-ttl=1s"].map(Into::into);
    /// # let Ok(Command::Serve(flags)) = parse(arguments) else { panic!() };
    /// # let settings = flags.settings(usher::settings::Environment::default())?;
    /// let setup = usher::Setup::new(settings)?;
    /// let directory = Directory { store: Arc::clone(setup.store()) };
    /// let setup = setup.with_locator(Arc::new(directory));
    /// // usher::run(setup, listeners, stops).await
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_locator(mut self, locator: Arc<dyn PodLocator>) -> Self {
        self.locator = Some(locator);
        self
    }

    /// Lets the admin port change the level of the log.
    #[must_use]
    pub fn with_log_level(mut self, level: Arc<LogLevel>) -> Self {
        self.log_level = Some(level);
        self
    }

    /// Settings of the server.
    pub fn settings(&self) -> &ServeSettings {
        &self.settings
    }
}

/// The place of the discovery plugin of a configuration, for a sentence.
fn discovery_place(file: &str, resolved: &Resolved) -> String {
    let name = resolved.discovery.as_ref().map_or("", |discovery| discovery.plugin.as_str());
    let at = resolved.plugins.iter().find(|plugin| plugin.name == name).map(|plugin| &plugin.origin);
    match at {
        Some(Declared::Declared(at)) => {
            format!("the plugin '{name}' ({file}:{}:{}, dataLayer.discovery)", at.line, at.column)
        }
        _ => format!("the plugin '{name}' (dataLayer.discovery)"),
    }
}

/// Monitor of the endpoints' health, with its metrics registered.
fn watch(
    settings: OutlierSettings,
    registry: &Registry,
    state: &State,
) -> Result<Arc<OutlierDetector>, RunError> {
    let OutlierSettings { failures, failed_scrapes, first_byte, first_pause, longest_pause, successes } =
        settings;
    let params = HealthParams { failures, failed_scrapes, first_byte, first_pause, longest_pause, successes };
    Ok(Arc::new(OutlierDetector::new(params, state.clock().clone(), OutlierMetrics::register(registry)?)))
}

/// The memory budget that the settings ask for, in this container.
pub(crate) fn memory_budget(settings: MemorySettings) -> Budget {
    budget(settings, cgroup::limit())
}

/// The memory budget of the settings in a container with this limit.
fn budget(settings: MemorySettings, container: Option<u64>) -> Budget {
    let bytes = match settings.budget {
        MemoryBudget::Off => None,
        MemoryBudget::Container => container,
        MemoryBudget::Bytes(bytes) => Some(bytes),
    };
    match bytes {
        Some(bytes) => Budget::of_process(bytes, settings.prefix_index),
        None => Budget::unlimited(settings.prefix_index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_budget_defaults_to_the_container_limit() {
        const GI: u64 = 1 << 30;
        let limit = |asked, container| {
            budget(MemorySettings { budget: asked, prefix_index: None }, container).limit()
        };
        assert_eq!(limit(MemoryBudget::Container, Some(GI)), Some(GI / 4 * 3));
        assert_eq!(limit(MemoryBudget::Container, None), None);
        assert_eq!(limit(MemoryBudget::Off, Some(GI)), None);
        assert_eq!(limit(MemoryBudget::Bytes(2 * GI), Some(GI)), Some(GI / 2 * 3));
    }
    #[test]
    fn request_bodies_keep_half_beside_the_prefix_index() {
        const MI: u64 = 1 << 20;
        let share = |asked, container, prefix_index| {
            budget(MemorySettings { budget: asked, prefix_index: Some(prefix_index) }, container)
                .prefix_index()
        };
        for (container, asked, given) in [
            (Some(1024 * MI), 600 * MI, 384 * MI),
            (Some(1024 * MI), 384 * MI, 384 * MI),
            (Some(64 * MI), 32 * MI, 8 * MI),
            (None, 600 * MI, 600 * MI),
        ] {
            assert_eq!(share(MemoryBudget::Container, container, asked), given, "{container:?} {asked}");
        }
        assert_eq!(share(MemoryBudget::Off, Some(64 * MI), 600 * MI), 600 * MI);
    }
}
