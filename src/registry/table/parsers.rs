//! Parsers.

use usher_plugin::Kind::Parser;
use usher_plugin::{Build, BuildContext, PluginParts, PluginType, beta};

use crate::config::ConfigError;
use crate::request::ParserKind;

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("openai-parser", &[Parser],
        "Reads OpenAI's chat completions, completions, embeddings, responses, conversations and image generations.",
        Build::Reading(|cx| parser(cx, ParserKind::OpenAi)))
        .when("Clients speak OpenAI's API. Part of the default."),
    beta("anthropic-parser", &[Parser],
        "Reads Anthropic's messages, and passes on what is sent to count their tokens.",
        Build::Reading(|cx| parser(cx, ParserKind::Anthropic)))
        .when("Clients speak Anthropic's API. Part of the default."),
    beta("vllmhttp-parser", &[Parser],
        "Reads vLLM's generate, of token ids.",
        Build::Reading(|cx| parser(cx, ParserKind::VllmHttp)))
        .when("Clients hold the tokenizer and send token ids to vLLM. Part of the default."),
    beta("sglanghttp-parser", &[Parser],
        "Reads SGLang's generate, of token ids.",
        Build::Reading(|cx| parser(cx, ParserKind::SglangHttp)))
        .when("Clients hold the tokenizer and send token ids to SGLang."),
    beta("vertexai-parser", &[Parser],
        "Reads OpenAI's chat completions and responses in the requests of Vertex AI's prediction service (gRPC).",
        Build::Reading(|cx| parser(cx, ParserKind::VertexAi)))
        .when("Requests come through Vertex AI's prediction service."),
    beta("vllmgrpc-parser", &[Parser],
        "Reads the requests of vLLM's gRPC service to generate and to embed.",
        Build::Reading(|cx| parser(cx, ParserKind::VllmGrpc)))
        .when("Clients speak to vLLM's gRPC server."),
    beta("passthrough-parser", &[Parser],
        "Takes every path that no other parser claims, and doesn't read the body.",
        Build::Reading(|cx| parser(cx, ParserKind::PassThrough)))
        .when("Behind all others, so that other paths are routed, too; alone, so that no body is read. Part of the default."),
];

fn parser(cx: &mut BuildContext<'_>, kind: ParserKind) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts::bare().with_extra(kind))
}
