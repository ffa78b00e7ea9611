//! `token-producer`: how many tokens a prompt has. This version estimates it, as llm-d-router
//! does unless it is told where a tokenizer is: four bytes are a token.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Candidates;
use usher_core::request::estimate;
use usher_plugin::data::PromptTokens;
use usher_plugin::{
    Build, BuildContext, Facts, Key, Kind, PluginParts, PluginType, Producer, Situation, beta,
};

/// `token-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("token-producer", &[Kind::DataProducer],
    "Estimates how many tokens a prompt has: one for four bytes of text, or 1,024 pixels.",
    Build::Reading(build)).takes::<TokenParams>()
    .when("Added by itself where a plugin needs the length of prompts.");

/// `tokenizer` in a configuration.
#[rustfmt::skip]
pub static OLDER_NAME: PluginType = beta("tokenizer", &[Kind::DataProducer],
    "The older name of token-producer.",
    Build::Reading(build)).takes::<TokenParams>().instead("token-producer")
    .when("Not in new configurations.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = TokenParams::decode(cx.parameters)?;
    let producer = Arc::new(TokenProducer::new(cx.produces()));
    Ok(PluginParts { producer: Some(producer), ..PluginParts::with(&params)? })
}

/// Parameters of `token-producer`, of which this version knows none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenParams {
    /// Settings of the estimate; nothing can be set in this version. Videos are as long and as large as
    /// the headers x-llm-d-video-fps, x-llm-d-video-duration-seconds and x-llm-d-video-resolution
    /// (640x360) say, or else 10 seconds at 2 frames.
    #[serde(skip_serializing)]
    #[schemars(with = "Option<serde_json::Value>", extend("default" = "{}"))]
    estimate: Option<Node>,
    /// Ask a vLLM server to tokenize. Not in this version.
    #[serde(skip_serializing)]
    #[schemars(with = "Option<serde_json::Value>")]
    vllm: Option<Node>,
    /// The tokenizer's model. Not in this version.
    #[serde(skip_serializing)]
    model_name: String,
    #[serde(skip_serializing)]
    #[schemars(with = "Option<serde_json::Value>")]
    uds_tokenizer_config: Option<Node>,
}

impl TokenParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and wrong types, and what this version can't do: tokenizers.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        if let Some(estimate) = &params.estimate {
            nothing_but_defaults(estimate)?;
        }
        let tokenizer = [
            ("vllm", params.vllm.is_some()),
            ("udsTokenizerConfig", params.uds_tokenizer_config.is_some()),
            ("modelName", !params.model_name.is_empty()),
        ];
        match tokenizer.into_iter().find(|(_, is_there)| *is_there) {
            Some((key, _)) => {
                let message = format!("{key}: not supported by this version");
                Err(ConfigError::at(node.position_of(key), message)
                    .hint("without it, tokens are estimated from the length of the prompt"))
            }
            None => Ok(params),
        }
    }
}

/// The estimate can't be changed in this version.
fn nothing_but_defaults(estimate: &Node) -> Result<(), ConfigError> {
    #[derive(Deserialize)]
    struct Nothing {}
    match estimate.entries().first() {
        None => estimate.decode::<Nothing>().map(|_| ()),
        Some(entry) => {
            let message = format!("estimate.{}: not supported by this version", entry.key);
            Err(ConfigError::at(entry.at, message)
                .hint("leave it out; an image counts one token for 1,024 pixels"))
        }
    }
}

/// Estimates the tokens of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct TokenProducer {
    tokens: Key<PromptTokens>,
}

impl TokenProducer {
    /// A producer that says what it found under `tokens`.
    pub fn new(tokens: Key<PromptTokens>) -> Self {
        Self { tokens }
    }
}

impl Producer for TokenProducer {
    fn produce(&self, cx: &Situation<'_>, _candidates: &Candidates, facts: &mut Facts) {
        if let Some(count) = estimate::count(cx.request) {
            facts.set(self.tokens, PromptTokens { count });
        }
    }
}
