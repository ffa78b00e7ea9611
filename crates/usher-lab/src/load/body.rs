//! Bodies of requests.

use bytes::Bytes;
use serde::Serialize;

use super::settings::Api;

/// Properties that all request bodies of a run share.
#[derive(Clone, Debug)]
pub struct Style {
    /// API of the bodies.
    pub api: Api,
    /// The model that they ask for.
    pub model: String,
    /// `true` if the response is to be a stream, which then has usage at its end.
    pub stream: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a [Message<'a>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    max_tokens: usize,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

/// A message of a chat.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Message<'a> {
    /// Role of the speaker.
    pub role: &'a str,
    /// Text of the message.
    pub content: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Style {
    /// The body that asks with `prompt` for a response of at most `max_tokens` tokens.
    pub fn body(&self, prompt: &str, max_tokens: usize) -> Bytes {
        match self.api {
            Api::Chat => self.chat(&[Message { role: "user", content: prompt }], max_tokens),
            Api::Completions => self.write(None, Some(prompt), max_tokens),
        }
    }

    /// The body of a chat with these messages, whatever the API of the style.
    pub fn chat(&self, messages: &[Message<'_>], max_tokens: usize) -> Bytes {
        self.write(Some(messages), None, max_tokens)
    }

    fn write(&self, messages: Option<&[Message<'_>]>, prompt: Option<&str>, max_tokens: usize) -> Bytes {
        let body = Body {
            model: &self.model,
            messages,
            prompt,
            max_tokens,
            stream: self.stream,
            stream_options: self.stream.then_some(StreamOptions { include_usage: true }),
        };
        // Strings and numbers always serialise.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn bodies_match_their_apis() {
        let body = |api, stream| -> Value {
            let style = Style { api, model: "m".to_owned(), stream };
            serde_json::from_slice(&style.body("a\n", 3)).unwrap()
        };
        assert_eq!(
            body(Api::Chat, true),
            json!({"model": "m", "messages": [{"role": "user", "content": "a\n"}], "max_tokens": 3,
                   "stream": true, "stream_options": {"include_usage": true}})
        );
        assert_eq!(
            body(Api::Completions, false),
            json!({"model": "m", "prompt": "a\n", "max_tokens": 3, "stream": false})
        );
    }
}
