//! Beside references: token ids of the PyPI package `tokenizers`, chats of jinja2. `tests/data/tokenizer/make.py`
//! made them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::Tokenizer;
use usher_core::memory::{Budget, Kind};
use usher_core::request::{Api, Body};

use super::super::room::Room;
use super::DirectTokenizer;
use super::encode_failure::EncodeFailure;
use super::encoder::{Encoder, Sources, Turn};
use super::fast::Words;
use super::files::parse;
use super::pieces::PATTERNS;
use super::size::{ModelKind, Size};
use super::template::ChatTemplate;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tokenizer")
}

pub(super) fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

pub(super) fn json_of(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap()
}

pub(super) fn encoder(tokenizer: &Value) -> Encoder {
    Encoder::new(tokenizer.to_string().parse().unwrap(), 1 << 20, &Default::default()).unwrap()
}

/// The same with as many cuts as there can be, so that each of them is tried.
fn in_small_pieces(tokenizer: &Value) -> Encoder {
    Encoder::with_pieces(tokenizer.to_string().parse().unwrap(), 1, 1 << 20, &Default::default()).unwrap()
}

pub(super) fn encode(encoder: &Encoder, text: &str) -> (Vec<u32>, Sources) {
    let mut ids = Vec::new();
    let sources = try_encode(encoder, &Arc::default(), text, &mut ids).unwrap();
    (ids, sources)
}

fn try_encode(
    encoder: &Encoder,
    budget: &Arc<Budget>,
    text: &str,
    ids: &mut Vec<u32>,
) -> Result<Sources, EncodeFailure> {
    let (mut words, mut room) = (Words::default(), Room::new(budget));
    encoder.encode(text, &mut Turn { words: &mut words, is_over: &|| false, room: &mut room }, ids)
}

#[test]
fn tokens_match_the_reference() {
    let reference = json_of("reference.json");
    for name in ["bytes", "spaces"] {
        let encoder = encoder(&json_of(&format!("{name}.json")));
        assert!(encoder.is_fast(), "{name}");
        for row in reference["texts"].as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let ids = [&encoder.around.0, &encode(&encoder, text).0, &encoder.around.1]
                .map(|ids| ids.as_slice())
                .concat();
            assert_eq!(json!(ids), row[name], "{name}: {text:?}");
        }
    }
}

#[test]
fn known_model_type_parses_like_a_detected_one() {
    let unigram = r#"{"version":"1.0","truncation":null,"padding":null,
        "added_tokens":[{"id":0,"content":"<unk>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,
        "model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["a",-1.0],["ab",-1.5]]}}"#;
    for text in [read("bytes.json"), read("spaces.json"), unigram.to_owned()] {
        let kind = Size::of(&text).unwrap().model.kind;
        assert_ne!(kind, ModelKind::Unknown);
        let [known, unknown] = [kind, ModelKind::Unknown].map(|kind| parse(&text, kind).unwrap());
        let json = |tokenizer: &Tokenizer| serde_json::to_value(tokenizer).unwrap();
        assert_eq!(json(&known), json(&unknown));
    }
}

#[test]
fn chats_match_the_reference() {
    let special =
        [("bos_token", "<|bos|>"), ("eos_token", "<|eos|>")].map(|(name, text)| (name.into(), text.into()));
    for row in json_of("reference.json")["chats"].as_array().unwrap() {
        let name = row["template"].as_str().unwrap();
        let template =
            ChatTemplate::compile(&[(name.to_owned(), read(&format!("{name}.jinja")))], None).unwrap();
        // From text, as a request has it: a map of `Value`s would be sorted.
        let chat: super::chat::Chat = serde_json::from_str(&body_of(row)).unwrap();
        let text = chat.render(&template, &special).ok();
        assert_eq!(text.as_deref(), row["text"].as_str(), "{name}: {}", row["body"]);
    }
}

/// The body of a chat as the reference has it, its members in order.
fn body_of(row: &Value) -> String {
    #[derive(serde::Deserialize)]
    struct Rows<'a> {
        #[serde(borrow)]
        chats: Vec<Chat<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct Chat<'a> {
        #[serde(borrow)]
        body: &'a serde_json::value::RawValue,
    }
    let text = read("reference.json");
    let rows: Rows<'_> = serde_json::from_str(&text).unwrap();
    let same = |chat: &&Chat<'_>| serde_json::from_str::<Value>(chat.body.get()).unwrap() == row["body"];
    rows.chats.iter().find(same).unwrap().body.get().to_owned()
}

/// The tokenizer with bytes, with another pattern of words, another normalizer, and other flags of `<tool>`.
fn variant(pattern: usize, nfc: bool, flags: [bool; 4]) -> Value {
    let mut tokenizer = json_of("bytes.json");
    tokenizer["normalizer"] = if nfc { json!({"type": "NFC"}) } else { Value::Null };
    // A token that a cut between two line feeds would take apart.
    tokenizer["model"]["vocab"]["ĊĊ"] = 908.into();
    tokenizer["model"]["merges"].as_array_mut().unwrap().push(json!(["Ċ", "Ċ"]));
    let steps = tokenizer["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap();
    let split = |pattern| {
        let pattern = json!({ "Regex": pattern });
        json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
    };
    match pattern {
        0 => {
            tokenizer["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        }
        DEEPSEEK => {
            steps.splice(0..1, DEEPSEEK_PATTERNS.map(split));
            if !nfc {
                tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": []});
            }
        }
        usual => steps[0] = split(PATTERNS[usual]),
    }
    set_flags(&mut tokenizer, "<tool>", flags);
    tokenizer
}

const DEEPSEEK: usize = PATTERNS.len();
/// The patterns of DeepSeek V3, one after the other.
const DEEPSEEK_PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// Sets `lstrip`, `rstrip`, `single_word` and `normalized` of an added token.
fn set_flags(tokenizer: &mut Value, content: &str, flags: [bool; 4]) {
    let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
    let token = tokens.iter_mut().find(|token| token["content"] == content).unwrap();
    for (flag, value) in ["lstrip", "rstrip", "single_word", "normalized"].into_iter().zip(flags) {
        token[flag] = value.into();
    }
}

/// Ways to write spaces as letters: by a normalizer, or before words are split.
const SPACED: usize = 8;

/// The tokenizer with spaces as letters in one of these ways, and other flags of `<|im_end|>`.
fn spaced(way: usize, flags: [bool; 4]) -> Value {
    let mut tokenizer = json_of("spaces.json");
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let (normalizer, splits) = match way {
        0 => (json!({"type": "NFKC"}), metaspace("first", true)),
        1 => (json!({"type": "NFD"}), metaspace("always", true)),
        2 => (Value::Null, metaspace("never", true)),
        3 => (Value::Null, metaspace("first", false)),
        4 => (Value::Null, metaspace("always", false)),
        // Llama 2, Gemma.
        5 => (json!({"type": "Sequence", "normalizers": [prepend, replace]}), Value::Null),
        6 => (replace, split),
        _ => (json!({"type": "Lowercase"}), metaspace("first", true)),
    };
    (tokenizer["normalizer"], tokenizer["pre_tokenizer"]) = (normalizer, splits);
    tokenizer["model"]["vocab"]["▁▁"] = 600.into();
    tokenizer["model"]["merges"].as_array_mut().unwrap().push(json!(["▁", "▁"]));
    set_flags(&mut tokenizer, "<|im_end|>", flags);
    tokenizer
}

/// Texts of what tokenizers look at: spaces, line ends, indented and empty lines, letters, digits, marks, added tokens.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z]{1,9}",
        2 => "[ \t▁]{1,3}",
        3 => "\n{1,3}",
        1 => "(\r\n){1,2}",
        1 => "[.;,a]?\n( {2,8}|\t)[-*]? ?",
        1 => "[0-9]{1,5}",
        2 => "[.,!'/(\r\n]{1,3}",
        1 => Just("\u{301}".to_owned()),
        1 => "[é日ßΩ\u{a0}\u{3000}👩]{1,3}",
        1 => "[日本語かなカナ한국어жизнь]{1,4}[。，、 \n]?",
        1 => "[\u{301}\u{85}\u{2028}\u{180e}\u{1c}\u{200b}]",
        1 => prop::sample::select(vec!["<tool>", "<|eos|>", "<|im_start|>", "<|im_end|>", "  of  ", "'s", "'LL"])
            .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..900).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// By pieces, by words and from what was seen before, tokens are those of the whole text from scratch.
    #[test]
    fn tokens_of_pieces_match_the_whole(
        pattern in 0..=DEEPSEEK, nfc: bool, flags: [bool; 4], is_plain: bool, text in text(), more in text(),
    ) {
        let flags = if is_plain { [false; 4] } else { flags };
        let tokenizer = variant(pattern, nfc, flags);
        let plain: Tokenizer = tokenizer.to_string().parse().unwrap();
        let encoder = in_small_pieces(&tokenizer);
        let longer = format!("{text}{more}");
        for text in [&text, &longer, &longer, &text] {
            let expected = plain.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            prop_assert_eq!(encode(&encoder, text).0, expected);
        }
    }

    /// The same where spaces are letters.
    #[test]
    fn tokens_of_spaced_pieces_match_the_whole(
        way in 0..SPACED, flags: [bool; 4], is_plain: bool, text in text(), more in text(),
    ) {
        let flags = if is_plain { [false; 4] } else { flags };
        let tokenizer = spaced(way, flags);
        let plain: Tokenizer = tokenizer.to_string().parse().unwrap();
        let encoder = in_small_pieces(&tokenizer);
        for text in [&text, &format!("{text}{more}")] {
            let expected = plain.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            prop_assert_eq!(encode(&encoder, text).0, expected);
        }
    }
}

#[test]
fn tokenizers_of_known_models_are_fast() {
    for strips in [false, true] {
        let flags = [false, strips, false, false];
        for pattern in 0..=DEEPSEEK {
            assert!(encoder(&variant(pattern, true, flags)).is_fast(), "{pattern}");
        }
        for way in 0..SPACED - 1 {
            assert!(encoder(&spaced(way, flags)).is_fast(), "{way}");
        }
    }
    assert!(!encoder(&spaced(SPACED - 1, [false; 4])).is_fast(), "an unknown normalizer");
    assert!(!encoder(&spaced(0, [true; 4])).is_fast(), "an added token that looks around");
}

#[test]
fn words_that_depend_on_their_neighbours_are_not_split() {
    for (way, is_fast) in [(0, true), (3, false), (5, false)] {
        let mut tokenizer = spaced(way, [false; 4]);
        tokenizer["model"]["vocab"]["e▁"] = 601.into();
        tokenizer["model"]["merges"].as_array_mut().unwrap().push(json!(["e", "▁"]));
        assert_eq!(encoder(&tokenizer).is_fast(), is_fast, "{way}");
    }
    for pattern in [r"\b\w+|\s+(?!\S)|\s+", r"\w*|\s+(?!\S)|\s+", r"^\w+", r"\w+(?!\S)"] {
        let mut tokenizer = variant(1, false, [false; 4]);
        tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"] = json!({ "Regex": pattern });
        assert!(!encoder(&tokenizer).is_fast(), "{pattern}");
    }
}

#[test]
fn repeated_prefix_is_tokenized_once() {
    let encoder = encoder(&json_of("bytes.json"));
    let turn =
        |n: usize| format!("<|im_start|>user\nQuestion {n}: {}\n<|im_end|>\n", "why, and how? ".repeat(40));
    let chat: String = (0..50).map(turn).collect();
    let (_, first) = encode(&encoder, &chat);
    assert_eq!((first.cached, first.encoded), (0, chat.len() as u64));
    let (_, second) = encode(&encoder, &(chat.clone() + &turn(50)));
    assert!(second.encoded < 3 * 1024, "{second:?}");
    assert_eq!(second.cached + second.encoded, (chat.len() + turn(50).len()) as u64);
}

#[test]
fn repeated_prefix_of_any_text_is_tokenized_once() {
    for (name, text) in [
        ("lines", "A line of text, as pages have.\n"),
        ("paragraphs", "A paragraph of text.\n\n"),
        ("code", "    if x {\n        return;\n    }\n\n"),
        ("a list", "- one\n- two\n\n  1. three\n"),
        ("carriage returns", "A line.\r\n\r\n"),
        ("one line", "words and words, "),
        ("JSON", "{\"a\": [1, 2, {\"b\": \"c\"}]},"),
        ("Russian", "Все счастливые семьи похожи друг на друга.\n\n"),
        ("Chinese", "学而时习之，不亦说乎。"),
    ] {
        let encoder = encoder(&json_of("bytes.json"));
        let page = text.repeat(12_000 / text.len());
        let _ = encode(&encoder, &page);
        let (_, longer) = encode(&encoder, &(page + text));
        assert!(longer.encoded < 2 * 1024, "{name}: {longer:?}");
    }
}

#[test]
fn long_words_and_texts_without_room_have_no_tokens() {
    let budget = Arc::new(Budget::new(4 << 20, 0));
    for name in ["bytes", "spaces"] {
        let encoder = encoder(&json_of(&format!("{name}.json")));
        let failure = |text: &str| try_encode(&encoder, &budget, text, &mut Vec::new()).err();
        assert_eq!(failure(&"x".repeat(20_000)), None, "{name}");
        assert_eq!(failure(&"x".repeat(60_000)), Some(EncodeFailure::NoRoom), "{name}");
        let unlimited = try_encode(&encoder, &Arc::default(), &"x".repeat(70_000), &mut Vec::new());
        assert_eq!(unlimited, Err(EncodeFailure::LongWord), "{name}");
        assert_eq!(budget.used(Kind::Bodies), 0);
    }
}

#[test]
fn llama_flags_add_bos_and_eos() {
    let files = std::env::temp_dir().join(format!("usher-flags-{}", std::process::id()));
    std::fs::create_dir_all(&files).unwrap();
    std::fs::copy(folder().join("bytes.json"), files.join("tokenizer.json")).unwrap();
    let ids = |config: Value| {
        std::fs::write(files.join("tokenizer_config.json"), config.to_string()).unwrap();
        let mut tokenizer = DirectTokenizer::open(&files, 0).unwrap();
        let mut body = Body::default();
        body.push(Bytes::from_static(br#"{"prompt":"a"}"#));
        tokenizer.tokens(Api::Completions, body).unwrap().prompts[0].ids.clone()
    };
    let (bos, a, eos) = (900, 64, 901);
    for class in ["LlamaTokenizer", "LlamaTokenizerFast"] {
        for (add_bos, add_eos, expected) in [
            (json!(true), json!(true), vec![bos, a, eos]),
            (json!(false), json!(false), vec![a]),
            (json!(null), json!(true), vec![bos, a, eos]),
            (json!(false), json!(null), vec![a]),
            (json!(null), json!(null), vec![bos, a]),
        ] {
            let config = json!({
                "tokenizer_class": class, "bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"},
                "add_bos_token": add_bos, "add_eos_token": add_eos,
            });
            assert_eq!(ids(config.clone()), expected, "{config}");
        }
    }
    let other =
        json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "add_bos_token": false});
    assert_eq!(ids(other), [bos, a], "it ignores them");
    std::fs::remove_dir_all(&files).unwrap();
}
