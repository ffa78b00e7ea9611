//! Calls of `/tokenize`, which vLLM and SGLang have: the bodies for a request, and the tokens in a response.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use usher_core::request::Api;

/// Prompts of a request at most, as each takes a call: vLLM has one in each.
const PROMPTS: usize = 64;

/// Members of a completion that the call takes, but for its prompt.
const OF_COMPLETION: &[&str] = &["model", "add_special_tokens"];
/// Members of a chat that the call takes.
const OF_CHAT: &[&str] = &[
    "model",
    "messages",
    "tools",
    "tool_choice",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
];
/// Members that change a prompt, and that the call doesn't take.
const BEYOND: [&str; 4] = ["truncate_prompt_tokens", "prompt_embeds", "documents", "reasoning_effort"];

/// Calls for the prompts of a request.
#[derive(Debug)]
pub(super) struct Tokenize {
    /// An object of all members but for the prompt, without its end.
    object: Vec<u8>,
    /// JSON of each prompt of a completion; `None` for a chat, which is one as it is.
    prompts: Vec<Option<Bytes>>,
}

impl Tokenize {
    /// The calls for a request's body, with this model unless that is empty. `None` if `/tokenize` can't return its tokens:
    /// the body is no JSON object, its prompts are too many or no text, or they depend on members that the call doesn't
    /// take.
    pub(super) fn of(api: Api, body: &Bytes, model: &str) -> Option<Self> {
        let mut members: BTreeMap<&str, &RawValue> = serde_json::from_slice(body).ok()?;
        if BEYOND.iter().any(|name| members.get(name).is_some_and(|value| value.get() != "null")) {
            return None;
        }
        // Some engines leave these tools out of the prompt; the call doesn't know.
        let is = |name, value: &str| members.get(name).is_some_and(|found| found.get() == value);
        if is("tool_choice", r#""none""#) && !is("tools", "null") && members.contains_key("tools") {
            return None;
        }
        let (taken, prompts) = match api {
            Api::ChatCompletions => (OF_CHAT, vec![None]),
            _ => {
                let prompts = prompts(members.get("prompt")?)?.into_iter();
                let json = prompts.map(|prompt| Some(body.slice_ref(prompt.get().as_bytes())));
                (OF_COMPLETION, json.collect())
            }
        };
        if !(1..=PROMPTS).contains(&prompts.len()) {
            return None;
        }
        members.retain(|name, _| taken.contains(name));
        let model = (!model.is_empty()).then(|| serde_json::value::to_raw_value(model)).transpose().ok()?;
        members.extend(model.as_deref().map(|model| ("model", model)));
        let mut object = serde_json::to_vec(&members).ok()?;
        object.pop();
        Some(Self { object, prompts })
    }

    /// Bodies of the calls, made one by one.
    pub(super) fn bodies(self) -> impl Iterator<Item = Bytes> {
        let Self { object, prompts } = self;
        prompts.into_iter().map(move |prompt| {
            let separator: &[u8] = if object.len() > 1 { b"," } else { b"" };
            let prompt = prompt.as_deref().map(|prompt| [separator, b"\"prompt\":", prompt].concat());
            [&object[..], prompt.as_deref().unwrap_or_default(), b"}"].concat().into()
        })
    }
}

/// The prompts of a completion; `None` if one is no text.
fn prompts(prompt: &RawValue) -> Option<Vec<&RawValue>> {
    let is_text = |prompt: &&RawValue| prompt.get().starts_with('"');
    if is_text(&prompt) {
        return Some(vec![prompt]);
    }
    let prompts: Vec<&RawValue> = serde_json::from_str(prompt.get()).ok()?;
    prompts.iter().all(is_text).then_some(prompts)
}

/// A response.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Tokenized {
    pub(super) tokens: Vec<u32>,
    /// `true` if it names this member, if only as null: vLLM does, SGLang doesn't.
    #[serde(default, deserialize_with = "is_named", rename = "token_strs")]
    is_of_vllm: bool,
}

fn is_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl Tokenized {
    /// The tokens in a response; `None` if it has none.
    pub(super) fn of(response: &[u8]) -> Option<Self> {
        serde_json::from_slice(response).ok()
    }

    /// Returns `true` for a chat of gpt-oss from vLLM, which runs such chats as its library for harmony renders them: system
    /// messages are elsewhere than in the chat template, which `/tokenize` goes by. For the chats of other models both do
    /// the same.
    pub(super) fn is_of_other_prompt(&self) -> bool {
        /// `<|start|>` and `<|message|>` in the vocabulary o200k_harmony, around the first role.
        const START: u32 = 200_006;
        const MESSAGE: u32 = 200_008;
        self.is_of_vllm && matches!(self.tokens[..], [START, _, MESSAGE, ..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(api: Api, body: &str, model: &str) -> Option<Vec<String>> {
        let calls = Tokenize::of(api, &Bytes::copy_from_slice(body.as_bytes()), model)?;
        Some(calls.bodies().map(|body| String::from_utf8(body.to_vec()).unwrap()).collect())
    }

    #[test]
    fn calls_have_the_members_that_tokens_depend_on() {
        let (chat, completion) = (Api::ChatCompletions, Api::Completions);
        let table: [(Api, &str, &str, &[&str]); 5] = [
            (completion, r#"{"prompt":"a\"b","max_tokens":5}"#, "", &[r#"{"prompt":"a\"b"}"#]),
            (
                completion,
                r#"{"model":"m","prompt":["a","b"],"add_special_tokens":false,"documents":null}"#,
                "",
                &[
                    r#"{"add_special_tokens":false,"model":"m","prompt":"a"}"#,
                    r#"{"add_special_tokens":false,"model":"m","prompt":"b"}"#,
                ],
            ),
            (completion, r#"{"model":"m","prompt":"a"}"#, "base", &[r#"{"model":"base","prompt":"a"}"#]),
            (
                chat,
                r#"{"messages":[{"role":"user"}],"prompt":"a","stream":true,"tools":[]}"#,
                "base",
                &[r#"{"messages":[{"role":"user"}],"model":"base","tools":[]}"#],
            ),
            (
                chat,
                r#"{"messages":[],"chat_template_kwargs":{"a":1}}"#,
                "",
                &[r#"{"chat_template_kwargs":{"a":1},"messages":[]}"#],
            ),
        ];
        for (api, body, model, expected) in table {
            assert_eq!(bodies(api, body, model).unwrap(), expected, "{body}");
        }
    }

    #[test]
    fn requests_beyond_tokenize_have_no_calls() {
        let many = format!(r#"{{"prompt":[{}"a"]}}"#, r#""a","#.repeat(PROMPTS));
        let table = [
            (Api::Completions, r#"{"prompt":[1,2]}"#),
            (Api::Completions, r#"{"prompt":["a",[1]]}"#),
            (Api::Completions, r#"{"prompt":[]}"#),
            (Api::Completions, r#"{"prompt":7}"#),
            (Api::Completions, "{}"),
            (Api::Completions, "[]"),
            (Api::Completions, r#"{"prompt":"a","truncate_prompt_tokens":5}"#),
            (Api::ChatCompletions, r#"{"messages":[],"reasoning_effort":"low"}"#),
            (Api::ChatCompletions, r#"{"messages":[],"documents":[{}]}"#),
            (Api::Completions, &many),
        ];
        for (api, body) in table {
            assert_eq!(bodies(api, body, "m"), None, "{body}");
        }
    }

    #[test]
    fn responses_have_tokens() {
        let response = br#"{"count":2,"max_model_len":4096,"tokens":[5,7],"token_strs":null}"#;
        assert_eq!(Tokenized::of(response).unwrap().tokens, [5, 7]);
        for wrong in ["", "{}", "[]", r#"{"tokens":[-1]}"#, r#"{"tokens":[[1]]}"#, r#"{"object":"error"}"#] {
            assert_eq!(Tokenized::of(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn chat_of_gpt_oss_by_vllm_is_another_prompt() {
        let table = [
            (r#"{"tokens":[200006,17360,200008,3575],"token_strs":null}"#, true),
            (r#"{"tokens":[200006,17360,200008,3575],"token_strs":["<|start|>"]}"#, true),
            // SGLang runs what the template makes.
            (r#"{"tokens":[200006,17360,200008,3575]}"#, false),
            (r#"{"tokens":[200006,17360],"token_strs":null}"#, false),
            (r#"{"tokens":[17360,200006,17360,200008],"token_strs":null}"#, false),
        ];
        for (response, expected) in table {
            assert_eq!(
                Tokenized::of(response.as_bytes()).unwrap().is_of_other_prompt(),
                expected,
                "{response}"
            );
        }
    }
}
