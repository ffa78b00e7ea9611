//! The order in which plugins are built: each behind those that its parameters name, and types that its own is behind.

use std::collections::HashMap;

use usher_plugin::{PluginType, undeclared};

use crate::config::{ConfigError, Name, Plugin};

/// A plugin and its type.
type Declared<'a> = (&'a Plugin, &'static PluginType);

/// The declared plugins so that each comes behind those that it refers to, and those of
/// types that its own is behind, otherwise in the order of the file.
///
/// # Errors
/// `ConfigError` for a reference to an undeclared plugin, and for plugins that refer to each other in a
/// circle.
pub(super) fn of_building<'a>(declared: &[Declared<'a>]) -> Result<Vec<Declared<'a>>, ConfigError> {
    let named: HashMap<&str, usize> =
        declared.iter().zip(0..).map(|((plugin, _), index)| (plugin.name.as_str(), index)).collect();
    let behind = |(plugin, plugin_type): &Declared<'a>| {
        let names = (plugin_type.refers_to)(&plugin.parameters);
        let of_types =
            declared.iter().zip(0..).filter(|((_, other), _)| plugin_type.behind.contains(&other.name));
        let of_types = of_types.map(|(_, index)| Ok(index));
        names.iter().map(|name| find(name, plugin, &named)).chain(of_types).collect::<Result<Vec<_>, _>>()
    };
    let behind = declared.iter().map(behind).collect::<Result<Vec<_>, _>>()?;
    let mut is_placed = vec![false; declared.len()];
    let mut ordered = Vec::with_capacity(declared.len());
    while ordered.len() < declared.len() {
        let before = ordered.len();
        for (index, (plugin, references)) in declared.iter().zip(&behind).enumerate() {
            if !is_placed[index] && references.iter().all(|other| is_placed[*other]) {
                is_placed[index] = true;
                ordered.push(*plugin);
            }
        }
        if ordered.len() == before {
            let waiting = declared.iter().zip(&is_placed).filter(|(_, placed)| !**placed);
            return Err(circle(&waiting.map(|((plugin, _), _)| *plugin).collect::<Vec<_>>()));
        }
    }
    Ok(ordered)
}

fn find(name: &Name, plugin: &Plugin, named: &HashMap<&str, usize>) -> Result<usize, ConfigError> {
    named.get(name.value.as_str()).copied().ok_or_else(|| {
        let mut known: Vec<&str> = named.keys().copied().collect();
        // A map has no order, and the hint should be the same every time.
        known.sort_unstable();
        undeclared("it", name, known).in_plugin(&plugin.name)
    })
}

fn circle(waiting: &[&Plugin]) -> ConfigError {
    let names: Vec<&str> = waiting.iter().map(|plugin| plugin.name.as_str()).collect();
    let message = format!("these plugins refer to each other: {}", names.join(", "));
    let error = waiting.first().map_or_else(
        || ConfigError::new(message.as_str()),
        |plugin| ConfigError::at(plugin.at, message.as_str()),
    );
    error.hint("let one of them name another plugin")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Node, Position};
    use crate::registry::Kind;
    use usher_plugin::Build;
    use usher_plugin::beta;

    fn names(parameters: &Node) -> Vec<Name> {
        let entries = parameters.entries().iter();
        entries.map(|entry| Name { at: entry.at, value: entry.key.clone() }).collect()
    }

    static REFERRING: PluginType =
        beta("referring", &[Kind::ProfileHandler], "", Build::Unsupported).refers_to(names);

    /// A plugin per line, `name: {names that it refers to}`.
    fn order(text: &str) -> Result<Vec<String>, ConfigError> {
        let root = Node::parse(text).unwrap();
        let plugin = |entry: &crate::config::Entry| Plugin {
            at: entry.at,
            name: entry.key.clone(),
            plugin_type: Name { at: entry.at, value: "referring".into() },
            parameters: entry.value.clone(),
        };
        let plugins: Vec<Plugin> = root.entries().iter().map(plugin).collect();
        let declared: Vec<Declared<'_>> = plugins.iter().map(|plugin| (plugin, &REFERRING)).collect();
        let ordered = of_building(&declared)?;
        Ok(ordered.into_iter().map(|(plugin, _)| plugin.name.clone()).collect())
    }

    #[test]
    fn plugins_are_ordered_after_referenced_ones() {
        assert_eq!(order("a: {}\nb: {}\n").unwrap(), ["a", "b"], "nothing to wait for");
        assert_eq!(order("a: {c: 1}\nb: {}\nc: {d: 1}\nd: {}\n").unwrap(), ["b", "d", "c", "a"]);
    }

    #[test]
    fn plugins_are_ordered_after_required_types() {
        static BEHIND: PluginType =
            beta("behind", &[Kind::Scorer], "", Build::Unsupported).behind(&["referring"]);
        let root = Node::parse("a: {}\nb: {}\n").unwrap();
        let plugin = |entry: &crate::config::Entry| Plugin {
            at: entry.at,
            name: entry.key.clone(),
            plugin_type: Name { at: entry.at, value: entry.key.clone() },
            parameters: entry.value.clone(),
        };
        let plugins: Vec<Plugin> = root.entries().iter().map(plugin).collect();
        let ordered = of_building(&[(&plugins[0], &BEHIND), (&plugins[1], &REFERRING)]).unwrap();
        let names: Vec<_> = ordered.into_iter().map(|(plugin, _)| plugin.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn reference_to_an_undeclared_plugin_is_refused() {
        let error = order("handler: {decidr: 1}\ndecider: {}\n").unwrap_err();
        assert_eq!(error.position(), Some(Position { line: 1, column: 11 }));
        assert_eq!(error.message(), "plugin 'handler': it refers to the undeclared plugin 'decidr'");
        assert_eq!(error.hint_text(), Some("did you mean `decider`?"));
    }

    #[test]
    fn reference_cycles_are_refused() {
        let error = order("a: {}\nb: {c: 1}\nc: {b: 1}\n").unwrap_err();
        assert_eq!(error.position(), Some(Position { line: 2, column: 1 }));
        assert_eq!(error.message(), "these plugins refer to each other: b, c");
        assert!(order("a: {a: 1}\n").unwrap_err().message().ends_with(": a"));
    }
}
