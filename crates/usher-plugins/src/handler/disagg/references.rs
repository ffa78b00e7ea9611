//! Facts that handlers and deciders of disaggregated pools read, and plugins that they name.

use usher_core::config::{Name, Node};
use usher_plugin::data::{PrefixMatch, PromptTokens};
use usher_plugin::{BuildContext, Key};

/// The producer whose matches deciders look at, as in llm-d-router whatever the scorers use.
pub(super) const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";

/// Keys of the prompt's length, and of how much of it is where. Its producer is added for
/// handlers that disaggregate and for their deciders.
pub(super) fn prompt_and_cached(
    cx: &mut BuildContext<'_>,
    producer: &str,
) -> (Key<PromptTokens>, Key<PrefixMatch>) {
    (cx.reads("token-producer"), cx.reads(producer))
}

/// Deciders of `disagg-profile-handler` in its present form and in its flat one.
pub(super) fn named_deciders(parameters: &Node) -> Vec<Name> {
    let keys = [
        "deciders.prefill",
        "deciders.encode",
        "prefillDeciderPluginName",
        "deciderPluginName",
        "encodeDeciderPluginName",
        "prefixPluginName",
    ];
    keys.into_iter().filter_map(|key| name(parameters, key)).collect()
}

/// Plugins that `pd-profile-handler` needs: its decider has a default.
pub(super) fn pd_plugins(parameters: &Node) -> Vec<Name> {
    let decider = name(parameters, "deciderPluginName");
    let default = || Name { at: parameters.at, value: "prefix-based-pd-decider".to_owned() };
    let prefix = name(parameters, "prefixPluginName");
    [Some(decider.unwrap_or_else(default)), prefix].into_iter().flatten().collect()
}

/// A name that is given; an empty one says nothing, as in llm-d-router. What is no text is refused
/// when the parameters are read.
pub(super) fn name(parameters: &Node, key: &str) -> Option<Name> {
    let node = parameters.find(key)?;
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
