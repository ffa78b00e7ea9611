//! Parameters of the discovery plugins.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::{ConfigError, Node};

/// Parameters of `file-discovery`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileDiscoveryParams {
    /// The endpoints file; a relative path counts from the working directory.
    #[serde(deserialize_with = "text")]
    pub path: PathBuf,
    /// Read the file again whenever it changes.
    #[serde(default)]
    pub watch_file: bool,
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    String::deserialize(deserializer).map(PathBuf::from)
}

impl FileDiscoveryParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` for unknown keys, wrong types, no path.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        if params.path.as_os_str().is_empty() {
            let at = node.position_of("path");
            return Err(ConfigError::at(at, "'path' is empty").hint("name the endpoints file"));
        }
        Ok(params)
    }
}
