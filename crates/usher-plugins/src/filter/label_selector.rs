//! `label-selector-filter`, and `by-label-selector`, its deprecated name: the endpoints
//! whose labels a selector matches.

use std::sync::Arc;

use rand::Rng;
use usher_core::config::ConfigError;
use usher_core::endpoints::{Endpoint, Snapshot};
use usher_plugin::{
    Build, BuildContext, Context, Filter, Fitting, Kind, LabelSelector, PluginParts, PluginType, beta,
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
    let parts = PluginParts::with(&selector)?;
    Ok(PluginParts { filter: Some(Arc::new(LabelSelectorFilter::new(selector))), ..parts })
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
