//! Plugin types.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use usher_core::config::{Name, Node};

use super::build::Build;
use super::parameters::{Parameter, parameters};

/// Use of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Removes candidates.
    Filter,
    /// Scores candidates.
    Scorer,
    /// Chooses by the totals.
    Picker,
    /// Selects the profiles that run.
    ProfileHandler,
    /// Reads requests of an API.
    Parser,
    /// Finds endpoints.
    Discovery,
    /// Polls numbers about endpoints.
    DataSource,
    /// Reads what a data source got.
    Extractor,
    /// Learns about a request before it is scheduled.
    DataProducer,
    /// Decides whether a disaggregated stage runs.
    Decider,
    /// Reads request headers first.
    RequestHeader,
    /// Narrows candidates before anything else.
    Screener,
    /// Refuses requests.
    Admitter,
    /// Adds headers for the chosen endpoints.
    PreRequest,
    /// Reads responses.
    Response,
    /// Reports the pool's saturation.
    SaturationDetector,
    /// Chooses among flows.
    FairnessPolicy,
    /// Orders a flow.
    OrderingPolicy,
    /// Limits the share of the pool for a priority.
    UsageLimitPolicy,
    /// Chooses running requests to give up.
    Eviction,
    /// Finds other replicas.
    PeerDiscovery,
    /// Shares state with other replicas.
    Syncer,
}

impl Kind {
    /// The kind in a sentence, with its article.
    pub fn a(self) -> &'static str {
        match self {
            Self::Filter => "a filter",
            Self::Scorer => "a scorer",
            Self::Picker => "a picker",
            Self::ProfileHandler => "a profile handler",
            Self::Parser => "a parser",
            Self::Discovery => "a discovery plugin",
            Self::DataSource => "a data source",
            Self::Extractor => "an extractor",
            Self::DataProducer => "a data producer",
            Self::Decider => "a decider",
            Self::RequestHeader => "a header processor",
            Self::Screener => "a screener",
            Self::Admitter => "an admitter",
            Self::PreRequest => "a header writer",
            Self::Response => "a response plugin",
            Self::SaturationDetector => "a saturation detector",
            Self::FairnessPolicy => "a fairness policy",
            Self::OrderingPolicy => "an ordering policy",
            Self::UsageLimitPolicy => "a usage limit policy",
            Self::Eviction => "an eviction policy",
            Self::PeerDiscovery => "a peer discovery plugin",
            Self::Syncer => "a cross-replica syncer",
        }
    }
}

/// Stability of a plugin type, as llm-d-router has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stability {
    /// Refused unless `--allow-experimental-plugins` is given.
    Alpha,
    /// Available to all configurations.
    Beta,
}

/// A plugin type.
#[derive(Debug)]
pub struct PluginType {
    /// The type in a configuration.
    pub name: &'static str,
    /// Uses of its plugins.
    pub kinds: &'static [Kind],
    /// Stability of the type.
    pub stability: Stability,
    /// Type to use instead, if it is deprecated.
    pub deprecated: Option<&'static str>,
    /// One line about what it does; empty for types that this version doesn't have.
    pub summary: &'static str,
    /// Advice on its use; empty for types that this version doesn't have.
    pub when: &'static str,
    /// Lists its parameters, for the documentation.
    pub parameters: fn() -> Vec<Parameter>,
    /// The plugins that its parameters name and that have to be declared.
    pub refers_to: fn(&Node) -> Vec<Name>,
    /// Types whose plugins are built first.
    pub behind: &'static [&'static str],
    /// Build function of the type.
    pub build: Build,
}

impl PluginType {
    /// Returns `true` if this version has it.
    pub fn is_supported(&self) -> bool {
        !matches!(self.build, Build::Unsupported)
    }

    /// Returns `true` if it can be used as this.
    pub fn is(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Documents its parameters: the fields of the struct that they are read into.
    ///
    /// A field's doc comment says what the parameter means, in its first paragraph; a field without
    /// one is not listed. `#[schemars(extend("x-unit" = "ms"))]` names a unit,
    /// `extend("default" = "no limit")` a default that its value doesn't tell, and
    /// `extend("x-required" = true)` marks what has to be given although serde does without it.
    #[must_use]
    pub const fn takes<T: JsonSchema + DeserializeOwned>(mut self) -> Self {
        self.parameters = parameters::<T>;
        self
    }

    /// Sets the advice on its use.
    #[must_use]
    pub const fn when(mut self, when: &'static str) -> Self {
        self.when = when;
        self
    }

    /// Has the plugins built first whose names this finds in the parameters.
    #[must_use]
    pub const fn refers_to(mut self, names: fn(&Node) -> Vec<Name>) -> Self {
        self.refers_to = names;
        self
    }

    /// Has the plugins of these types built first.
    #[must_use]
    pub const fn behind(mut self, types: &'static [&'static str]) -> Self {
        self.behind = types;
        self
    }

    /// Marks it as experimental.
    #[must_use]
    pub const fn alpha(mut self) -> Self {
        self.stability = Stability::Alpha;
        self
    }

    /// Marks it as deprecated, and says what to use instead.
    #[must_use]
    pub const fn instead(mut self, other: &'static str) -> Self {
        self.deprecated = Some(other);
        self
    }
}

/// A stable plugin type. [`PluginType::when`] says when to use it.
pub const fn beta(
    name: &'static str,
    kinds: &'static [Kind],
    summary: &'static str,
    build: Build,
) -> PluginType {
    PluginType {
        name,
        kinds,
        stability: Stability::Beta,
        deprecated: None,
        summary,
        when: "",
        parameters: Vec::new,
        refers_to: |_| Vec::new(),
        behind: &[],
        build,
    }
}

/// A type of llm-d-router that this version doesn't have.
pub const fn later(name: &'static str, kinds: &'static [Kind]) -> PluginType {
    beta(name, kinds, "", Build::Unsupported)
}
