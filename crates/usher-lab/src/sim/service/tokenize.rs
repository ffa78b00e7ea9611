//! Calls of `/tokenize`.

use http::{Response, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::{Service, failure, json_response};
use crate::sim::body::SimBody;
use crate::sim::kv_events::tokens;
use crate::sim::openai::{Api, parse};

impl Service {
    /// The tokens of a text, or of a chat's messages. As at vLLM, a prompt is one text.
    pub(super) fn tokenize(&self, body: &[u8]) -> Response<SimBody> {
        #[derive(Deserialize)]
        struct Kind {
            messages: Option<IgnoredAny>,
            #[serde(rename = "prompt")]
            _prompt: Option<String>,
        }
        let kind = serde_json::from_slice(body).map_err(|error| error.to_string());
        let call = kind.and_then(|kind: Kind| {
            let api = if kind.messages.is_some() { Api::Chat } else { Api::Completions };
            parse(api, body)
        });
        match call {
            Ok(call) => {
                let tokens: Vec<u32> = tokens(&call.prompt).collect();
                let max_model_len = self.config.engine.max_model_len;
                json_response(
                    &json!({"count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens}),
                )
            }
            Err(message) => failure(StatusCode::BAD_REQUEST, &message),
        }
    }
}
