//! Profile handlers, deciders and what belongs to them.

use std::sync::Arc;

use usher_core::config::{ConfigError, Name, Node};
use usher_plugin::Kind::{Decider, PreRequest, ProfileHandler};
use usher_plugin::data::{PrefixMatch, PromptTokens};
use usher_plugin::{Build, Built, Key, Parameter, PluginId, PluginType, Site, beta, parameter};

use crate::Joint;
use crate::latency::{reads_latency, transfers};
use crate::{
    AlwaysDecider, DataParallelParams, DataParallelProfileHandler, DisaggFamily, DisaggHeaders,
    DisaggHeadersParams, DisaggParams, DisaggProfileHandler, HeaderProfileHandler, HeaderProfileParams,
    MultimodalDecider, PdFamily, PdParams, PdProfileHandler, PrefixBasedPdDecider, PrefixBasedPdParams,
    SingleProfileHandler,
};

/// The producer whose matches deciders look at, as with the peer whatever the scorers use.
const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";

const DISAGG_HEADERS: &[Parameter] = &[
    parameter(
        "prefillProfile",
        "the profile handler's",
        "",
        "The profile whose first pick computes the prompt.",
    ),
    parameter("encodeProfile", "encode", "", "The profile whose picks encode images, audio and video."),
];

#[rustfmt::skip]
const DISAGG: &[Parameter] = &[
    parameter("stageOrder", "decode-first", "", "decode-first, or prefill-first: then prefill always runs. The second of them sees what the first one picked."),
    parameter("profiles.decode", "decode", "", "The profile that picks who decodes and answers."),
    parameter("profiles.prefill", "prefill", "", "The profile that picks who computes the prompt."),
    parameter("profiles.encode", "encode", "", "The profile that picks who encodes."),
    parameter("deciders.prefill", "none", "", "The plugin that says whether another endpoint computes the prompt. Without it none does, unless prefill comes first; with pairing joint, one does where that costs less."),
    parameter("deciders.encode", "none", "", "The plugin that says whether other endpoints encode. Without it none does."),
    parameter("pairing", "independent", "", "independent: each profile picks alone. joint: prefill and decode are chosen together, by the delay of the request and of others; a decoding endpoint that would do it all competes with every pair, unless the decider says yes to all. What follows goes with joint; all of it is Usher's own."),
    parameter("pairCandidates", "4", "endpoints", "So many of the best of either profile are looked at, 1 to 8; of equals those that cost the least."),
    parameter("kvBytesPerToken", "262144", "bytes", "KV cache per token of the prompt. Tokens that the decoding endpoint has are not moved."),
    parameter("peakPrefillThroughput", "15928", "tokens/s", "Prompt tokens that an endpoint computes per second, until its first tokens say so."),
    parameter("links.host, links.rack, links.zone, links.region, links.none", "50e9", "bytes/s", "How fast a KV cache travels between two endpoints, by the narrowest place that they share, until first tokens say so. A layer that is left out is as fast as the next wider one; none is slower than a wider one."),
    parameter("kvCacheLimit", "0.95", "", "Decoding endpoints with more of their KV cache in use, or on its way there, are out, unless all are."),
    parameter("constraintMode", "Preferred", "", "Preferred: places count as much as they cost. Required: pairs outside of constraintLayer are forbidden."),
    parameter("constraintLayer", "none", "", "host, rack, zone or region, with constraintMode Required."),
    parameter("revisionLabel", "disaggregatedset.x-k8s.io/revision", "", "Pods whose values of this label differ are never paired; pods without it fit all. Empty: all fit."),
    parameter("decodeProfile, prefillProfile, encodeProfile, prefillDeciderPluginName, deciderPluginName, encodeDeciderPluginName", "none", "", "The same in the flat form of older versions, deprecated; not together with profiles or deciders."),
];

#[rustfmt::skip]
const PD: &[Parameter] = &[
    parameter("decodeProfile", "decode", "", "The profile that picks who decodes and answers."),
    parameter("prefillProfile", "prefill", "", "The profile that picks who computes the prompt."),
    parameter("deciderPluginName", "prefix-based-pd-decider", "", "The plugin that says whether another endpoint computes the prompt. It has to be declared."),
    parameter("primaryPort", "0", "port", "The port of every pod that knows its ranks, as of data-parallel-profile-handler; 0: ranks are reached at their own ports."),
    parameter("prefixMatchInfoProducerName", "approx-prefix-cache-producer", "", "A producer that knows what is cached, to be added. Deciders look at the default one."),
    parameter("prefixPluginType, prefixPluginName", "none", "", "Deprecated, without effect."),
];

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("single-profile-handler", &[ProfileHandler],
        "Runs the one profile that is configured.",
        &[], Build::Ignoring(single_profile_handler))
        .when("One profile. Added by itself where there is no other handler."),
    beta("disagg-profile-handler", &[ProfileHandler, PreRequest],
        "Picks who decodes, and where its deciders say so who computes the prompt and who encodes its images, videos and clips. It names them in the headers x-prefiller-host-port and x-encoder-hosts-ports.",
        DISAGG, Build::Reading(disagg_profile_handler)).refers_to(named_deciders)
        .when("Disaggregated pools, whose decoding pods have a sidecar that reads these headers."),
    beta("pd-profile-handler", &[ProfileHandler, PreRequest],
        "Picks who decodes, and where its decider says so who computes the prompt. It needs prefill-header-handler to name it in a header.",
        PD, Build::Reading(pd_profile_handler)).instead("disagg-profile-handler").refers_to(pd_plugins)
        .when("Not in new configurations."),
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
    beta("prefix-based-pd-decider", &[Decider],
        "Lets another endpoint compute a prompt if the one that decodes has little of it in its prefix cache.",
        &[
            parameter("nonCachedTokens", "0", "tokens", "Tokens that the decoding endpoint would have to compute, from which on another one does. 0: never."),
            parameter("promptTokens", "0", "tokens", "Prompts of fewer tokens stay whole."),
        ],
        Build::Reading(prefix_based_pd_decider))
        .when("The usual choice for prefill: short prompts and cached ones are not worth the transfer of their KV cache."),
    beta("always-disagg-pd-decider", &[Decider],
        "Lets another endpoint compute every prompt.",
        &[], Build::Ignoring(always_disagg_pd_decider))
        .when("Decoding endpoints that must not compute prompts, and measurements."),
    beta("always-disagg-multimodal-decider", &[Decider],
        "Lets other endpoints encode whenever a prompt has images, videos or clips.",
        &[], Build::Ignoring(always_disagg_multimodal_decider))
        .when("Encoders of their own."),
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
    let profiles = params.prefill_profile.iter().map(|name| ("prefillProfile", name.clone())).collect();
    Ok(Built { pre_request: Some(Arc::new(DisaggHeaders::new(params))), profiles, ..built })
}

/// How long the prompt is, and how much of it is where. Its producer is added for
/// handlers that disaggregate and for their deciders.
fn prompt_and_cached(site: &mut Site<'_>, producer: &str) -> (Key<PromptTokens>, Key<PrefixMatch>) {
    (site.reads("token-producer"), site.reads(producer))
}

fn disagg_profile_handler(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = DisaggParams::decode(site.parameters)?;
    let decider = |key, name: &Option<Name>| name.as_ref().map(|name| site.decider(key, name)).transpose();
    let prefill_key = params.flat.unwrap_or("deciders.prefill");
    let encode_key = if params.flat.is_some() { "encodeDeciderPluginName" } else { "deciders.encode" };
    let prefill = decider(prefill_key, &params.prefill_decider)?;
    let encode = decider(encode_key, &params.encode_decider)?;
    prompt_and_cached(site, PREFIX_PRODUCER);
    let joint = match params.joint.clone() {
        Some(params) => {
            let reader = reads_latency(site, params.peak_prefill_throughput, PREFIX_PRODUCER)?;
            // There is one handler.
            let _ = transfers(site).set(params.transfers());
            Some(Joint::new(params, reader))
        }
        None => None,
    };
    let books = joint.is_some();
    let id = PluginId::new("disagg-profile-handler", site.name);
    let decisions = site.family(DisaggFamily::register)?.of(id);
    let alone = DisaggProfileHandler::new(&params, prefill, encode, decisions);
    let plugin = Arc::new(match joint {
        Some(joint) => alone.paired(joint),
        None => alone,
    });
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(Built { handler, pre_request: Some(plugin), parameters: params.shown(), books, ..Built::default() })
}

fn pd_profile_handler(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PdParams::decode(site.parameters)?;
    let decider = site.decider("deciderPluginName", &params.decider_plugin_name)?;
    prompt_and_cached(site, &params.prefix_match_info_producer_name);
    let id = PluginId::new("pd-profile-handler", site.name);
    let decisions = site.family(PdFamily::register)?.of(id);
    let plugin = Arc::new(PdProfileHandler::new(&params, decider, decisions));
    let handler = Some(Arc::clone(&plugin) as _);
    Ok(Built { handler, pre_request: Some(plugin), ..Built::with(&params)? })
}

fn prefix_based_pd_decider(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = PrefixBasedPdParams::decode(site.parameters)?;
    let (tokens, prefix) = prompt_and_cached(site, PREFIX_PRODUCER);
    let decider = Arc::new(PrefixBasedPdDecider::new(params, tokens, prefix));
    Ok(Built { decider: Some(decider), ..Built::with(&params)? })
}

fn always_disagg_pd_decider(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { decider: Some(Arc::new(AlwaysDecider)), ..Built::bare() })
}

fn always_disagg_multimodal_decider(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { decider: Some(Arc::new(MultimodalDecider)), ..Built::bare() })
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
