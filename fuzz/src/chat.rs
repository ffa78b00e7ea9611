//! Bodies of chats and completions, and the tokens of their prompts.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use usher_core::request::{Api, Body};
use usher_plugins::DirectTokenizer;

use super::input::Input;

const TOKENIZERS: [&str; 2] = ["bytes.json", "spaces.json"];
const TEMPLATES: [&str; 3] = ["chatml.jinja", "turns.jinja", "parts.jinja"];
/// Types of parts that are text.
const TEXTS: [&str; 5] = ["text", "input_text", "output_text", "refusal", "thinking"];
/// Bytes that a tokenizer remembers.
const CACHE: u64 = 1 << 14;

/// The first line chooses the API, tokenizer and template, the rest is a body.
///
/// - Tokens are those of the text by the general path of `tokenizers`, seen before or not.
/// - A chat with images, audio or video has none.
pub fn chat(bytes: &[u8]) {
    let input = Input::of(bytes);
    let choice = usize::from(input.setting(1) % 2) * TEMPLATES.len() + usize::from(input.setting(2) % 3);
    let mut tokenizer = tokenizers()[choice].lock().unwrap_or_else(PoisonError::into_inner);
    let data = Bytes::copy_from_slice(input.data);
    let api = if input.setting(0).is_multiple_of(2) { Api::ChatCompletions } else { Api::Completions };
    let found = tokenizer.tokens(api, body(&data));
    assert_eq!(tokenizer.tokens(api, body(&data)), found, "they change when they are asked for again");
    // Members that nobody reads may have anything.
    let (Some(found), Ok(value)) = (found, serde_json::from_slice::<Value>(&data)) else { return };
    let special = value.get("add_special_tokens").and_then(Value::as_bool);
    let texts = if api == Api::Completions {
        match &value["prompt"] {
            Value::String(text) => vec![text.clone()],
            Value::Array(texts) => {
                texts.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
            }
            other => panic!("{other} has tokens"),
        }
    } else {
        let parts = value["messages"].as_array().into_iter().flatten();
        let parts = parts.flat_map(|message| message["content"].as_array().into_iter().flatten());
        assert!(parts.map(|part| &part["type"]).all(is_text), "more than text has tokens");
        vec![tokenizer.text(&data).expect("what has tokens has a text")]
    };
    let special = special.unwrap_or(api == Api::Completions);
    assert_eq!(found.prompts.len(), texts.len());
    for (prompt, text) in found.prompts.iter().zip(&texts) {
        let plain = tokenizer.plain(text, special).expect("it has tokens");
        assert_eq!(prompt.ids, plain, "{text:?}");
        assert!(prompt.items.is_empty());
    }
}

fn is_text(kind: &Value) -> bool {
    kind.is_null() || kind.as_str().is_some_and(|kind| TEXTS.contains(&kind))
}

fn body(data: &Bytes) -> Body {
    let mut body = Body::default();
    body.push(data.clone());
    body.seal();
    body
}

/// A tokenizer for each file and template.
fn tokenizers() -> &'static [Mutex<DirectTokenizer>] {
    static ALL: OnceLock<Vec<Mutex<DirectTokenizer>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let folder = folder();
        let open = |tokenizer: &str, template: &str| {
            DirectTokenizer::with_template(&folder.join(tokenizer), &folder.join(template), CACHE)
                .expect("the tests' tokenizers can be read")
        };
        let all = TOKENIZERS.iter().flat_map(|tokenizer| TEMPLATES.map(|template| open(tokenizer, template)));
        all.map(Mutex::new).collect()
    })
}

/// Folder of the tests' tokenizers; this file is built in two packages.
fn folder() -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut folders = folders.map(|folder| folder.join("tests/data/tokenizer"));
    folders.find(|folder| folder.exists()).expect("the tests' tokenizers are there")
}
