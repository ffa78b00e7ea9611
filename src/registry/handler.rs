//! The profile handler of a configuration.

use std::sync::Arc;

use crate::config::{ConfigError, Profile};
use crate::schedule::ProfileHandler;

use super::instances::{Instance, Instances, START};

const SINGLE: &str = "single-profile-handler";
/// Handlers that can't choose among profiles.
const OF_ONE_PROFILE: [&str; 2] = [SINGLE, "data-parallel-profile-handler"];

/// Adds the handler for a single profile if there is none. Says whether it did.
pub(super) fn add(instances: &mut Instances<'_>, profiles: usize) -> Result<bool, ConfigError> {
    let missing = instances.iter().all(|instance| instance.parts.handler.is_none());
    if missing && profiles == 1 {
        instances.inject(SINGLE, START)?;
    }
    Ok(missing)
}

/// The one handler among all plugins, if the profiles suit it.
pub(super) fn only<'a>(
    instances: &'a Instances<'_>,
    profiles: &[Profile],
    notes: &mut Vec<String>,
) -> Result<(&'a Instance, Arc<dyn ProfileHandler>), ConfigError> {
    let mut handlers =
        instances.iter().filter_map(|instance| Some((instance, instance.parts.handler.as_ref()?)));
    let Some((handler, plugin)) = handlers.next() else {
        let second = profiles.get(1).map_or(START, |profile| profile.name.at);
        let message = format!("no profile handler configured to choose among {} profiles", profiles.len());
        return Err(ConfigError::at(second, message).hint("declare one under plugins"));
    };
    let place = |instance: &Instance| instance.at.unwrap_or(START);
    if let Some((other, _)) = handlers.next() {
        let message = format!("multiple profile handlers found: '{}' and '{}'", handler.name, other.name);
        return Err(ConfigError::at(place(other), message).hint("declare one"));
    }
    let plugin_type = handler.plugin_type.name;
    if OF_ONE_PROFILE.contains(&plugin_type) && profiles.len() > 1 {
        let message = format!(
            "{plugin_type} can't choose among multiple scheduling profiles, and there are {}",
            profiles.len()
        );
        return Err(ConfigError::at(place(handler), message).in_plugin(&handler.name));
    }
    let names: Vec<&str> = profiles.iter().map(|profile| profile.name.value.as_str()).collect();
    let more = plugin.check(&names).map_err(|error| error.or_at(place(handler)).in_plugin(&handler.name))?;
    notes.extend(more.into_iter().map(|note| format!("plugin '{}': {note}", handler.name)));
    Ok((handler, Arc::clone(plugin)))
}
