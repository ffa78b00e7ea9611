//! Pickers, one file per kind.

pub(crate) mod max_score;
pub(crate) mod random;
pub(crate) mod weighted_random;

use std::num::NonZeroUsize;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_plugin::{Built, Parameter, Picker, Site, parameter};

pub use max_score::MaxScorePicker;
pub use random::RandomPicker;
pub use weighted_random::WeightedRandomPicker;

/// Parameters of every picker, for the documentation.
const PARAMETERS: &[Parameter] = &[parameter(
    "maxNumOfEndpoints",
    "1",
    "endpoints",
    "How many are picked: the first serves, the others are fallbacks. Below 1 means 1.",
)];

/// Parameters of every picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PickerParams {
    /// How many endpoints are picked at most.
    max_num_of_endpoints: NonZeroUsize,
}

impl PickerParams {
    fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            max_num_of_endpoints: i64,
        }
        let written: Written = node.decode()?;
        // As with the peer, anything below 1 means 1.
        let count = usize::try_from(written.max_num_of_endpoints).ok().and_then(NonZeroUsize::new);
        Ok(Self { max_num_of_endpoints: count.unwrap_or(NonZeroUsize::MIN) })
    }
}

/// A picker of up to as many endpoints as its parameters say.
fn build<P: Picker + 'static>(site: &mut Site<'_>, new: fn(NonZeroUsize) -> P) -> Result<Built, ConfigError> {
    let params = PickerParams::decode(site.parameters)?;
    let picker = Arc::new(new(params.max_num_of_endpoints));
    Ok(Built { picker: Some(picker), ..Built::with(&params)? })
}
