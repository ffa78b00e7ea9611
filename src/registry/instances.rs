//! The plugins of a configuration, built.

use usher_plugin::{
    Build, BuildContext, BuildState, BuiltPlugin, DataGraph, DataType, Kind, Missing, PluginParts,
    PluginType, Stability, State, undeclared, wrong_kind,
};

use crate::config::{ConfigError, Name, Node, Plugin, Position, Value};
use crate::schedule::SchedulerMetrics;
use crate::schedule::latency::{InitialRate, Model};

use super::order;
use super::types::PluginTypes;

/// Place of what no line of the file asks for.
pub(super) const START: Position = Position { line: 1, column: 1 };

/// A built plugin.
pub(super) struct Instance {
    pub(super) name: String,
    pub(super) plugin_type: &'static PluginType,
    /// Position of its declaration; `None` for one that the defaults added.
    pub(super) at: Option<Position>,
    /// Position of its type, or what asked for it.
    type_at: Position,
    /// The parameters that the configuration sets.
    pub(super) written: Vec<String>,
    pub(super) parts: PluginParts,
}

impl Instance {
    fn for_others(&self) -> BuiltPlugin<'_> {
        let is = self.plugin_type.kinds.first().map_or("something else", |kind| kind.a());
        BuiltPlugin { name: &self.name, plugin_type: self.plugin_type.name, is, parts: &self.parts }
    }
}

/// All plugins, the declared ones first and in the order of the file.
pub(super) struct Instances<'a> {
    list: Vec<Instance>,
    build_state: BuildState,
    types: &'a PluginTypes,
    metrics: &'a SchedulerMetrics,
    state: &'a State,
}

impl<'a> Instances<'a> {
    /// Builds the declared plugins, those first that others refer to. All types are
    /// checked before the first is built.
    pub(super) fn declare(
        plugins: &[Plugin],
        types: &'a PluginTypes,
        metrics: &'a SchedulerMetrics,
        state: &'a State,
    ) -> Result<Self, ConfigError> {
        let known = plugins.iter().map(|plugin| known_type(types, plugin)).collect::<Result<Vec<_>, _>>()?;
        let declared: Vec<_> = plugins.iter().zip(known).collect();
        declared.iter().try_for_each(|(plugin, plugin_type)| check_supported(plugin_type, plugin))?;
        let list = Vec::with_capacity(plugins.len());
        let mut instances = Self { list, build_state: BuildState::default(), types, metrics, state };
        for (plugin, plugin_type) in order::of_building(&declared)? {
            instances.add(plugin_type, plugin, Some(plugin.at))?;
        }
        instances.list.sort_by_key(|instance| instance.at);
        Ok(instances)
    }

    fn add(
        &mut self,
        plugin_type: &'static PluginType,
        plugin: &Plugin,
        at: Option<Position>,
    ) -> Result<(), ConfigError> {
        let others: Vec<BuiltPlugin<'_>> = self.list.iter().map(Instance::for_others).collect();
        let what = (plugin.name.as_str(), plugin.at, &plugin.parameters);
        let mut cx =
            BuildContext::new(what, self.state, self.metrics.families(), &others, &mut self.build_state);
        let type_at = plugin.plugin_type.at;
        let parts = build(plugin_type, type_at, &mut cx);
        let parts = parts.map_err(|error| error.in_plugin(&plugin.name))?;
        let set = plugin.parameters.entries().iter().filter(|entry| entry.value.value != Value::Null);
        let written = set.map(|entry| entry.key.clone()).collect();
        self.list.push(Instance { name: plugin.name.clone(), plugin_type, at, type_at, written, parts });
        Ok(())
    }

    /// Adds the default producers of what plugins can't do without, and checks that there
    /// is room for all.
    pub(super) fn add_producers(&mut self) -> Result<(), ConfigError> {
        while let Some(missing) = self.graph().missing() {
            let reader = self.find(&missing.reader);
            let at = reader.and_then(|reader| reader.at).unwrap_or(START);
            let declared = self.find(&missing.producer).is_some();
            match missing.data.default_producer() {
                Some(producer) if producer == missing.producer && !declared => self.inject(producer, at)?,
                _ => return Err(self.nobody_produces(&missing, at)),
            }
        }
        self.build_state.check()
    }

    /// Gives the model of latencies, if a plugin asked for it, how fast endpoints are configured
    /// to compute prompts.
    pub(super) fn expect_rate(&mut self) {
        if let Some(model) = Model::find(self.state) {
            model.starts_at(self.build_state.shared::<InitialRate>().get());
        }
    }

    fn nobody_produces(&self, missing: &Missing, at: Position) -> ConfigError {
        let Missing { data, producer, reader, .. } = missing;
        if *data == DataType::ScalarMetricValue && self.find(producer).is_some() {
            return self.no_such_attribute(missing, at);
        }
        let (problem, hint) = if self.find(producer).is_some() {
            ("which does not produce it", "name a plugin that does")
        } else {
            ("which is not declared", "declare it under plugins")
        };
        let producers = self.graph().producers_of(*data).chain(data.default_producer());
        let others = producers.filter(|known| known != producer);
        ConfigError::at(at, format!("it reads {data} from the plugin '{producer}', {problem}"))
            .hint(hint)
            .did_you_mean(producer, others)
            .in_plugin(reader)
    }

    fn no_such_attribute(&self, missing: &Missing, at: Position) -> ConfigError {
        let Missing { data, name, producer, reader } = missing;
        let known = self.graph().names(*data, producer);
        let message =
            format!("it reads the attribute '{name}' of the plugin '{producer}', which doesn't have it");
        let error = ConfigError::at(at, message).in_plugin(reader);
        if known.is_empty() {
            return error.hint("name a plugin that has attributes");
        }
        error.hint(format!("it has: {}", known.join(", "))).did_you_mean(name, known)
    }

    /// Refuses Alpha types, those that the defaults added included, unless they are allowed.
    pub(super) fn check_stability(&self, allow_experimental: bool) -> Result<(), ConfigError> {
        self.list.iter().try_for_each(|instance| {
            check_stability(instance.plugin_type, instance.type_at, allow_experimental)
                .map_err(|error| error.in_plugin(&instance.name))
        })
    }

    /// The types that the configuration may name.
    pub(super) fn types(&self) -> &'a PluginTypes {
        self.types
    }

    /// Data of the configuration, with its producers and readers.
    pub(super) fn graph(&self) -> &DataGraph {
        self.build_state.graph()
    }

    /// For the built-in configuration, which is in no file.
    pub(super) fn forget_places(&mut self) {
        self.list.iter_mut().for_each(|instance| instance.at = None);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Instance> {
        self.list.iter()
    }

    pub(super) fn find(&self, name: &str) -> Option<&Instance> {
        self.list.iter().find(|instance| instance.name == name)
    }

    /// Adds a plugin that is named as its type and has no parameters, unless
    /// something has that name already. `at` is where it is asked for.
    pub(super) fn inject(&mut self, plugin_type: &str, at: Position) -> Result<(), ConfigError> {
        if self.find(plugin_type).is_some() {
            return Ok(());
        }
        let name = plugin_type.to_owned();
        let plugin_type = Name { at, value: name.clone() };
        let plugin = Plugin { at, name, plugin_type, parameters: Node::empty_map(at) };
        let plugin_type = known_type(self.types, &plugin)?;
        self.add(plugin_type, &plugin, None)
    }

    /// The plugin that `key` refers to.
    pub(super) fn get(&self, key: &str, reference: &Name) -> Result<&Instance, ConfigError> {
        self.get_or_type(key, reference, [])
    }

    /// The plugin that `key` refers to, which may be a type of `types` without a declaration.
    pub(super) fn get_or_type<'t>(
        &'t self,
        key: &str,
        reference: &Name,
        types: impl IntoIterator<Item = &'t str>,
    ) -> Result<&'t Instance, ConfigError> {
        self.find(&reference.value).ok_or_else(|| {
            let names = self.list.iter().map(|instance| instance.name.as_str());
            undeclared(key, reference, names.chain(types))
        })
    }

    /// The plugin that `key` refers to, if it is of `kind`.
    pub(super) fn get_kind(&self, key: &str, reference: &Name, kind: Kind) -> Result<&Instance, ConfigError> {
        let instance = self.get(key, reference)?;
        if !instance.plugin_type.is(kind) {
            return Err(wrong_kind(key, reference, kind.a()));
        }
        Ok(instance)
    }
}

fn known_type(types: &PluginTypes, plugin: &Plugin) -> Result<&'static PluginType, ConfigError> {
    let name = &plugin.plugin_type;
    types.find(&name.value).ok_or_else(|| {
        let known = types.all().map(|plugin_type| plugin_type.name);
        ConfigError::at(name.at, format!("plugin type '{}' is not registered", name.value))
            .in_plugin(&plugin.name)
            .did_you_mean(&name.value, known)
    })
}

fn build(
    plugin_type: &PluginType,
    type_at: Position,
    cx: &mut BuildContext<'_>,
) -> Result<PluginParts, ConfigError> {
    match plugin_type.build {
        Build::Reading(build) | Build::Ignoring(build) => build(cx),
        Build::Unsupported => Err(unsupported(plugin_type, type_at)),
    }
}

fn check_supported(plugin_type: &PluginType, plugin: &Plugin) -> Result<(), ConfigError> {
    if plugin_type.is_supported() {
        return Ok(());
    }
    Err(unsupported(plugin_type, plugin.plugin_type.at).in_plugin(&plugin.name))
}

fn unsupported(plugin_type: &PluginType, at: Position) -> ConfigError {
    ConfigError::at(at, format!("plugin type '{}' is not supported by this version", plugin_type.name))
}

/// Refuses an Alpha type unless they are allowed.
fn check_stability(
    plugin_type: &PluginType,
    at: Position,
    allow_experimental: bool,
) -> Result<(), ConfigError> {
    if plugin_type.stability == Stability::Beta || allow_experimental {
        return Ok(());
    }
    let message = format!("plugin type '{}' is experimental", plugin_type.name);
    Err(ConfigError::at(at, message).hint("allow it with --allow-experimental-plugins"))
}

/// Note for the user of a declared plugin: a deprecated type, or parameters that are ignored.
pub(super) fn note(plugin_type: &PluginType, plugin: &Plugin) -> Option<String> {
    let name = &plugin.name;
    if let Some(other) = plugin_type.deprecated {
        return Some(format!("plugin '{name}': the type {} is deprecated, use {other}", plugin_type.name));
    }
    match plugin_type.build {
        Build::Ignoring(_) if !plugin.parameters.entries().is_empty() => {
            Some(format!("plugin '{name}': {} takes no parameters and ignores what is set", plugin_type.name))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin_type(stability: Stability, deprecated: Option<&'static str>) -> PluginType {
        PluginType {
            name: "made-up",
            kinds: &[Kind::Filter],
            stability,
            deprecated,
            summary: "",
            when: "",
            parameters: Vec::new,
            refers_to: |_| Vec::new(),
            behind: &[],
            build: Build::Unsupported,
        }
    }

    #[test]
    fn experimental_types_have_to_be_allowed() {
        let at = Position { line: 3, column: 5 };
        let alpha = plugin_type(Stability::Alpha, None);
        let refused = check_stability(&alpha, at, false).unwrap_err();
        assert_eq!(refused.position(), Some(at));
        assert!(refused.hint_text().unwrap().contains("--allow-experimental-plugins"));
        assert!(check_stability(&alpha, at, true).is_ok());
        assert!(check_stability(&plugin_type(Stability::Beta, None), at, false).is_ok());
    }

    #[test]
    fn deprecated_types_name_their_replacement() {
        let at = Position { line: 1, column: 1 };
        let plugin = Plugin {
            at,
            name: "p".into(),
            plugin_type: Name { at, value: "made-up".into() },
            parameters: Node::empty_map(at),
        };
        let note = note(&plugin_type(Stability::Beta, Some("other")), &plugin).unwrap();
        assert_eq!(note, "plugin 'p': the type made-up is deprecated, use other");
    }

    #[test]
    fn names_of_types_are_unique_and_supported_ones_are_described() {
        let mut names = std::collections::HashSet::new();
        for plugin_type in PluginTypes::default().all() {
            assert!(names.insert(plugin_type.name), "{} twice", plugin_type.name);
            assert!(!plugin_type.kinds.is_empty(), "{}", plugin_type.name);
            for text in [plugin_type.summary, plugin_type.when] {
                assert_eq!(text.is_empty(), !plugin_type.is_supported(), "{}", plugin_type.name);
            }
        }
    }
}
