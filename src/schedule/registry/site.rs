//! Where a plugin is built: what its constructor is given, and what it gives back.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use serde::Serialize;
use serde_json::{Value, json};

use crate::config::{ConfigError, Name, Node, Position};
use crate::discovery::params::FileDiscoveryParams;
use crate::endpoints::{AttributeId, InFlightId, Lease, Reading};
use crate::request::ParserKind;
use crate::schedule::latency::{LatencyMetrics, Model, Reader};
use crate::schedule::waiting::{Fairness, Ordering, UsageLimit};
use crate::schedule::{
    Admitter, DataType, Decider, Fact, Filter, Gatherer, HeaderProcessor, Key, Picker, PreRequest, Producer,
    ProfileHandler, SaturationDetector, SchedulerMetrics, Scorer, Screener, State,
};
use crate::scrape::Engines;
use crate::scrape::params::SourceParams;

use super::keys::Keys;
use super::references::{undeclared, wrong_kind};
use super::reserved::Reserved;

/// How a type is built.
#[derive(Clone, Copy, Debug)]
pub(super) enum Build {
    /// From its parameters, strictly.
    Reading(fn(&mut Site<'_>) -> Result<Built, ConfigError>),
    /// The peer ignores whatever its parameters say, so they can't be wrong.
    Ignoring(fn(&mut Site<'_>) -> Result<Built, ConfigError>),
    /// Not in this version.
    Unsupported,
}

/// What a plugin's constructor may use.
pub(super) struct Site<'a> {
    /// Name of the instance.
    pub(super) name: &'a str,
    /// Where it is asked for.
    pub(super) at: Position,
    /// Its parameters as they are written.
    pub(super) parameters: &'a Node,
    /// Where it may register what it counts.
    pub(super) metrics: &'a SchedulerMetrics,
    /// What outlives it.
    pub(super) state: &'a State,
    pub(super) keys: &'a mut Keys,
    /// The plugins that are built already; among them those that its parameters name.
    pub(super) others: &'a [Other<'a>],
    pub(super) reserved: &'a mut Reserved,
}

/// A plugin that is built already, as the parameters of another may name it.
pub(super) struct Other<'a> {
    pub(super) name: &'a str,
    /// What it can be used as, with an article.
    pub(super) is: &'static str,
    pub(super) built: &'a Built,
}

impl Site<'_> {
    /// The plugin can't do without the facts of the producer of this name.
    pub(super) fn reads<T: Fact>(&mut self, producer: &str) -> Key<T> {
        Key::new(self.keys.read(T::DATA, producer, self.name, true))
    }

    /// The plugin uses the facts of the producer of this name if there is one.
    pub(super) fn may_read<T: Fact>(&mut self, producer: &str) -> Key<T> {
        Key::new(self.keys.read(T::DATA, producer, self.name, false))
    }

    /// The plugin produces facts, under its own name.
    pub(super) fn produces<T: Fact>(&mut self) -> Key<T> {
        Key::new(self.keys.produce(T::DATA, self.name))
    }

    /// The plugin reads what lives in the endpoints and is kept up to date by the
    /// plugin of this name.
    pub(super) fn reads_live(&mut self, data: DataType, producer: &str) {
        self.keys.read(data, producer, self.name, true);
    }

    /// The plugin keeps something in the endpoints up to date.
    pub(super) fn produces_live(&mut self, data: DataType) {
        self.keys.produce(data, self.name);
    }

    /// The plugin reads what the producer of this name counts as under way.
    pub(super) fn reads_in_flight(&mut self, producer: &str) -> InFlightId {
        self.reads_live(DataType::InFlightLoad, producer);
        self.reserved.in_flight(self.state, producer, self.name, self.at).id()
    }

    /// The plugin counts what is under way, under its own name, as long as it or a
    /// request holds this.
    pub(super) fn counts_in_flight(&mut self) -> Lease<InFlightId> {
        self.produces_live(DataType::InFlightLoad);
        self.reserved.in_flight(self.state, self.name, self.name, self.at)
    }

    /// The plugin reads the pool's model of latencies, and the facts of the producer of this
    /// name. `rate` is its `peakPrefillThroughput`.
    ///
    /// # Errors
    /// When its parameters and another plugin's give two rates.
    pub(super) fn latency(&mut self, rate: f64, prefix: &str) -> Result<Reader, ConfigError> {
        self.reserved.rate.read(self.parameters, rate)?;
        let (tokens, prefix) = (self.reads("token-producer"), self.reads(prefix));
        let model = Model::of(self.state);
        self.family(LatencyMetrics::register)?.show(&model);
        let reader = Reader::new(model, self.reserved.rate.clone(), tokens, prefix);
        Ok(reader.moving(Arc::clone(&self.reserved.transfers)))
    }

    /// The plugin reads a number of endpoints that the plugin of this name keeps up to
    /// date under this name.
    pub(super) fn reads_attribute(&mut self, name: &str, producer: &str) -> Reading {
        self.keys.read_named(DataType::ScalarMetricValue, name, producer, self.name, true);
        Reading::named(name).unwrap_or_else(|| {
            let lease = self.reserved.attribute(self.state, (producer, name), self.name, self.at);
            Reading::Attribute(lease.id())
        })
    }

    /// The plugin keeps a number of endpoints up to date, as long as this is held.
    pub(super) fn produces_attribute(&mut self, name: &str) -> Lease<AttributeId> {
        self.produces_attribute_as(self.name, name)
    }

    /// The same under the name of another producer, for types whose numbers are known by
    /// the type, whatever the plugin is called.
    pub(super) fn produces_attribute_as(&mut self, producer: &str, name: &str) -> Lease<AttributeId> {
        self.keys.produce_named(DataType::ScalarMetricValue, name, producer);
        self.reserved.attribute(self.state, (producer, name), self.name, self.at)
    }

    /// The plugin keeps up to date what every engine reports.
    pub(super) fn produces_readings(&mut self) {
        for (name, _) in Reading::NAMED {
            self.keys.produce_named(DataType::ScalarMetricValue, name, self.name);
        }
    }

    /// The decider that a parameter names.
    ///
    /// # Errors
    /// When there is no such plugin, or it decides nothing.
    pub(super) fn decider(&self, key: &str, reference: &Name) -> Result<Arc<dyn Decider>, ConfigError> {
        let Some(other) = self.others.iter().find(|other| other.name == reference.value) else {
            let names = self.others.iter().map(|other| other.name);
            return Err(undeclared(key, reference, names));
        };
        other
            .built
            .decider
            .clone()
            .ok_or_else(|| wrong_kind(key, reference, "a decider").hint(format!("it is {}", other.is)))
    }

    /// What plugins of a type count together.
    pub(super) fn family<T: Any + Send + Sync>(
        &self,
        register: fn(&Registry) -> prometheus::Result<T>,
    ) -> Result<Arc<T>, ConfigError> {
        let message = |error: prometheus::Error| format!("its metrics can't be registered: {error}");
        self.metrics.family(register).map_err(|error| ConfigError::at(self.at, message(error)))
    }

    /// For types without parameters that don't ignore them.
    pub(super) fn takes_nothing(&self) -> Result<(), ConfigError> {
        #[derive(serde::Deserialize)]
        struct Nothing {}
        self.parameters.decode::<Nothing>().map(|_| ())
    }
}

/// Where data about endpoints come from.
#[derive(Clone, Debug)]
pub(super) enum DataSource {
    /// It is polled.
    Polled(SourceParams),
    /// It tells of changes, which plugins here hear of from discovery.
    Notifications,
}

/// A plugin, for each place that it can take, and its parameters as they count.
#[derive(Clone, Default)]
pub(super) struct Built {
    pub(super) filter: Option<Arc<dyn Filter>>,
    pub(super) scorer: Option<Arc<dyn Scorer>>,
    pub(super) picker: Option<Arc<dyn Picker>>,
    pub(super) handler: Option<Arc<dyn ProfileHandler>>,
    pub(super) decider: Option<Arc<dyn Decider>>,
    pub(super) header_processor: Option<Arc<dyn HeaderProcessor>>,
    pub(super) gatherer: Option<Arc<dyn Gatherer>>,
    pub(super) screener: Option<Arc<dyn Screener>>,
    pub(super) producer: Option<Arc<dyn Producer>>,
    pub(super) admitter: Option<Arc<dyn Admitter>>,
    pub(super) pre_request: Option<Arc<dyn PreRequest>>,
    pub(super) detector: Option<Arc<dyn SaturationDetector>>,
    /// From which age on it takes what endpoints say of themselves for full.
    pub(super) staleness: Option<Duration>,
    /// Its decisions read what earlier ones booked, so both have to be one step.
    pub(super) books: bool,
    /// Profiles that its parameters name, each with the parameter that does. One that
    /// doesn't exist is no error, as it might just not run.
    pub(super) profiles: Vec<(&'static str, String)>,
    pub(super) fairness: Option<Fairness>,
    pub(super) ordering: Option<Ordering>,
    pub(super) usage_limit: Option<UsageLimit>,
    pub(super) parser: Option<ParserKind>,
    pub(super) discovery: Option<FileDiscoveryParams>,
    pub(super) source: Option<DataSource>,
    pub(super) engines: Option<Engines>,
    /// What the user should know, one sentence each.
    pub(super) notes: Vec<String>,
    /// It reads lists of models.
    pub(super) models: bool,
    pub(super) parameters: Value,
}

impl Built {
    /// A plugin without any place yet, and its parameters.
    pub(super) fn with(parameters: &impl Serialize) -> Result<Self, ConfigError> {
        Ok(Self { parameters: shown(parameters)?, ..Self::bare() })
    }

    /// A plugin without any place yet and without parameters.
    pub(super) fn bare() -> Self {
        Self { parameters: json!({}), ..Self::default() }
    }
}

/// Parameters as people see them.
fn shown(parameters: &impl Serialize) -> Result<Value, ConfigError> {
    serde_json::to_value(parameters).map_err(|error| ConfigError::new(error.to_string()))
}
