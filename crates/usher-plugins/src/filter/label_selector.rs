//! `label-selector-filter`, and `by-label-selector`, its deprecated name: the endpoints
//! whose labels a selector matches.

use std::sync::Arc;

use rand::Rng;
use usher_core::config::ConfigError;
use usher_core::endpoints::{Endpoint, Snapshot};
use usher_plugin::{
    Build, BuildContext, Context, Filter, Fitting, Kind, LabelExpression, LabelOperator, LabelSelector,
    PluginParts, PluginType, beta,
};

/// `label-selector-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("label-selector-filter", &[Kind::Filter],
    "Keeps the endpoints that a Kubernetes label selector matches.",
    Build::Reading(build)).takes::<LabelSelector>()
    .when("Several kinds of endpoints in one pool, a profile for each.");

/// `by-label-selector` in a configuration.
#[rustfmt::skip]
pub static OLDER_NAME: PluginType = beta("by-label-selector", &[Kind::Filter],
    "The older name of label-selector-filter.",
    Build::Reading(build)).takes::<LabelSelector>().instead("label-selector-filter")
    .when("Not in new configurations.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let selector = LabelSelector::decode(cx.parameters)?;
    let parts = PluginParts::with(&selector)?.with_summary(summary(&selector));
    Ok(PluginParts { filter: Some(Arc::new(LabelSelectorFilter::new(selector))), ..parts })
}

/// Effect of a selector, in a sentence.
fn summary(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let more = selector.match_expressions.iter().map(|LabelExpression { key, operator, values }| {
        let values = values.join(", ");
        match operator {
            LabelOperator::In => format!("{key} in ({values})"),
            LabelOperator::NotIn => format!("{key} not in ({values})"),
            LabelOperator::Exists => format!("{key} is there"),
            LabelOperator::DoesNotExist => format!("{key} is absent"),
        }
    });
    let all: Vec<String> = labels.chain(more).collect();
    if all.is_empty() {
        return "Keeps every endpoint, as the selector is empty.".to_owned();
    }
    format!("Keeps the endpoints with the labels {}.", all.join(" and "))
}

/// Keeps the endpoints that a selector matches.
#[derive(Debug)]
pub struct LabelSelectorFilter {
    selector: LabelSelector,
    fitting: Fitting,
}

impl LabelSelectorFilter {
    /// A filter by this selector; an empty one keeps every endpoint.
    pub fn new(selector: LabelSelector) -> Self {
        Self { selector, fitting: Fitting::new() }
    }
}

impl Filter for LabelSelectorFilter {
    fn filter(&self, _cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let matches = |endpoint: &Endpoint| self.selector.matches(|key| endpoint.label(key));
        self.fitting.retain(snapshot, kept, matches);
    }
}
