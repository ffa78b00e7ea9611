//! Pickers, one file per kind.

pub(crate) mod max_score;
pub(crate) mod random;
pub(crate) mod weighted_random;

use std::num::NonZeroUsize;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::{BuildContext, Picker, PluginParts, PluginType};

pub use max_score::MaxScorePicker;
pub use random::RandomPicker;
pub use weighted_random::WeightedRandomPicker;

/// Parameters of every picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct PickerParams {
    /// Number that is picked: the first serves, the others are fallbacks. Below 1 means 1.
    #[schemars(extend("x-unit" = "endpoints"))]
    max_num_of_endpoints: i64,
}

impl Default for PickerParams {
    fn default() -> Self {
        Self { max_num_of_endpoints: 1 }
    }
}

impl PickerParams {
    fn decode(node: &Node) -> Result<Self, ConfigError> {
        let Self { max_num_of_endpoints } = node.decode()?;
        // As in llm-d-router, anything below 1 means 1.
        Ok(Self { max_num_of_endpoints: max_num_of_endpoints.max(1) })
    }
}

/// A picker of up to as many endpoints as its parameters say.
fn build<P: Picker + 'static>(
    cx: &mut BuildContext<'_>,
    new: fn(NonZeroUsize) -> P,
    plugin_type: &PluginType,
) -> Result<PluginParts, ConfigError> {
    let params = PickerParams::decode(cx.parameters)?;
    let count = usize::try_from(params.max_num_of_endpoints).ok().and_then(NonZeroUsize::new);
    let mut summary = plugin_type.summary.to_owned();
    if let Some(others) = count.map(|count| count.get() - 1).filter(|others| *others > 0) {
        summary.push_str(&format!(" The first pick serves; up to {others} more are fallbacks."));
    }
    let picker = Arc::new(new(count.unwrap_or(NonZeroUsize::MIN)));
    Ok(PluginParts { picker: Some(picker), ..PluginParts::with(&params)?.with_summary(summary) })
}
