//! Reading a streamed response.

use serde::Deserialize;

/// An event of a stream of chat completions, as far as it is read.
#[derive(Debug, Default, Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Debug, Default, Deserialize)]
struct Choice {
    delta: Option<Delta>,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    content: Option<String>,
}

/// Tokens, as the server counted them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Tokens of the response.
    #[serde(default)]
    pub completion_tokens: u32,
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
struct Details {
    cached_tokens: Option<u32>,
}

impl Usage {
    /// Tokens of the prompt that the prefix cache had.
    pub fn cached_tokens(&self) -> u32 {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or_default()
    }
}

/// A stream as far as it has come.
#[derive(Debug, Default)]
pub struct Reader {
    /// The start of an event whose end has yet to come.
    rest: Vec<u8>,
    /// The response's text.
    pub text: String,
    /// Usage at the end of the stream.
    pub usage: Option<Usage>,
    /// `true` if the end came.
    pub done: bool,
}

impl Reader {
    /// Reads a piece. Says whether there was text in it.
    pub fn feed(&mut self, data: &[u8]) -> bool {
        self.rest.extend_from_slice(data);
        let before = self.text.len();
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].windows(2).position(|pair| pair == b"\n\n") {
            let event = begin..begin + length;
            begin = event.end + 2;
            let Some(data) = self.rest[event].strip_prefix(b"data: ") else { continue };
            if data == b"[DONE]" {
                self.done = true;
            } else if let Ok(event) = serde_json::from_slice::<Event>(data) {
                let contents = event.choices.into_iter().filter_map(|choice| choice.delta?.content);
                contents.for_each(|content| self.text.push_str(&content));
                self.usage = event.usage.or(self.usage);
            }
        }
        self.rest.drain(..begin);
        self.text.len() > before
    }
}
