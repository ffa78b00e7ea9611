//! Profile handlers, deciders and what belongs to them.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Decider, PreRequest, ProfileHandler};
use super::super::types::{Parameter, PluginType, beta, later, parameter};
use crate::config::{ConfigError, Name, Node};
use crate::schedule::{
    DataParallelParams, DataParallelProfileHandler, DisaggHeaders, DisaggHeadersParams, HeaderProfileHandler,
    HeaderProfileParams, SingleProfileHandler,
};

const DISAGG_HEADERS: &[Parameter] = &[
    parameter("prefillProfile", "prefill", "", "The profile whose first pick computes the prompt."),
    parameter("encodeProfile", "encode", "", "The profile whose picks encode images, audio and video."),
];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("single-profile-handler", &[ProfileHandler],
        "Runs the one profile that is configured.",
        &[], Build::Ignoring(single_profile_handler))
        .when("One profile. Added by itself where there is no other handler."),
    later("disagg-profile-handler", &[ProfileHandler, PreRequest]).refers_to(named_deciders),
    later("pd-profile-handler", &[ProfileHandler]).instead("disagg-profile-handler").refers_to(pd_plugins),
    beta("data-parallel-profile-handler", &[ProfileHandler, PreRequest],
        "Sends requests to one port of the chosen pods, and names the chosen rank in a header.",
        &[parameter("primaryPort", "8000", "port", "The port of every pod that knows its ranks.")],
        Build::Reading(data_parallel_profile_handler))
        .when("Data-parallel ranks behind one port of their pod, with a sidecar that passes requests on."),
    beta("header-profile-handler", &[ProfileHandler],
        "Runs the profile that a header of the request names.",
        &[
            parameter("headerName", "EPP-Profile", "", "The header."),
            parameter("defaultProfile", "decode", "", "The profile of requests without the header."),
        ],
        Build::Reading(header_profile_handler)).alpha()
        .when("Clients or the gateway know which kind of request it is."),
    beta("disagg-headers-handler", &[PreRequest],
        "Names the pods that encode and prefill in headers.",
        DISAGG_HEADERS, Build::Reading(disagg_headers_handler)).instead("disagg-profile-handler")
        .when("Not in new configurations."),
    beta("prefill-header-handler", &[PreRequest],
        "The older name of disagg-headers-handler.",
        DISAGG_HEADERS, Build::Reading(disagg_headers_handler)).instead("disagg-profile-handler")
        .when("Not in new configurations."),
    later("prefix-based-pd-decider", &[Decider]),
    later("always-disagg-pd-decider", &[Decider]),
    later("always-disagg-multimodal-decider", &[Decider]),
];

fn single_profile_handler(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { handler: Some(Arc::new(SingleProfileHandler)), ..Built::bare() })
}

fn data_parallel_profile_handler(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = DataParallelParams::decode(site.parameters)?;
    let plugin = Arc::new(DataParallelProfileHandler::new(params));
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(Built { handler, pre_request: Some(plugin), ..Built::with(&params)? })
}

fn disagg_headers_handler(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = DisaggHeadersParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { pre_request: Some(Arc::new(DisaggHeaders::new(params))), ..built })
}

fn header_profile_handler(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = HeaderProfileParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    Ok(Built { handler: Some(Arc::new(HeaderProfileHandler::new(params))), ..built })
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
