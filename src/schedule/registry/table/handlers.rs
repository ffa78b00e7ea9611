//! Profile handlers, deciders and what belongs to them.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Decider, PreRequest, ProfileHandler};
use super::super::types::{PluginType, beta, later};
use crate::config::{ConfigError, Name, Node};
use crate::schedule::SingleProfileHandler;

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("single-profile-handler", &[ProfileHandler],
        "Runs the one profile that is configured.",
        &[], Build::Ignoring(single_profile_handler))
        .when("One profile. Added by itself where there is no other handler."),
    later("disagg-profile-handler", &[ProfileHandler, PreRequest]).refers_to(named_deciders),
    later("pd-profile-handler", &[ProfileHandler]).instead("disagg-profile-handler").refers_to(pd_plugins),
    later("data-parallel-profile-handler", &[ProfileHandler, PreRequest]),
    later("header-profile-handler", &[ProfileHandler]).alpha(),
    later("disagg-headers-handler", &[PreRequest]).instead("disagg-profile-handler"),
    later("prefill-header-handler", &[PreRequest]).instead("disagg-profile-handler"),
    later("prefix-based-pd-decider", &[Decider]),
    later("always-disagg-pd-decider", &[Decider]),
    later("always-disagg-multimodal-decider", &[Decider]),
];

fn single_profile_handler(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { handler: Some(Arc::new(SingleProfileHandler)), ..Built::bare() })
}

/// Deciders of `disagg-profile-handler` in its present form and in its flat one.
fn named_deciders(parameters: &Node) -> Vec<Name> {
    let deciders = parameters.get("deciders");
    let nested = ["prefill", "encode"].map(|stage| deciders.and_then(|deciders| deciders.get(stage)));
    let flat =
        ["prefillDeciderPluginName", "deciderPluginName", "encodeDeciderPluginName", "prefixPluginName"];
    nested.into_iter().chain(flat.map(|key| parameters.get(key))).flatten().filter_map(name).collect()
}

/// Plugins that `pd-profile-handler` needs: its decider has a default.
fn pd_plugins(parameters: &Node) -> Vec<Name> {
    let decider = parameters.get("deciderPluginName").and_then(name);
    let default = || Name { at: parameters.at, value: "prefix-based-pd-decider".to_owned() };
    let prefix = parameters.get("prefixPluginName").and_then(name);
    [Some(decider.unwrap_or_else(default)), prefix].into_iter().flatten().collect()
}

/// A name that is given; what is no text is refused when the parameters are read.
fn name(node: &Node) -> Option<Name> {
    let text = node.text().filter(|text| !text.is_empty())?;
    Some(Name { at: node.at, value: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_name_their_deciders() {
        let names = |of: fn(&Node) -> Vec<Name>, text: &str| -> Vec<String> {
            of(&Node::parse(text).unwrap()).into_iter().map(|name| name.value).collect()
        };
        assert_eq!(names(named_deciders, "{deciders: {prefill: p, encode: e}}"), ["p", "e"]);
        assert_eq!(names(named_deciders, "{deciderPluginName: d, encodeDeciderPluginName: e}"), ["d", "e"]);
        assert!(names(named_deciders, "{deciders: {prefill: ''}, prefillDeciderPluginName: 3}").is_empty());
        assert_eq!(names(pd_plugins, "{}"), ["prefix-based-pd-decider"]);
        assert_eq!(names(pd_plugins, "{deciderPluginName: d, prefixPluginName: p}"), ["d", "p"]);
    }
}
