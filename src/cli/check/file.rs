//! One file: which kind it is of, what is wrong with it, and what it comes to.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use prometheus::Registry;
use serde_json::{Map, Value, json};
use usher_terminal::fit;

use super::config::Config;
use super::findings;
use super::sample::{self, Sample};
use super::words;
use super::{learned, policies, report, topologies};
use crate::capacity::policy::file as policy_file;
use crate::capacity::resource::topology_file::{self, ClusterTopology};
use crate::config::{ConfigError, EndpointPickerConfig, FileKind, Node, Survey, source};
use crate::discovery::file::{self as endpoints_file, Problem};
use crate::endpoints::{Clock, EndpointSpec};
use crate::registry::{Pipeline, PluginTypes};
use crate::schedule::{SchedulerMetrics, State};
use crate::server::memory_budget;
use crate::settings::MemorySettings;

/// Note on a configuration that doesn't say where endpoints come from.
const NO_DISCOVERY: &str = "none: give usher serve --endpoints-file, --pool-name or --endpoint-selector";

/// Endpoints that are listed; of the others there is the number.
const LISTED: usize = 20;

/// A file that was checked.
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) text: String,
    /// `None` for one that could not be read, and where nothing says it.
    kind: Option<FileKind>,
    pub(super) outcome: Outcome,
}

/// Result of a check.
pub(super) enum Outcome {
    /// Unreadable.
    Unreadable(ConfigError),
    /// Errors, at least one, in the order of the file.
    Invalid(Vec<ConfigError>),
    /// Valid, but the picker that it is compared with can't be asked.
    NotCompared(ConfigError),
    Valid(Meaning),
}

/// Meaning of a valid file.
pub(super) enum Meaning {
    Config(Box<Config>),
    Policies {
        policies: Vec<policy_file::Read>,
        topologies: Vec<ClusterTopology>,
        warnings: Vec<ConfigError>,
    },
    Endpoints {
        endpoints: Vec<EndpointSpec>,
        warnings: Vec<ConfigError>,
    },
}

/// Rules for the check of files.
pub(super) struct Rules<'a> {
    /// Plugin types that configurations may name.
    pub(super) types: &'a PluginTypes,
    /// Allow types that llm-d-router calls Alpha.
    pub(super) allow_experimental: bool,
    /// Kind that every file has to be of; `None`: each says its own.
    pub(super) only: Option<FileKind>,
    /// Admin port of a picker that configurations are compared with.
    pub(super) admin: Option<&'a str>,
    /// Endpoints that prompts are tried on.
    pub(super) endpoints: Option<&'a [EndpointSpec]>,
    /// Memory that configurations may take.
    pub(super) memory: MemorySettings,
}

impl Rules<'_> {
    /// Checks a file.
    pub(super) fn check(&self, path: &Path, input: &mut dyn Read) -> Checked {
        let (name, text) = if path.as_os_str() == "-" {
            ("<stdin>".to_owned(), source::read(input))
        } else {
            (path.display().to_string(), source::read_file(path))
        };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                let outcome = Outcome::Unreadable(error);
                return Checked { name, text: String::new(), kind: None, outcome };
            }
        };
        let said = first_document(&text).and_then(|root| FileKind::of(&root));
        let kind = match (&self.only, &said) {
            // Both are objects of capacity, and may be in one file.
            (Some(FileKind::Policy), Some((FileKind::Topology, _))) => Some(FileKind::Topology),
            (Some(only), _) => Some(only.clone()),
            (None, said) => said.as_ref().map(|(kind, _)| kind.clone()),
        };
        let result = match (&kind, said) {
            (Some(FileKind::Policy | FileKind::Topology), _) => policies_of(&text),
            (Some(FileKind::Endpoints), _) => endpoints_of(&text),
            (Some(FileKind::Other(kind)), Some((_, at))) => {
                let error = ConfigError::at(at, format!("kind '{kind}' is not known"));
                let known = "known are EndpointPickerConfig, CapacityPolicy, ClusterTopology and files with a list of endpoints";
                Err(vec![error.hint(known)])
            }
            _ => self.config_of(&text),
        };
        let outcome = match result {
            Ok(meaning) => match self.compared(meaning) {
                Ok(meaning) => Outcome::Valid(meaning),
                Err(line) => Outcome::NotCompared(ConfigError::new(line)),
            },
            Err(errors) => Outcome::Invalid(errors),
        };
        Checked { name, text, kind, outcome }
    }

    fn config_of(&self, text: &str) -> Result<Meaning, Vec<ConfigError>> {
        let pipeline = if text.is_empty() {
            self.build(None).map_err(|error| vec![error])?
        } else {
            let root = Node::parse(text).map_err(|error| vec![error])?;
            Survey::of(&root, |root| self.build(Some(&EndpointPickerConfig::of(root)?))).result()?
        };
        // How often serve polls what names no interval is not known here.
        let findings = findings::of(&pipeline.resolved, &pipeline.notes_on_staleness(None));
        let steps = words::explain(&pipeline.resolved);
        let Pipeline { mut notes, warnings, resolved, discovery, .. } = pipeline;
        if discovery.is_none() {
            notes.push(format!("dataLayer.discovery: {NO_DISCOVERY}"));
        }
        let samples = match self.endpoints {
            Some(endpoints) => Some(self.samples(text, endpoints).map_err(|error| vec![error])?),
            None => None,
        };
        let is_built_in = text.is_empty();
        let config = Config { resolved, is_built_in, warnings, notes, findings, steps, samples };
        Ok(Meaning::Config(Box::new(config)))
    }

    fn build(&self, config: Option<&EndpointPickerConfig>) -> Result<Pipeline, ConfigError> {
        let budget = Arc::new(memory_budget(self.memory));
        self.build_in(config, &State::within(Clock::start(), budget))
    }

    fn build_in(
        &self,
        config: Option<&EndpointPickerConfig>,
        state: &State,
    ) -> Result<Pipeline, ConfigError> {
        let metrics = SchedulerMetrics::register(&Registry::new())
            .map_err(|error| ConfigError::new(error.to_string()))?;
        Pipeline::build_with(self.types, config, self.allow_experimental, &metrics, state)
    }

    /// Decisions of a valid configuration among these endpoints.
    fn samples(&self, text: &str, endpoints: &[EndpointSpec]) -> Result<Vec<Sample>, ConfigError> {
        let root = if text.is_empty() { None } else { Some(Node::parse(text)?) };
        let config = root.as_ref().map(EndpointPickerConfig::of).transpose()?;
        sample::take(endpoints, |state| self.build_in(config.as_ref(), state))
    }

    /// Compares a configuration with what the picker at the admin port has learned.
    ///
    /// # Errors
    /// A message in one line if the picker's admin port can't be read.
    fn compared(&self, meaning: Meaning) -> Result<Meaning, String> {
        match (meaning, self.admin) {
            (Meaning::Config(mut config), Some(admin)) => {
                let learned = learned::learned(admin, &config.resolved)?;
                config.warnings.extend(learned.warnings);
                config.notes.extend(learned.notes);
                Ok(Meaning::Config(config))
            }
            (meaning, _) => Ok(meaning),
        }
    }
}

/// The first document of a text that can be read.
fn first_document(text: &str) -> Option<Node> {
    Node::parse_all(text).ok()?.into_iter().next()
}

/// Policies and ClusterTopologies of a file, as `kubectl apply` takes them.
fn policies_of(text: &str) -> Result<Meaning, Vec<ConfigError>> {
    let documents = Node::parse_all(text).map_err(|error| vec![error])?;
    let (topologies, others): (Vec<_>, Vec<_>) = documents.into_iter().partition(topology_file::is_topology);
    // A file without any document lacks a policy, which `parse` says.
    let policies = if topologies.is_empty() { policy_file::parse(text) } else { policy_file::read(&others) };
    match (policies, topology_file::read(&topologies)) {
        (Ok(policies), Ok(topologies)) => {
            let warnings = policies.iter().flat_map(|read| read.warnings.iter().cloned()).collect();
            Ok(Meaning::Policies { policies, topologies, warnings })
        }
        (policies, topologies) => {
            let errors = [policies.err(), topologies.err()].into_iter().flatten();
            let mut errors = errors.flatten().collect::<Vec<_>>();
            errors.sort_by_key(|error| (error.position().is_none(), error.position()));
            Err(errors)
        }
    }
}

/// Endpoints of a file that is checked for its own sake: a field that serve would only log is an error.
fn endpoints_of(text: &str) -> Result<Meaning, Vec<ConfigError>> {
    endpoints_with(text, |_| true)
}

/// Endpoints of a file. Its problems are warnings if none of them is an error.
fn endpoints_with(text: &str, is_error: fn(&Problem) -> bool) -> Result<Meaning, Vec<ConfigError>> {
    let (specs, problems) = endpoints_file::parse(text).map_err(|error| vec![error])?;
    let is_wrong = problems.iter().any(is_error);
    let mut warnings: Vec<_> = problems.into_iter().map(|problem| problem.error).collect();
    warnings.sort_by_key(ConfigError::position);
    if is_wrong {
        return Err(warnings);
    }
    if specs.is_empty() {
        let empty = ConfigError::new(
            "there is no endpoint in it: serve starts with an empty pool, and keeps the last endpoints when it reads this later",
        );
        warnings.push(empty.hint("--allow-empty-endpoints empties the pool then, too"));
    }
    Ok(Meaning::Endpoints { endpoints: specs, warnings })
}

/// Checks the file of `--endpoints-file`: warns of what serve would only log.
pub(super) fn endpoints_to_try(path: &Path) -> Checked {
    let (text, outcome) = match source::read_file(path) {
        Ok(text) => {
            let outcome = match endpoints_with(&text, |problem| problem.skipped) {
                Ok(meaning) => Outcome::Valid(meaning),
                Err(errors) => Outcome::Invalid(errors),
            };
            (text, outcome)
        }
        Err(error) => (String::new(), Outcome::Unreadable(error)),
    };
    Checked { name: path.display().to_string(), text, kind: Some(FileKind::Endpoints), outcome }
}

impl Checked {
    /// Endpoints of a valid list of endpoints.
    pub(super) fn endpoints(&self) -> Option<&[EndpointSpec]> {
        match &self.outcome {
            Outcome::Valid(Meaning::Endpoints { endpoints, .. }) => Some(endpoints),
            _ => None,
        }
    }

    pub(super) fn is_valid(&self) -> bool {
        matches!(self.outcome, Outcome::Valid(_) | Outcome::NotCompared(_))
    }

    /// Exit code. 0: valid; 1: invalid, or not compared; 2: could not be read.
    pub(super) fn code(&self) -> u8 {
        match self.outcome {
            Outcome::Valid(_) => 0,
            Outcome::Invalid(_) | Outcome::NotCompared(_) => 1,
            Outcome::Unreadable(_) => 2,
        }
    }

    pub(super) fn json(&self) -> Value {
        let kind = self.kind.as_ref().map(|kind| match kind {
            FileKind::Config => "EndpointPickerConfig",
            FileKind::Policy => "CapacityPolicy",
            FileKind::Topology => "ClusterTopology",
            FileKind::Endpoints => "Endpoints",
            FileKind::Other(kind) => kind,
        });
        let errors: Vec<_> = self.outcome.errors().iter().map(json_of_error).collect();
        let mut json = Map::new();
        json.insert("file".to_owned(), json!(self.name));
        json.insert("kind".to_owned(), json!(kind));
        json.insert("valid".to_owned(), json!(self.is_valid()));
        json.insert("errors".to_owned(), json!(errors));
        if let Outcome::Valid(meaning) = &self.outcome {
            meaning.add_to(&mut json);
        }
        Value::Object(json)
    }
}

impl Outcome {
    pub(super) fn errors(&self) -> &[ConfigError] {
        match self {
            Self::Valid(_) => &[],
            Self::Invalid(errors) => errors,
            Self::Unreadable(error) | Self::NotCompared(error) => slice::from_ref(error),
        }
    }
}

/// An error, or a warning, with its place.
fn json_of_error(error: &ConfigError) -> Value {
    let (line, column) = error.position().map(|at| (at.line, at.column)).unzip();
    json!({"line": line, "column": column, "message": error.message(), "hint": error.hint_text()})
}

impl Meaning {
    /// Warnings that have a place; those of a configuration are in its report.
    pub(super) fn warnings(&self) -> &[ConfigError] {
        match self {
            Self::Policies { warnings, .. } | Self::Endpoints { warnings, .. } => warnings,
            Self::Config(_) => &[],
        }
    }

    /// The text of a valid file, for a terminal of so many columns.
    pub(super) fn text(&self, name: &str, width: Option<usize>) -> String {
        match self {
            Self::Config(config) => {
                let title = if config.is_built_in {
                    format!("{name} is empty, which asks for the built-in configuration")
                } else {
                    format!("{name} is valid")
                };
                report::text(&title, config, NO_DISCOVERY, width)
            }
            Self::Policies { policies, topologies, .. } => {
                let policies = policies.iter().map(|read| policies::describe(&read.policy, width));
                policies
                    .chain(topologies.iter().map(|topology| topologies::describe(topology, width)))
                    .collect()
            }
            Self::Endpoints { endpoints, .. } => list(name, endpoints, width),
        }
    }

    fn add_to(&self, json: &mut Map<String, Value>) {
        let mut add = |key: &str, value: Value| json.insert(key.to_owned(), value);
        match self {
            Self::Config(config) => {
                add("explanation", json!(config.steps));
                add("pipeline", json!(config.resolved));
                add("findings", json!(config.findings));
                add("warnings", json!(config.warnings));
                add("notes", json!(config.notes));
                if let Some(samples) = &config.samples {
                    add("samples", json!(samples));
                }
            }
            Self::Policies { policies, topologies, .. } => {
                let policies: Vec<_> = policies.iter().map(policies::json).collect();
                add("policies", json!(policies));
                if !topologies.is_empty() {
                    add("topologies", topologies.iter().map(topologies::json).collect());
                }
            }
            Self::Endpoints { endpoints, warnings } => {
                let warnings: Vec<_> = warnings.iter().map(json_of_error).collect();
                add("warnings", json!(warnings));
                let endpoints = endpoints.iter().map(|endpoint| {
                    let EndpointSpec { namespace, name, address, labels, .. } = endpoint;
                    let address = address.to_string();
                    json!({"namespace": namespace, "name": name, "address": address, "labels": labels})
                });
                add("endpoints", endpoints.collect());
            }
        }
    }
}

/// Endpoints of a file, a line each where it fits.
fn list(name: &str, endpoints: &[EndpointSpec], width: Option<usize>) -> String {
    let mut text = match endpoints.len() {
        1 => format!("{name} is valid: 1 endpoint\n"),
        count => format!("{name} is valid: {count} endpoints\n"),
    };
    for endpoint in endpoints.iter().take(LISTED) {
        let EndpointSpec { address, labels, .. } = endpoint;
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let line = format!("{:<24} {:<22} {}", endpoint.id(), address.to_string(), labels.join(","));
        let line = line.trim_end();
        let lines = if width.is_some() { fit(line, width, 4).join("\n    ") } else { line.to_owned() };
        // Writing to a string can't fail.
        let _ = writeln!(text, "  {lines}");
    }
    if let Some(more) = endpoints.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more");
    }
    text
}
