//! `session-affinity-scorer` and `session-affinity-filter`: requests of one session go
//! to one endpoint. Either the client carries the endpoint in a header, which it gets
//! with every response, or sessions are bound to endpoints here.

mod affinity;
mod bindings;
mod learned;
mod params;
mod source;

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};
use xxhash_rust::xxh3::xxh3_64;

pub use affinity::SessionAffinity;
pub use bindings::{Bindings, SessionMetrics};
pub use params::{SessionAffinityParams, SourceParams, Strategy};
pub use source::SessionSource;

/// `session-affinity-scorer` in a configuration.
#[rustfmt::skip]
pub static SCORER: PluginType = beta("session-affinity-scorer", &[Kind::Scorer, Kind::PreRequest, Kind::Response],
    "Prefers the endpoint that served a request's session before: it scores 1, all others 0.",
    Build::Reading(session_affinity_scorer)).takes::<SessionAffinityParams>().alpha()
    .when("A conversation should stay at its endpoint, and may leave it when that is busy.");

/// `session-affinity-filter` in a configuration.
#[rustfmt::skip]
pub static FILTER: PluginType = beta("session-affinity-filter", &[Kind::Filter, Kind::PreRequest, Kind::Response],
    "Keeps the endpoint that served a request's session before, where it is a candidate.",
    Build::Reading(session_affinity_filter)).takes::<SessionAffinityParams>().alpha()
    .when("A conversation must stay at its endpoint as long as that is there.");

/// `multicluster-session-affinity-filter` in a configuration.
#[rustfmt::skip]
pub static MULTICLUSTER_FILTER: PluginType = beta("multicluster-session-affinity-filter", &[Kind::Filter, Kind::PreRequest, Kind::Response],
    "The same as session-affinity-filter, where every endpoint is a cluster.",
    Build::Reading(session_affinity_filter)).takes::<SessionAffinityParams>().alpha()
    .when("A conversation must stay in its cluster as long as that is there.");

fn session_affinity_scorer(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let (plugin, parts) = affinity(cx)?;
    Ok(PluginParts { scorer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..parts })
}

fn session_affinity_filter(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let (plugin, parts) = affinity(cx)?;
    Ok(PluginParts { filter: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..parts })
}

fn affinity(cx: &mut BuildContext<'_>) -> Result<(Arc<SessionAffinity>, PluginParts), ConfigError> {
    let params = SessionAffinityParams::decode(cx.parameters)?;
    let parts = PluginParts::with(&params)?;
    let profile = Some(params.profile_name).filter(|name| !name.is_empty());
    let plugin = match params.strategy {
        Strategy::EncodedEndpointHeader => {
            SessionAffinity::by_token(&params.encoded_endpoint_header_config.header, profile)
        }
        Strategy::SessionId => {
            let session = params.session_id_config;
            let meaning = serde_json::to_vec(&(&session.sources, &profile)).unwrap_or_default();
            let sources = session.sources.into_iter().map(|source| match source {
                SourceParams::Header(name) => SessionSource::Header(name),
                SourceParams::AgentIdentity => SessionSource::Agent,
                SourceParams::SessionId { producer } => SessionSource::Produced(cx.reads(&producer)),
            });
            let sources = sources.collect();
            let metrics = cx.family(SessionMetrics::register)?;
            let bindings: Arc<Bindings> = cx.state.of(cx.name, || metrics.bindings(cx.name));
            let ttl_ms = session.eviction_ttl_seconds.saturating_mul(1000);
            bindings.configure(xxh3_64(&meaning), ttl_ms);
            SessionAffinity::by_session(sources, bindings, ttl_ms, profile)
        }
    };
    Ok((Arc::new(plugin), parts))
}
