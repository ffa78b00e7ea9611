//! `token-producer`: how many tokens a prompt has. This version estimates it, as the
//! peer does unless it is told where a tokenizer is: four bytes are a token.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::Candidates;
use usher_core::request::estimate;
use usher_plugin::data::PromptTokens;
use usher_plugin::{
    Build, Built, Facts, Key, Kind, Parameter, PluginType, Producer, Site, Situation, beta, parameter,
};

const PARAMETERS: &[Parameter] = &[
    parameter(
        "estimate",
        "{}",
        "",
        "How to estimate; nothing can be set in this version. Videos are as long and as large as the headers x-llm-d-video-fps, x-llm-d-video-duration-seconds and x-llm-d-video-resolution (640x360) say, or else 10 seconds at 2 frames.",
    ),
    parameter("vllm", "none", "", "Ask a vLLM server to tokenize. Not in this version."),
    parameter("modelName", "none", "", "The tokenizer's model. Not in this version."),
];

/// `token-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("token-producer", &[Kind::DataProducer],
    "Estimates how many tokens a prompt has: one for four bytes of text, or 1,024 pixels.",
    PARAMETERS, Build::Reading(build))
    .when("Added by itself where a plugin needs the length of prompts.");

/// `tokenizer` in a configuration.
#[rustfmt::skip]
pub static OLDER_NAME: PluginType = beta("tokenizer", &[Kind::DataProducer],
    "The older name of token-producer.",
    PARAMETERS, Build::Reading(build)).instead("token-producer")
    .when("Not in new configurations.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = TokenParams::decode(site.parameters)?;
    let producer = Arc::new(TokenProducer::new(site.produces()));
    Ok(Built { producer: Some(producer), ..Built::with(&params)? })
}

/// Parameters of `token-producer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenParams {}

impl TokenParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and wrong types, and what this version can't do: tokenizers.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            estimate: Option<Node>,
            vllm: Option<Node>,
            model_name: Option<usher_core::config::Name>,
            uds_tokenizer_config: Option<Node>,
        }
        let written: Written = node.decode()?;
        if let Some(estimate) = written.estimate {
            nothing_but_defaults(&estimate)?;
        }
        let model = written.model_name.filter(|name| !name.value.is_empty()).map(|name| name.at);
        let tokenizer = [
            ("vllm", written.vllm.map(|node| node.at)),
            ("udsTokenizerConfig", written.uds_tokenizer_config.map(|node| node.at)),
            ("modelName", model),
        ];
        for (key, at) in tokenizer {
            if let Some(at) = at {
                return Err(ConfigError::at(at, format!("{key}: not supported by this version"))
                    .hint("without it, tokens are estimated from the length of the prompt"));
            }
        }
        Ok(Self {})
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
