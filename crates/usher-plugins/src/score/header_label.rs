//! `header-label-affinity-scorer`: endpoints whose label says what a header of the request
//! says.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Endpoint, View};
use usher_plugin::{
    Build, BuildContext, Context, Kind, LabelValues, PerSnapshot, PluginParts, PluginType, Scorer, beta,
};

/// `header-label-affinity-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("header-label-affinity-scorer", &[Kind::Scorer],
    "Endpoints with a label that says what a header of the request says score 1, others 0.",
    Build::Reading(build)).takes::<HeaderLabelParams>().alpha()
    .when("Tenants or regions with endpoints of their own that others may use, too.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = HeaderLabelParams::decode(cx.parameters)?;
    let scorer = Arc::new(HeaderLabelAffinityScorer::new(&params));
    Ok(PluginParts { scorer: Some(scorer), ..PluginParts::with(&params)?.with_summary(params.summary()) })
}

/// Parameters of `header-label-affinity-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderLabelParams {
    /// The header of the request.
    pub header_name: String,
    /// The label of the pods.
    pub label_key: String,
}

impl HeaderLabelParams {
    /// Effect of the parameters, in a sentence or two.
    fn summary(&self) -> String {
        let (header, label) = (&self.header_name, &self.label_key);
        format!(
            "Endpoints whose label {label} is what the header {header} of the request says score 1, others 0."
        )
    }
}

impl HeaderLabelParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and no header or no label.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        for (key, value, example) in [
            ("headerName", &params.header_name, "x-tenant"),
            ("labelKey", &params.label_key, "example.com/tenant"),
        ] {
            if value.is_empty() {
                return Err(ConfigError::at(node.position_of(key), format!("'{key}' is empty"))
                    .hint(format!("write for example {example}")));
            }
        }
        Ok(params)
    }
}

/// Scores 1 where the label's value is the header's, else 0; a request without the header,
/// or with an empty one, matches nowhere.
#[derive(Debug)]
pub struct HeaderLabelAffinityScorer {
    /// Lower case, as headers are looked up.
    header: String,
    label: String,
    values: PerSnapshot<LabelValues>,
}

impl HeaderLabelAffinityScorer {
    /// A scorer with these parameters.
    pub fn new(params: &HeaderLabelParams) -> Self {
        let (header, label) = (params.header_name.to_ascii_lowercase(), params.label_key.clone());
        Self { header, label, values: PerSnapshot::new() }
    }
}

impl Scorer for HeaderLabelAffinityScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let Some(wanted) = cx.request.headers.get(&self.header).filter(|wanted| !wanted.is_empty()) else {
            return;
        };
        let make = |endpoints: &[Arc<Endpoint>]| LabelValues::of(&self.label, endpoints);
        self.values.read(candidates.snapshot(), make, |values| {
            let Some(wanted) = values.find(wanted) else { return };
            for (score, position) in out.iter_mut().zip(candidates.indices()) {
                *score = f32::from(values.has(*position, wanted));
            }
        });
    }
}
