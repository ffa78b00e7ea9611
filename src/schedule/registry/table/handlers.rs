//! Profile handlers, deciders and what belongs to them.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Decider, PreRequest, ProfileHandler};
use super::super::types::{Parameter, PluginType, beta, later, parameter};
use crate::config::ConfigError;
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
        &[], Build::Ignoring(single_profile_handler)),
    later("disagg-profile-handler", &[ProfileHandler, PreRequest]),
    later("pd-profile-handler", &[ProfileHandler]).instead("disagg-profile-handler"),
    beta("data-parallel-profile-handler", &[ProfileHandler, PreRequest],
        "Sends requests to one port of the chosen pods, and names the chosen rank in a header.",
        &[parameter("primaryPort", "8000", "port", "The port of every pod that knows its ranks.")],
        Build::Reading(data_parallel_profile_handler)),
    beta("header-profile-handler", &[ProfileHandler],
        "Runs the profile that a header of the request names.",
        &[
            parameter("headerName", "EPP-Profile", "", "The header."),
            parameter("defaultProfile", "decode", "", "The profile of requests without the header."),
        ],
        Build::Reading(header_profile_handler)).alpha(),
    beta("disagg-headers-handler", &[PreRequest],
        "Names the pods that encode and prefill in headers.",
        DISAGG_HEADERS, Build::Reading(disagg_headers_handler)).instead("disagg-profile-handler"),
    beta("prefill-header-handler", &[PreRequest],
        "The older name of disagg-headers-handler.",
        DISAGG_HEADERS, Build::Reading(disagg_headers_handler)).instead("disagg-profile-handler"),
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
