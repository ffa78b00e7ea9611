//! From the text of a configuration to what it says, with the checks that need
//! no knowledge of plugins.

use std::collections::HashSet;

use super::decode::Positioned;
use super::error::{ConfigError, Position};
use super::kind::FileKind;
use super::node::{Node, Value};
use super::schema::{DataLayer, File, FilePlugin, FileProfile, FlowControl, Name, Reference};
use super::units::parse_bool;

const KIND: &str = "EndpointPickerConfig";
const API_VERSION: &str = "llm-d.ai/v1alpha1";
const OLD_API_VERSION: &str = "inference.networking.x-k8s.io/v1alpha1";

/// A configuration: which plugins there are and where each is used.
#[derive(Clone, Debug)]
pub struct EndpointPickerConfig {
    /// The optional features that are on.
    pub feature_gates: FeatureGates,
    /// The declared plugins, in the order of the file; names are unique.
    pub plugins: Vec<Plugin>,
    /// The profiles, in the order of the file. Whether each has a name of its own is
    /// checked once the plugins are known to be good, as in llm-d-router.
    pub profiles: Vec<Profile>,
    /// Sources of endpoints and their numbers.
    pub data_layer: DataLayer,
    /// Flow control, with the place of the section.
    pub flow_control: Option<Positioned<FlowControl>>,
    /// Saturation detector of the pool.
    pub saturation_detector: Option<Name>,
    /// The parsers in the order in which they are asked; empty: the default ones.
    pub parsers: Vec<Name>,
    /// Notes for the user, such as on the use of deprecated keys.
    pub notes: Vec<String>,
}

/// Optional features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FeatureGates {
    /// Requests wait in queues. Default off.
    pub flow_control: bool,
    /// A replica that isn't the leader keeps its endpoints up to date. Default on.
    pub ha_populate_non_leader_datastore: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self { flow_control: false, ha_populate_non_leader_datastore: true }
    }
}

/// A declared plugin.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Position of its declaration.
    pub at: Position,
    /// Name in the rest of the file; equal to the type if it isn't named.
    pub name: String,
    /// Type of the plugin.
    pub plugin_type: Name,
    /// Parameters as they are written; an empty map if there are none.
    pub parameters: Node,
}

/// A scheduling profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Name; empty if it has none.
    pub name: Name,
    /// The plugins that it uses, in order.
    pub plugins: Vec<ProfilePlugin>,
}

/// The use of a plugin in a profile.
#[derive(Clone, Debug)]
pub struct ProfilePlugin {
    /// Name of the plugin; empty if it has none.
    pub plugin: Name,
    /// Factor by which its scores are multiplied; any finite number. Default 1.
    pub weight: Option<f64>,
}

impl EndpointPickerConfig {
    /// Reads a configuration from YAML or JSON.
    ///
    /// # Errors
    /// `ConfigError` of the first defect: of the syntax, then of the schema (unknown or repeated keys, wrong
    /// types), then of the values.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::of(&Node::parse(text)?)
    }

    /// Reads a configuration from its document.
    ///
    /// # Errors
    /// Same as [`parse`](Self::parse), without syntax errors.
    pub fn of(root: &Node) -> Result<Self, ConfigError> {
        if let Some((kind @ (FileKind::Policy | FileKind::Topology | FileKind::Endpoints), at)) =
            FileKind::of(root)
        {
            return Err(kind.instead_of(&FileKind::Config, at));
        }
        let file = root.decode::<File>().map_err(|error| match plugin_around(root, error.position()) {
            Some(name) => error.in_plugin(&name),
            None => error,
        })?;
        Self::from_file(file)
    }

    /// Parses a server's configuration; `None` for an empty text, which stands for the built-in
    /// configuration.
    ///
    /// # Errors
    /// Same as [`parse`](Self::parse).
    pub fn parse_unless_empty(text: &str) -> Result<Option<Self>, ConfigError> {
        if text.is_empty() { Ok(None) } else { Self::parse(text).map(Some) }
    }

    fn from_file(file: File) -> Result<Self, ConfigError> {
        let mut notes = Vec::new();
        check_version(&file, &mut notes)?;
        let feature_gates = feature_gates(&file.feature_gates)?;
        let plugins = plugins(file.plugins)?;
        let profiles = profiles(file.scheduling_profiles)?;
        let new_detector = file.flow_control.as_ref().and_then(|flow| flow.value.saturation_detector.clone());
        let mut data_layer = file.data_layer;
        let given = |name: &mut Option<Name>| *name = name.take().filter(|name| !name.value.is_empty());
        given(&mut data_layer.cross_replica_syncer_plugin_ref);
        if let Some(cross_replica) = &mut data_layer.cross_replica {
            given(&mut cross_replica.syncer_plugin_ref);
        }
        let detector = replaced(
            new_detector,
            file.saturation_detector,
            ["saturationDetector", "flowControl.saturationDetector"],
            &mut notes,
        );
        let parsers = match (file.request_handler.parsers, file.parser) {
            (parsers, old) if !parsers.is_empty() => {
                replaced(Some(()), old.map(|_| ()), PARSER_KEYS, &mut notes);
                parsers
            }
            (_, old) => replaced(None, old, PARSER_KEYS, &mut notes).into_iter().collect(),
        };
        Ok(Self {
            feature_gates,
            plugins,
            profiles,
            data_layer,
            flow_control: file.flow_control,
            saturation_detector: detector.map(|Reference { plugin_ref }| plugin_ref),
            parsers: parsers.into_iter().map(|Reference { plugin_ref }| plugin_ref).collect(),
            notes,
        })
    }
}

const PARSER_KEYS: [&str; 2] = ["parser", "requestHandler.parsers"];

/// The value of a key that has moved: the new place wins, the old one is noted.
fn replaced<T>(new: Option<T>, old: Option<T>, keys: [&str; 2], notes: &mut Vec<String>) -> Option<T> {
    if old.is_some() {
        let outcome = if new.is_some() { "it is ignored, as both are set" } else { "it still counts" };
        notes.push(format!("the key {} is deprecated, write {}; {outcome}", keys[0], keys[1]));
    }
    new.or(old)
}

fn check_version(file: &File, notes: &mut Vec<String>) -> Result<(), ConfigError> {
    if let Some(kind) = file.kind.as_ref().filter(|kind| !kind.value.is_empty())
        && kind.value != KIND
    {
        let message = format!("kind '{}' is not known", kind.value);
        return Err(ConfigError::at(kind.at, message).hint(format!("write kind: {KIND}")));
    }
    match file.api_version.as_ref().filter(|version| !version.value.is_empty()) {
        Some(version) if version.value == OLD_API_VERSION => {
            notes.push(format!("apiVersion {OLD_API_VERSION} is deprecated, write {API_VERSION}"));
        }
        Some(version) if version.value != API_VERSION => {
            let message = format!("apiVersion '{}' is not known", version.value);
            return Err(ConfigError::at(version.at, message).hint(format!("write apiVersion: {API_VERSION}")));
        }
        _ => {}
    }
    Ok(())
}

const GATES: [&str; 2] = ["flowControl", "haPopulateNonLeaderDatastore"];
/// Feature gates that older versions of llm-d-router had, and newer ones refuse.
const GONE_GATES: [&str; 3] = ["dataLayer", "prepareDataPlugins", "enableLegacyMetrics"];

fn feature_gates(entries: &[Name]) -> Result<FeatureGates, ConfigError> {
    let mut gates = FeatureGates::default();
    for entry in entries {
        let (name, on) = match entry.value.split_once('=') {
            None => (entry.value.trim(), true),
            Some((name, value)) => {
                let value = parse_bool(&value.trim().to_lowercase());
                let value = value.map_err(|text| {
                    ConfigError::at(entry.at, format!("feature gate '{}': {text}", name.trim()))
                })?;
                (name.trim(), value)
            }
        };
        match name {
            "flowControl" => gates.flow_control = on,
            "haPopulateNonLeaderDatastore" => gates.ha_populate_non_leader_datastore = on,
            _ => {
                let error = ConfigError::at(entry.at, format!("unknown feature gate '{name}'"));
                if GONE_GATES.contains(&name) {
                    return Err(error.hint("older versions had it; take the line out"));
                }
                return Err(error
                    .hint(format!("known here: {}", GATES.join(", ")))
                    .did_you_mean(name, GATES));
            }
        }
    }
    Ok(gates)
}

fn plugins(entries: Vec<Positioned<FilePlugin>>) -> Result<Vec<Plugin>, ConfigError> {
    let mut names = HashSet::new();
    let mut plugins = Vec::with_capacity(entries.len());
    for Positioned { at, value: FilePlugin { name, plugin_type, parameters } } in entries {
        let name = name.filter(|name| !name.value.is_empty());
        let Some(plugin_type) = plugin_type.filter(|plugin_type| !plugin_type.value.is_empty()) else {
            let shown = name.map_or_else(String::new, |name| name.value);
            return Err(ConfigError::at(at, format!("plugin '{shown}' is missing a type")));
        };
        let name = name.unwrap_or_else(|| plugin_type.clone());
        if !names.insert(name.value.clone()) {
            return Err(ConfigError::at(name.at, format!("duplicate plugin name '{}'", name.value))
                .hint("give one of them another name"));
        }
        let parameters = parameters.unwrap_or_else(|| Node::empty_map(at));
        plugins.push(Plugin { at, name: name.value, plugin_type, parameters });
    }
    Ok(plugins)
}

fn profiles(entries: Vec<Positioned<FileProfile>>) -> Result<Vec<Profile>, ConfigError> {
    let or_empty = |name: Option<Name>, at| name.unwrap_or_else(|| Name { at, value: String::new() });
    let mut profiles = Vec::with_capacity(entries.len());
    for Positioned { at, value: profile } in entries {
        let name = or_empty(profile.name, at);
        let mut plugins = Vec::with_capacity(profile.plugins.len());
        for Positioned { at, value } in profile.plugins {
            if let Some(weight) = value.weight.filter(|weight| !weight.value.is_finite()) {
                return Err(ConfigError::at(weight.at, "a weight has to be a finite number"));
            }
            let weight = value.weight.map(|weight| weight.value);
            plugins.push(ProfilePlugin { plugin: or_empty(value.plugin_ref, at), weight });
        }
        profiles.push(Profile { name, plugins });
    }
    Ok(profiles)
}

/// The name of the plugin in whose declaration a place lies.
fn plugin_around(root: &Node, at: Option<Position>) -> Option<String> {
    let at = at?;
    let section = root.entries().iter().find(|entry| entry.key == "plugins")?;
    let Value::List(plugins) = &section.value.value else { return None };
    let after = root.entries().iter().map(|entry| entry.at).filter(|start| *start > section.at).min();
    if after.is_some_and(|after| at >= after) {
        return None;
    }
    let plugin = plugins.iter().rev().find(|plugin| plugin.at <= at)?;
    let name = plugin.get("name").or_else(|| plugin.get("type"))?;
    name.text().map(str::to_owned)
}
