//! Parsers.

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::Parser;
use super::super::types::{PluginType, beta, later};
use crate::config::ConfigError;
use crate::request::ParserKind;

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("openai-parser", &[Parser],
        "Reads OpenAI chat completions and completions.",
        &[], Build::Reading(openai_parser))
        .when("Clients speak OpenAI's API. Part of the default."),
    beta("passthrough-parser", &[Parser],
        "Takes every path that no other parser claims, and doesn't read the body.",
        &[], Build::Reading(passthrough_parser))
        .when("Behind all others, so that other paths are routed, too; alone, so that no body is read. Part of the default."),
    later("anthropic-parser", &[Parser]),
    later("vllmhttp-parser", &[Parser]),
    later("sglanghttp-parser", &[Parser]),
    later("vertexai-parser", &[Parser]),
    later("vllmgrpc-parser", &[Parser]),
];

fn openai_parser(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { parser: Some(ParserKind::OpenAi), ..Built::bare() })
}

fn passthrough_parser(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    site.takes_nothing()?;
    Ok(Built { parser: Some(ParserKind::PassThrough), ..Built::bare() })
}
