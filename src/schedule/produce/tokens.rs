//! `token-producer`: how many tokens a prompt has. This version estimates it, as the
//! peer does unless it is told where a tokenizer is: four bytes are a token.

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, Node};
use crate::endpoints::Candidates;
use crate::request::{Body, Part, PartKind, Request};
use crate::schedule::data::PromptTokens;
use crate::schedule::{Facts, Key, Producer, Situation};

/// Bytes that count as one token.
const BYTES_PER_TOKEN: u64 = 4;

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
            /// The estimate takes nothing that this version reads.
            #[serde(rename = "estimate")]
            _estimate: Option<Node>,
            vllm: Option<Node>,
            model_name: Option<crate::config::Name>,
            uds_tokenizer_config: Option<Node>,
        }
        let written: Written = node.decode()?;
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
        if let Some(count) = estimate(cx.request) {
            facts.set(self.tokens, PromptTokens { count });
        }
    }
}

/// Tokens of all prompts of a request; `None` when its prompt was not read.
fn estimate(request: &Request) -> Option<u64> {
    let prompt = &request.prompt;
    if prompt.parts.is_empty() {
        return None;
    }
    let (mut bytes, mut tokens) = (0, 0);
    for part in &prompt.parts {
        if part.kind == PartKind::Tokens {
            tokens += ids(part, &request.body);
        } else if prompt.separate {
            // Each prompt's last token may be a part of one.
            tokens += (part.bytes(&request.body).len() as u64).div_ceil(BYTES_PER_TOKEN);
        } else {
            bytes += part.bytes(&request.body).len() as u64;
        }
    }
    Some(tokens + bytes.div_ceil(BYTES_PER_TOKEN))
}

/// Number of ids in a list of token ids.
fn ids(part: &Part, body: &Body) -> u64 {
    let list = part.bytes(body);
    let has_any = list.iter().any(u8::is_ascii_digit);
    if has_any { list.iter().filter(|byte| **byte == b',').count() as u64 + 1 } else { 0 }
}
