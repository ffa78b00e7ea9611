//! vLLM's render calls: the body of a request, and the tokens in a response.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use usher_core::request::prompt::PartKind;
use usher_core::request::{Api, Request};
use usher_plugin::data::{PromptTokenIds, TokenizedItem, TokenizedPrompt};

/// API of a request whose tokens can be asked for; `None` for others, and where the request has tokens already.
pub(super) fn api(request: &Request) -> Option<Api> {
    let is_tokens = request.prompt.parts.iter().any(|part| part.kind == PartKind::Tokens);
    match request.api {
        Api::Completions if is_tokens => None,
        api @ (Api::Completions | Api::ChatCompletions) => Some(api),
        _ => None,
    }
}

/// Path of the call for requests of an API.
pub(super) fn path(api: Api) -> &'static str {
    match api {
        Api::ChatCompletions => "/v1/chat/completions/render",
        _ => "/v1/completions/render",
    }
}

/// The body of a request, but for the model. `None` if it is no JSON object.
pub(super) fn body(body: Bytes, model: &str) -> Option<Bytes> {
    if model.is_empty() {
        return Some(body);
    }
    let mut fields: BTreeMap<&str, &RawValue> = serde_json::from_slice(&body).ok()?;
    let model = serde_json::value::to_raw_value(model).ok()?;
    fields.insert("model", &model);
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

/// The tokens in a response: an object, or a list of one for each prompt. `None` if it has none.
pub(super) fn tokens(response: &[u8]) -> Option<PromptTokenIds> {
    let OneOrMany(rendered) = serde_json::from_slice(response).ok()?;
    let prompts: Vec<_> = rendered.into_iter().map(Rendered::prompt).collect();
    prompts.iter().any(|prompt| !prompt.ids.is_empty()).then_some(PromptTokenIds { prompts })
}

struct OneOrMany(Vec<Rendered>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms).map(Self)
    }
}

/// Reads either form as it comes: what serde makes of an untagged enum holds all of it once more.
struct Forms;

impl<'de> Visitor<'de> for Forms {
    type Value = Vec<Rendered>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rendered prompt, or a list of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut prompts: A) -> Result<Self::Value, A::Error> {
        let mut rendered = Vec::new();
        while let Some(prompt) = prompts.next_element()? {
            rendered.push(prompt);
        }
        Ok(rendered)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        Ok(vec![Rendered::deserialize(MapAccessDeserializer::new(fields))?])
    }
}

#[derive(Deserialize)]
struct Rendered {
    token_ids: Vec<u32>,
    #[serde(default)]
    features: Option<Features>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Features {
    mm_hashes: Option<BTreeMap<String, Vec<Option<String>>>>,
    mm_placeholders: Option<BTreeMap<String, Vec<Placeholder>>>,
}

#[derive(Deserialize)]
struct Placeholder {
    offset: usize,
    length: usize,
    #[serde(default, rename = "is_embed")]
    _mask: Option<IgnoredAny>,
}

impl Rendered {
    fn prompt(self) -> TokenizedPrompt {
        let features = self.features.unwrap_or_default();
        let (hashes, places) =
            (features.mm_hashes.unwrap_or_default(), features.mm_placeholders.unwrap_or_default());
        let mut items: Vec<_> = hashes
            .iter()
            .filter_map(|(modality, hashes)| Some(hashes.iter().zip(places.get(modality)?)))
            .flatten()
            .filter_map(|(hash, place)| {
                let hash = Arc::from(hash.as_deref()?);
                Some(TokenizedItem { offset: place.offset, length: place.length, hash })
            })
            .collect();
        items.sort_by_key(|item| item.offset);
        TokenizedPrompt { ids: self.token_ids, items }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_in_both_forms() {
        let one = |ids: &[u32]| TokenizedPrompt { ids: ids.to_vec(), items: vec![] };
        let many = br#"[{"request_id":"r","token_ids":[1,2],"model":"m"},{"token_ids":[3],"features":null}]"#;
        assert_eq!(tokens(many).unwrap().prompts, [one(&[1, 2]), one(&[3])]);
        let chat = br#"{"token_ids":[5,5,7,9],"features":{"mm_hashes":{"image":["b","a"],"audio":["c",null]},
            "mm_placeholders":{"image":[{"offset":2,"length":1},{"offset":0,"length":2,"is_embed":null}]}}}"#;
        let chat = tokens(chat).unwrap();
        let items: Vec<_> =
            chat.prompts[0].items.iter().map(|item| (item.offset, item.length, &*item.hash)).collect();
        assert_eq!(
            (&chat.prompts[0].ids[..], &items[..]),
            (&[5, 5, 7, 9][..], &[(0, 2, "a"), (2, 1, "b")][..])
        );
        for wrong in ["", "{}", "[]", "{\"token_ids\":[]}", "{\"token_ids\":[-1]}", "{\"error\":{}}", "7"] {
            assert_eq!(tokens(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
