//! Parameters of the discovery plugins.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Node, Positioned};

/// Parameters of `file-discovery`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileDiscoveryParams {
    /// The endpoints file; a relative path counts from the working directory.
    pub path: PathBuf,
    /// Read the file again whenever it changes. Default false.
    pub watch_file: bool,
}

impl FileDiscoveryParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, no path.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Written {
            path: Positioned<String>,
            #[serde(default)]
            watch_file: bool,
        }
        let Written { path, watch_file } = node.decode()?;
        if path.value.is_empty() {
            return Err(ConfigError::at(path.at, "'path' is empty").hint("name the endpoints file"));
        }
        Ok(Self { path: path.value.into(), watch_file })
    }
}
