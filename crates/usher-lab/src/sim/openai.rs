//! Reading OpenAI requests, leniently: what a server needs to know, and nothing else.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// API of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
}

impl Api {
    pub(crate) const ALL: [Self; 2] = [Self::Chat, Self::Completions];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// Role of messages that repeat a response. Chat templates end a prompt with it, so that a
/// response that comes back as a message follows the same text as when it was generated.
pub(crate) const RESPONSE_ROLE: &str = "assistant";

/// Parameters of a request, read from its body.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) model: Option<String>,
    /// The text that the prompt's tokens and blocks are made of: for chat the JSON of the
    /// tools, then role and text of each message without separators, which is also what
    /// the picker estimates from, and the role of the response ([`RESPONSE_ROLE`]); for
    /// completions the prompts, a token id as 4 bytes.
    /// Images and audio don't count. Several prompts count as one, with one choice.
    pub(crate) prompt: Vec<u8>,
    /// Images in the messages.
    pub(crate) images: u32,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

#[derive(Deserialize)]
struct Body<'a> {
    model: Option<String>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    messages: Option<Vec<Message>>,
    prompt: Option<Text>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    role: Text,
    #[serde(default)]
    content: Text,
}

/// Reads a request's body.
///
/// # Errors
/// A sentence for the error's message.
pub(crate) fn parse(api: Api, body: &[u8]) -> Result<Call, String> {
    let body: Body<'_> = serde_json::from_slice(body).map_err(|error| format!("invalid body: {error}"))?;
    let Text { text: prompt, images } = match api {
        Api::Chat => {
            let messages = body.messages.ok_or("the field messages is missing")?;
            let mut all = Text::default();
            all.text.extend_from_slice(body.tools.map_or("", RawValue::get).as_bytes());
            for Message { role, content } in messages {
                all.text.extend_from_slice(&role.text);
                all.text.extend_from_slice(&content.text);
                all.images = all.images.saturating_add(content.images);
            }
            all.text.extend_from_slice(RESPONSE_ROLE.as_bytes());
            all
        }
        Api::Completions => body.prompt.ok_or("the field prompt is missing")?,
    };
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    if max_tokens == Some(0) {
        return Err("max_tokens must be at least 1, got 0.".to_owned());
    }
    Ok(Call {
        model: body.model.filter(|model| !model.is_empty()),
        prompt,
        images,
        max_tokens,
        stream: body.stream.unwrap_or(false),
        include_usage: body.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
    })
}

// All text in a value: of a string, of each string in a list, of each `text` in a list
// of content parts. A number is a token id. Parts with an image are counted.
#[derive(Default)]
struct Text {
    text: Vec<u8>,
    images: u32,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = Self::default();
        Gather(&mut text).deserialize(deserializer)?;
        Ok(text)
    }
}

struct Gather<'t>(&'t mut Text);

impl<'de> DeserializeSeed<'de> for Gather<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Gather<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, token ids or content parts")
    }
    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
    fn visit_u64<E>(self, token: u64) -> Result<(), E> {
        self.0.text.extend_from_slice(&(token as u32).to_le_bytes());
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Gather(self.0))?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            if name == "text" {
                fields.next_value_seed(Gather(self.0))?;
            } else {
                fields.next_value::<IgnoredAny>()?;
                self.0.images = self.0.images.saturating_add(u32::from(name == "image_url"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(api: Api, body: &str) -> Vec<u8> {
        parse(api, body.as_bytes()).unwrap().prompt
    }

    #[test]
    fn chat_text_is_tools_then_roles_and_contents() {
        let body = r#"{"model":"m","tools":[{"a":1}],"temperature":0.5,"messages":[
            {"role":"system","content":"be \"kind\""},
            {"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"x"}}]},
            {"role":"assistant","content":null}, {"content":"?"}]}"#;
        assert_eq!(prompt(Api::Chat, body), br#"[{"a":1}]systembe "kind"userhiassistant?assistant"#);
        assert_eq!(parse(Api::Chat, body.as_bytes()).unwrap().images, 1);
    }

    #[test]
    fn prompt_with_the_response_extends_the_old_prompt() {
        let asked = prompt(Api::Chat, r#"{"messages":[{"role":"user","content":"one"}]}"#);
        let next = r#"{"messages":[{"role":"user","content":"one"},{"role":"assistant","content":" two"},
            {"role":"user","content":"three"}]}"#;
        assert!(prompt(Api::Chat, next).starts_with(&[&asked[..], b" two"].concat()));
    }

    #[test]
    fn completions_take_text_lists_and_token_ids() {
        assert_eq!(prompt(Api::Completions, r#"{"prompt":"one"}"#), b"one");
        assert_eq!(prompt(Api::Completions, r#"{"prompt":["one","two"]}"#), b"onetwo");
        assert_eq!(prompt(Api::Completions, r#"{"prompt":[[1,2]]}"#), [1, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn max_completion_tokens_wins_and_usage_is_off_by_default() {
        let body = br#"{"prompt":"","max_tokens":5,"max_completion_tokens":7,"stream":true}"#;
        let call = parse(Api::Completions, body).unwrap();
        assert_eq!((call.max_tokens, call.stream, call.include_usage), (Some(7), true, false));
    }

    #[test]
    fn requests_that_vllm_refuses_are_refused() {
        for body in [r"{", r#"{"prompt":"x"}"#, r#"{"messages":[],"max_tokens":0}"#, "[]", "\u{0}"] {
            assert!(parse(Api::Chat, body.as_bytes()).is_err(), "{body}");
        }
    }
}
