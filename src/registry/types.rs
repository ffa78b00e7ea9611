//! The plugin types that a configuration can name.

use usher_plugin::PluginType;

use super::table::{find_type, plugin_types};

/// The built-in types, and types of others.
#[derive(Clone, Debug, Default)]
pub struct PluginTypes {
    others: Vec<&'static PluginType>,
}

/// A type whose name another has already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is a plugin type '{0}' already; name yours after a domain of yours, as in example.com/my-scorer"
)]
pub struct NameTaken(pub &'static str);

impl PluginTypes {
    /// Adds a type that is not built in.
    ///
    /// # Errors
    /// `NameTaken` if Usher or another plugin has a type of that name.
    pub fn with(mut self, plugin_type: &'static PluginType) -> Result<Self, NameTaken> {
        if self.find(plugin_type.name).is_some() {
            return Err(NameTaken(plugin_type.name));
        }
        self.others.push(plugin_type);
        Ok(self)
    }

    /// All types, the built-in ones first.
    pub fn all(&self) -> impl Iterator<Item = &'static PluginType> {
        plugin_types().chain(self.others.iter().copied())
    }

    /// The type of this name.
    pub fn find(&self, name: &str) -> Option<&'static PluginType> {
        let other = || self.others.iter().copied().find(|other| other.name == name);
        find_type(name).or_else(other)
    }
}

#[cfg(test)]
mod tests {
    use usher_plugin::{Build, Kind, beta};

    use super::*;

    static BUILT_IN: PluginType = beta("queue-scorer", &[Kind::Scorer], "", Build::Unsupported);
    static OTHER: PluginType = beta("example.com/scorer", &[Kind::Scorer], "", Build::Unsupported);

    #[test]
    fn plugin_name_has_one_type() {
        let types = PluginTypes::default().with(&OTHER).unwrap();
        assert_eq!(types.find("example.com/scorer").unwrap().name, OTHER.name);
        assert_eq!(types.all().count(), plugin_types().count() + 1);
        assert_eq!(types.clone().with(&OTHER).unwrap_err(), NameTaken("example.com/scorer"));
        let taken = types.with(&BUILT_IN).unwrap_err();
        assert!(taken.to_string().contains("'queue-scorer' already"), "{taken}");
    }
}
