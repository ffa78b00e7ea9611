//! Errors of references to plugins.

use usher_core::config::{ConfigError, Name};

/// `key` refers to a plugin that is not among the known ones.
pub fn undeclared<'a>(key: &str, reference: &Name, known: impl IntoIterator<Item = &'a str>) -> ConfigError {
    ConfigError::at(reference.at, format!("{key} refers to the undeclared plugin '{}'", reference.value))
        .hint("declare it under plugins")
        .did_you_mean(&reference.value, known)
}

/// `key` refers to a plugin that can't stand there.
pub fn wrong_kind(key: &str, reference: &Name, wanted: &str) -> ConfigError {
    ConfigError::at(reference.at, format!("{key} refers to '{}', which is not {wanted}", reference.value))
}
