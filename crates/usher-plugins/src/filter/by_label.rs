//! `by-label`, deprecated: the endpoints whose label has one of some values.

use std::sync::Arc;

use rand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Snapshot;
use usher_plugin::{Build, BuildContext, Context, Filter, Fitting, Kind, PluginParts, PluginType, beta};

/// `by-label` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("by-label", &[Kind::Filter],
    "Keeps the endpoints whose label has one of some values.",
    Build::Reading(build)).takes::<ByLabelParams>().instead("label-selector-filter")
    .when("Not in new configurations.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = ByLabelParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?.with_summary(params.summary());
    Ok(PluginParts { filter: Some(Arc::new(ByLabelFilter::new(params))), ..parts })
}

/// Parameters of `by-label`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ByLabelParams {
    /// The label's key.
    pub label: String,
    /// The values; an empty one stands for a missing label, too.
    #[serde(default)]
    pub valid_values: Vec<String>,
    /// Keep endpoints without the label, too.
    #[serde(default)]
    pub allows_no_label: bool,
}

impl ByLabelParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (label, values) = (&self.label, self.valid_values.join(", "));
        let or_none = if self.allows_no_label { ", and those without it" } else { "" };
        format!("Keeps the endpoints whose label {label} is one of: {values}{or_none}.")
    }
}

impl ByLabelParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a label that is missing or
    /// empty.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        if params.label.is_empty() {
            return Err(ConfigError::at(node.position_of("label"), "'label' is empty")
                .hint("name a label of the endpoints"));
        }
        Ok(params)
    }
}

/// Keeps the endpoints whose label has one of some values. As in llm-d-router, a missing
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
