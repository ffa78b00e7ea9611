//! Facts that handlers and deciders of disaggregated pools read, and plugins that they name.

use usher_core::config::{Name, Node};
use usher_plugin::data::{PrefixMatch, PromptTokens};
use usher_plugin::{Key, Site};

/// The producer whose matches deciders look at, as with the peer whatever the scorers use.
pub(super) const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";

/// How long the prompt is, and how much of it is where. Its producer is added for
/// handlers that disaggregate and for their deciders.
pub(super) fn prompt_and_cached(
    site: &mut Site<'_>,
    producer: &str,
) -> (Key<PromptTokens>, Key<PrefixMatch>) {
    (site.reads("token-producer"), site.reads(producer))
}

/// Deciders of `disagg-profile-handler` in its present form and in its flat one.
pub(super) fn named_deciders(parameters: &Node) -> Vec<Name> {
    let deciders = parameters.get("deciders");
    let nested = ["prefill", "encode"].map(|stage| deciders.and_then(|deciders| deciders.get(stage)));
    let flat =
        ["prefillDeciderPluginName", "deciderPluginName", "encodeDeciderPluginName", "prefixPluginName"];
    nested.into_iter().chain(flat.map(|key| parameters.get(key))).flatten().filter_map(name).collect()
}

/// Plugins that `pd-profile-handler` needs: its decider has a default.
pub(super) fn pd_plugins(parameters: &Node) -> Vec<Name> {
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
