//! Parameters of `token-producer`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};

use super::durations::{DEADLINE, duration, shown};
use super::local::LocalParams;

/// Parameters of `token-producer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenParams {
    /// Settings of the estimate; nothing can be set in this version. Videos are as long and as large as
    /// the headers x-llm-d-video-fps, x-llm-d-video-duration-seconds and x-llm-d-video-resolution
    /// (640x360) say, or else 10 seconds at 2 frames.
    #[serde(skip_serializing)]
    #[schemars(with = "Option<serde_json::Value>", extend("default" = "{}"))]
    estimate: Option<Node>,
    /// The vLLM or SGLang server that is asked for the tokens of prompts, with /v1/completions/render and
    /// /v1/chat/completions/render, or /tokenize where it has none. Without it they are estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vllm: Option<RenderParams>,
    /// A tokenizer in this process, in place of a server. Usher's own: llm-d-router refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local: Option<LocalParams>,
    /// Model that the server is asked with, in place of the request's. Empty: the request's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) model_name: String,
    /// A tokenizer behind a socket. Not in this version.
    #[serde(skip_serializing)]
    #[schemars(with = "Option<serde_json::Value>")]
    uds_tokenizer_config: Option<Node>,
}

/// The server that renders prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RenderParams {
    /// Address, over HTTP/1.1 without TLS.
    pub(super) url: String,
    /// Time that a request waits for it; then the approximate match counts, if there is one.
    #[serde(serialize_with = "shown", deserialize_with = "duration")]
    #[schemars(with = "String", extend("default" = "50ms"))]
    pub(super) timeout: Duration,
    /// Time that a request with images, videos or clips waits for it.
    #[serde(serialize_with = "shown", deserialize_with = "duration")]
    #[schemars(with = "String", extend("default" = "50ms"))]
    pub(super) mm_timeout: Duration,
}

impl Default for RenderParams {
    fn default() -> Self {
        Self { url: "http://localhost:8000".to_owned(), timeout: DEADLINE, mm_timeout: DEADLINE }
    }
}

impl TokenParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` for unknown keys and wrong types, an address that can't be, and what this version can't
    /// do.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        if let Some(estimate) = &params.estimate {
            nothing_but_defaults(estimate)?;
        }
        if params.uds_tokenizer_config.is_some() {
            let message = "udsTokenizerConfig: not supported by this version";
            return Err(ConfigError::at(node.position_of("udsTokenizerConfig"), message)
                .hint("local: {path: …} tokenizes in this process, vllm: {url: …} asks a server"));
        }
        if let Some(render) = &params.vllm {
            check_url(node, &render.url)?;
            for (key, timeout) in [("timeout", render.timeout), ("mmTimeout", render.mm_timeout)] {
                if timeout.is_zero() {
                    let key = format!("vllm.{key}");
                    let message = format!("{key} can't be 0");
                    return Err(ConfigError::at(node.position_of(&key), message).hint("the default is 50ms"));
                }
            }
        }
        if let Some(local) = &params.local {
            if params.vllm.is_some() {
                return Err(ConfigError::at(node.position_of("local"), "local and vllm exclude each other")
                    .hint("leave out one of them"));
            }
            local.check(node)?;
        }
        Ok(params)
    }
}

fn check_url(node: &Node, url: &str) -> Result<(), ConfigError> {
    let uri = url.parse::<http::Uri>().ok();
    let is_usable = uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.authority().is_some());
    if is_usable {
        return Ok(());
    }
    Err(ConfigError::at(node.position_of("vllm.url"), format!("vllm.url can't be '{url}'"))
        .hint("write for example http://localhost:8000; TLS is not supported"))
}

/// The estimate can't be changed in this version.
fn nothing_but_defaults(estimate: &Node) -> Result<(), ConfigError> {
    #[derive(Deserialize)]
    struct Nothing {}
    let Some(mut entry) = estimate.entries().first() else { return estimate.decode::<Nothing>().map(|_| ()) };
    let mut key = format!("estimate.{}", entry.key);
    while let Some(inner) = entry.value.entries().first() {
        entry = inner;
        key = format!("{key}.{}", entry.key);
    }
    Err(ConfigError::at(entry.at, format!("{key}: not supported by this version"))
        .hint("leave it out; an image counts one token for 1,024 pixels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &str) -> Result<TokenParams, ConfigError> {
        TokenParams::decode(&Node::parse(text).unwrap())
    }

    #[test]
    fn a_server_has_an_address_and_deadlines() {
        assert_eq!(decode("{}").unwrap(), TokenParams::default());
        let params = decode("{modelName: m, vllm: {url: 'http://10.0.0.1:8000', timeout: 5s}}").unwrap();
        assert_eq!(params.model_name, "m");
        let render = params.vllm.unwrap();
        assert_eq!(render.url, "http://10.0.0.1:8000");
        assert_eq!([render.timeout, render.mm_timeout], [Duration::from_secs(5), DEADLINE]);
        assert_eq!(decode("{vllm: {}}").unwrap().vllm, Some(RenderParams::default()));
    }

    #[test]
    fn invalid_parameters_are_refused_at_their_place() {
        let table = [
            ("{vllm: {url: 'https://10.0.0.1'}}", 14, "vllm.url can't be 'https://10.0.0.1'"),
            ("{vllm: {url: nowhere}}", 14, "vllm.url can't be 'nowhere'"),
            ("{vllm: {timeout: 0s}}", 18, "vllm.timeout can't be 0"),
            ("{vllm: {mmTimeout: '5'}}", 20, "\"5\" is not a duration"),
            ("{vllm: {retries: 5}}", 9, "unknown field 'retries'"),
            ("{local: {}}", 9, "local.path is missing"),
            ("{local: {path: /m, workersCount: 0}}", 34, "local.workersCount has to be from 1 to 256"),
            ("{local: {path: /m, timeout: 0s}}", 29, "local.timeout can't be 0"),
            ("{local: {path: /m}, vllm: {}}", 9, "local and vllm exclude each other"),
            ("{estimate: {image: {mode: guess}}}", 21, "estimate.image.mode: not supported"),
            ("{udsTokenizerConfig: {socketFile: /x}}", 22, "udsTokenizerConfig: not supported"),
        ];
        for (text, column, message) in table {
            let error = decode(text).unwrap_err();
            assert!(error.message().contains(message), "{text}: {}", error.message());
            assert_eq!(error.position().unwrap().column, column, "{text}");
        }
    }
}
