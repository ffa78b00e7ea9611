//! `by-label`, deprecated: the endpoints whose label has one of some values.

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Name, Node};
use usher_core::endpoints::Snapshot;
use usher_plugin::{Build, Built, Context, Filter, Fitting, Kind, PluginType, Site, beta, parameter};

/// `by-label` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("by-label", &[Kind::Filter],
    "Keeps the endpoints whose label has one of some values.",
    &[
        parameter("label", "", "", "The label's key."),
        parameter("validValues", "[]", "", "The values; an empty one stands for a missing label, too."),
        parameter("allowsNoLabel", "false", "", "Keep endpoints without the label, too."),
    ],
    Build::Reading(build)).instead("label-selector-filter")
    .when("Not in new configurations.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = ByLabelParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { filter: Some(Arc::new(ByLabelFilter::new(params))), ..built })
}

/// Parameters of `by-label`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ByLabelParams {
    /// The label's key.
    pub label: String,
    /// Values that are fine. Default: none.
    pub valid_values: Vec<String>,
    /// Endpoints without the label are fine, too. Default false.
    pub allows_no_label: bool,
}

impl ByLabelParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys, wrong types, and a label that is missing or empty, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Written {
            label: Name,
            #[serde(default)]
            valid_values: Vec<String>,
            #[serde(default)]
            allows_no_label: bool,
        }
        let Written { label, valid_values, allows_no_label } = node.decode()?;
        if label.value.is_empty() {
            return Err(ConfigError::at(label.at, "'label' is empty").hint("name a label of the endpoints"));
        }
        Ok(Self { label: label.value, valid_values, allows_no_label })
    }
}

/// Keeps the endpoints whose label has one of some values. As with the peer, a missing
/// label counts as an empty one, which may be among the values.
#[derive(Debug)]
pub struct ByLabelFilter {
    params: ByLabelParams,
    fitting: Fitting,
}

impl ByLabelFilter {
    /// A filter with these parameters.
    pub fn new(params: ByLabelParams) -> Self {
        Self { params, fitting: Fitting::new() }
    }
}

impl Filter for ByLabelFilter {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let ByLabelParams { label, valid_values, allows_no_label } = &self.params;
        self.fitting.retain(snapshot, kept, |endpoint| {
            let value = endpoint.label(label);
            let is_valid = |text: &str| valid_values.iter().any(|valid| valid == text);
            (value.is_none() && *allows_no_label) || is_valid(value.unwrap_or_default())
        });
    }
}
