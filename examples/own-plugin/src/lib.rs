//! Usher with a scorer of its own.

use usher::registry::{NameTaken, PluginTypes};

pub mod power;

/// The built-in plugin types and ours.
///
/// # Errors
/// `NameTaken` if Usher has a type of that name.
pub fn types() -> Result<PluginTypes, NameTaken> {
    PluginTypes::default().with(&power::TYPE)
}
