//! Building of a plugin: the arguments of its build function, and the result.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use serde::Serialize;
use serde_json::{Value, json};
use usher_core::config::{ConfigError, Name, Node, Position};
use usher_core::endpoints::{AttributeId, InFlightId, Lease, Reading};

use super::build_state::BuildState;
use super::by_type::ByType;
use super::facts::{DataType, Fact, Key};
use super::families::Families;
use super::lifecycle::{Admitter, DataProducer, Gatherer, PreRequest, RequestHeaderProcessor, Screener};
use super::plugin::{Decider, Filter, Picker, ProfileHandler, Scorer};
use super::references::{undeclared, wrong_kind};
use super::saturation::SaturationDetector;
use super::state::State;

/// Build function of a type.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// From its parameters, strictly.
    Reading(fn(&mut BuildContext<'_>) -> Result<PluginParts, ConfigError>),
    /// llm-d-router ignores whatever its parameters say, so they can't be wrong.
    Ignoring(fn(&mut BuildContext<'_>) -> Result<PluginParts, ConfigError>),
    /// Unsupported by this version.
    Unsupported,
}

/// Arguments of a plugin's build function.
pub struct BuildContext<'a> {
    /// Name of the instance.
    pub name: &'a str,
    /// Position in the configuration that asks for it.
    pub at: Position,
    /// Parameters as they are written.
    pub parameters: &'a Node,
    /// State that outlives the configuration.
    pub state: &'a State,
    families: &'a Families,
    /// The plugins that are built already; among them those that its parameters name.
    others: &'a [BuiltPlugin<'a>],
    build_state: &'a mut BuildState,
}

/// A plugin that is built already, as the parameters of another may name it.
pub struct BuiltPlugin<'a> {
    /// Name of the plugin.
    pub name: &'a str,
    /// Type of the plugin.
    pub plugin_type: &'static str,
    /// First use in a sentence, as in `a scorer`.
    pub is: &'static str,
    /// The plugin.
    pub parts: &'a PluginParts,
}

impl<'a> BuildContext<'a> {
    /// Arguments for a plugin of this name, asked for at this position, with these parameters.
    #[doc(hidden)]
    pub fn new(
        (name, at, parameters): (&'a str, Position, &'a Node),
        state: &'a State,
        families: &'a Families,
        others: &'a [BuiltPlugin<'a>],
        build_state: &'a mut BuildState,
    ) -> Self {
        Self { name, at, parameters, state, families, others, build_state }
    }

    /// The plugin can't do without the facts of the producer of this name.
    pub fn reads<T: Fact>(&mut self, producer: &str) -> Key<T> {
        Key::new(self.build_state.graph.read(T::DATA, producer, self.name, true))
    }

    /// The plugin uses the facts of the producer of this name if there is one.
    pub fn may_read<T: Fact>(&mut self, producer: &str) -> Key<T> {
        Key::new(self.build_state.graph.read(T::DATA, producer, self.name, false))
    }

    /// The plugin produces facts, under its own name.
    pub fn produces<T: Fact>(&mut self) -> Key<T> {
        Key::new(self.build_state.graph.produce(T::DATA, self.name))
    }

    /// The plugin reads what lives in the endpoints and is kept up to date by the
    /// plugin of this name.
    pub fn reads_live(&mut self, data: DataType, producer: &str) {
        self.build_state.graph.read(data, producer, self.name, true);
    }

    /// The plugin keeps something in the endpoints up to date.
    pub fn produces_live(&mut self, data: DataType) {
        self.build_state.graph.produce(data, self.name);
    }

    /// The plugin reads what the producer of this name counts as under way.
    pub fn reads_in_flight(&mut self, producer: &str) -> InFlightId {
        self.reads_live(DataType::InFlightLoad, producer);
        self.build_state.reserved.in_flight(self.state, producer, self.name, self.at).id()
    }

    /// The plugin counts what is under way, under its own name, as long as it or a
    /// request holds this.
    pub fn counts_in_flight(&mut self) -> Lease<InFlightId> {
        self.produces_live(DataType::InFlightLoad);
        self.build_state.reserved.in_flight(self.state, self.name, self.name, self.at)
    }

    /// The value of this type that all plugins of the configuration share; its default when it is
    /// asked for first. Clones have to share what they say.
    pub fn shared<T: Any + Clone + Default + Send + Sync>(&mut self) -> T {
        self.build_state.shared()
    }

    /// The plugin reads a number of endpoints that the plugin of this name keeps up to
    /// date under this name.
    pub fn reads_attribute(&mut self, name: &str, producer: &str) -> Reading {
        self.build_state.graph.read_named(DataType::ScalarMetricValue, name, producer, self.name, true);
        Reading::named(name).unwrap_or_else(|| {
            let lease = self.build_state.reserved.attribute(self.state, (producer, name), self.name, self.at);
            Reading::Attribute(lease.id())
        })
    }

    /// The plugin keeps a number of endpoints up to date, as long as this is held.
    pub fn produces_attribute(&mut self, name: &str) -> Lease<AttributeId> {
        self.produces_attribute_as(self.name, name)
    }

    /// [`produces_attribute`](Self::produces_attribute) under another producer's name, for attributes
    /// that are known by the plugin's type, not its name.
    pub fn produces_attribute_as(&mut self, producer: &str, name: &str) -> Lease<AttributeId> {
        self.build_state.graph.produce_named(DataType::ScalarMetricValue, name, producer);
        self.build_state.reserved.attribute(self.state, (producer, name), self.name, self.at)
    }

    /// The plugin keeps up to date what every engine reports.
    pub fn produces_readings(&mut self) {
        for (name, _) in Reading::NAMED {
            self.build_state.graph.produce_named(DataType::ScalarMetricValue, name, self.name);
        }
    }

    /// Names of the plugins of this type that are built already: all that are declared, where its own type is
    /// [behind](super::PluginType::behind) that.
    pub fn built(&self, plugin_type: &str) -> impl Iterator<Item = &'a str> {
        self.others.iter().filter(move |other| other.plugin_type == plugin_type).map(|other| other.name)
    }

    /// The decider that a parameter names.
    ///
    /// # Errors
    /// `ConfigError` if the plugin isn't declared, or is no decider.
    pub fn decider(&self, key: &str, reference: &Name) -> Result<Arc<dyn Decider>, ConfigError> {
        let Some(other) = self.others.iter().find(|other| other.name == reference.value) else {
            let names = self.others.iter().map(|other| other.name);
            return Err(undeclared(key, reference, names));
        };
        other
            .parts
            .decider
            .clone()
            .ok_or_else(|| wrong_kind(key, reference, "a decider").hint(format!("it is {}", other.is)))
    }

    /// Metrics that plugins of a type share, registered when they are first asked for.
    ///
    /// # Errors
    /// `ConfigError` if a metric name is registered already.
    pub fn family<T: Any + Send + Sync>(
        &self,
        register: fn(&Registry) -> prometheus::Result<T>,
    ) -> Result<Arc<T>, ConfigError> {
        let message = |error: prometheus::Error| format!("its metrics can't be registered: {error}");
        self.families.get(register).map_err(|error| ConfigError::at(self.at, message(error)))
    }

    /// For types without parameters that don't ignore them.
    ///
    /// # Errors
    /// `ConfigError` if parameters are given.
    pub fn takes_nothing(&self) -> Result<(), ConfigError> {
        #[derive(serde::Deserialize)]
        struct Nothing {}
        self.parameters.decode::<Nothing>().map(|_| ())
    }
}

/// A plugin, for each place that it can take, and its parameters as they count.
#[derive(Clone, Default)]
pub struct PluginParts {
    /// Removes candidates.
    pub filter: Option<Arc<dyn Filter>>,
    /// Scores candidates.
    pub scorer: Option<Arc<dyn Scorer>>,
    /// Chooses by the totals.
    pub picker: Option<Arc<dyn Picker>>,
    /// Selects the profiles that run.
    pub handler: Option<Arc<dyn ProfileHandler>>,
    /// Decides whether a disaggregated stage runs.
    pub decider: Option<Arc<dyn Decider>>,
    /// Reads headers first.
    pub header_processor: Option<Arc<dyn RequestHeaderProcessor>>,
    /// Batches requests.
    pub gatherer: Option<Arc<dyn Gatherer>>,
    /// Narrows candidates before anything else.
    pub screener: Option<Arc<dyn Screener>>,
    /// Learns about a request before it is scheduled.
    pub producer: Option<Arc<dyn DataProducer>>,
    /// Refuses requests.
    pub admitter: Option<Arc<dyn Admitter>>,
    /// Acts on decisions.
    pub pre_request: Option<Arc<dyn PreRequest>>,
    /// Reports the pool's saturation.
    pub detector: Option<Arc<dyn SaturationDetector>>,
    /// From which age on it takes what endpoints say of themselves for full.
    pub staleness: Option<Duration>,
    /// Marks that decisions read what earlier ones booked, so both have to be one step.
    pub books: bool,
    /// Profiles that its parameters name, each with the parameter that does. One that
    /// doesn't exist is no error, as it might just not run.
    pub profiles: Vec<(&'static str, String)>,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
    /// One sentence or two about what it does with these parameters. `None`: the summary of its type says it.
    pub summary: Option<String>,
    /// Parameters as people see them, with their defaults.
    pub parameters: Value,
    /// Values for the host, by type.
    pub extra: ByType,
}

impl PluginParts {
    /// A plugin without any place yet, and its parameters.
    ///
    /// # Errors
    /// `ConfigError` if the parameters can't be serialized.
    pub fn with(parameters: &impl Serialize) -> Result<Self, ConfigError> {
        Ok(Self { parameters: shown(parameters)?, ..Self::bare() })
    }

    /// A plugin without any place yet and without parameters.
    pub fn bare() -> Self {
        Self { parameters: json!({}), ..Self::default() }
    }

    /// Adds one or two sentences on what the plugin does with its parameters, for `usher check`.
    #[must_use]
    pub fn with_summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = Some(summary.into());
        self
    }

    /// Adds a value that the host looks up by type.
    #[must_use]
    pub fn with_extra<T: Any + Send + Sync>(mut self, value: T) -> Self {
        self.extra.set(value);
        self
    }

    /// The value of this type for the host.
    pub fn extra<T: Any>(&self) -> Option<&T> {
        self.extra.get()
    }
}

/// Parameters as people see them.
fn shown(parameters: &impl Serialize) -> Result<Value, ConfigError> {
    serde_json::to_value(parameters).map_err(|error| ConfigError::new(error.to_string()))
}
