//! Session affinity, which is a row among the scorers and one among the filters.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::{Built, Parameter, Site, parameter};

use crate::{
    Bindings, SessionAffinity, SessionAffinityParams, SessionMetrics, SessionSource, SourceParams, Strategy,
};

/// What both take.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter(
        "strategy",
        "encoded_endpoint_header",
        "",
        "How a session is recognized: by an endpoint that the client sends (encoded_endpoint_header), or by its name (session_id).",
    ),
    parameter(
        "encodedEndpointHeaderConfig.header",
        "x-session-token",
        "",
        "The header with the endpoint, of answers and of the requests that follow.",
    ),
    parameter(
        "sessionIdConfig.sources",
        "[{header: x-session-id}]",
        "",
        "Where sessions are named, the first that is there counts: {header}, {attribute: agent-identity} or {attribute: SessionID, producer}.",
    ),
    parameter(
        "sessionIdConfig.evictionTtlSeconds",
        "300",
        "seconds",
        "How long a session keeps its endpoint after its last request. At most 100,000 sessions do.",
    ),
    parameter(
        "sessionIdConfig.evictionSweepSeconds",
        "10",
        "seconds",
        "Without effect: expired sessions don't count.",
    ),
    parameter(
        "profileName",
        "none",
        "",
        "The profile whose pick a session keeps; without it the one that answers.",
    ),
];

pub(super) fn session_affinity_scorer(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let (plugin, built) = affinity(site)?;
    Ok(Built { scorer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..built })
}

pub(super) fn session_affinity_filter(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let (plugin, built) = affinity(site)?;
    Ok(Built { filter: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..built })
}

fn affinity(site: &mut Site<'_>) -> Result<(Arc<SessionAffinity>, Built), ConfigError> {
    let params = SessionAffinityParams::decode(site.parameters)?;
    let built = Built::with(&params)?;
    let profile = Some(params.profile_name).filter(|name| !name.is_empty());
    let plugin = match params.strategy {
        Strategy::EncodedEndpointHeader => {
            SessionAffinity::by_token(&params.encoded_endpoint_header_config.header, profile)
        }
        Strategy::SessionId => {
            let session = params.session_id_config;
            let sources = session.sources.into_iter().map(|source| match source {
                SourceParams::Header(name) => SessionSource::Header(name),
                SourceParams::AgentIdentity => SessionSource::Agent,
                SourceParams::SessionId { producer } => SessionSource::Produced(site.reads(&producer)),
            });
            let sources = sources.collect();
            let metrics = site.family(SessionMetrics::register)?;
            let bindings: Arc<Bindings> = site.state.of(site.name, || metrics.bindings(site.name));
            let ttl_ms = session.eviction_ttl_seconds.saturating_mul(1000);
            SessionAffinity::by_session(sources, bindings, ttl_ms, profile)
        }
    };
    Ok((Arc::new(plugin), built))
}
