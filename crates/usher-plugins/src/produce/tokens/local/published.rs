//! Tokens of published vocabularies, beside those by the tokenizers of who published them.
//!
//! `tests/data/tokenizer/published.py` has sources and licences.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::tests::{encode, encoder, json_of, read};

/// The tokenizer of GPT-2, whose merges are its vocabulary behind the 256 bytes.
fn gpt2() -> Value {
    let merges: Vec<String> = read("gpt2.bpe").lines().skip(1).map(str::to_owned).collect();
    let printable = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ');
    let bytes = printable.chain(('\u{100}'..).take(68)).map(String::from);
    let tokens = bytes.chain(merges.iter().map(|merge| merge.replace(' ', "")));
    let vocab: HashMap<String, usize> = tokens.zip(0..).collect();
    let end = json!({
        "id": vocab.len(), "content": "<|endoftext|>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    json!({
        "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
}

/// The tokenizer of Mistral 7B as transformers converts it: two pieces are merged where both and the whole are known, the
/// first in the vocabulary first, and runs of spaces last, which SentencePiece gives the lowest score.
fn mistral() -> Value {
    /// Pieces before those of text: special tokens and bytes.
    const SPECIAL: usize = 259;
    let pieces = json_of("mistral.json");
    let pieces: Vec<&str> = pieces.as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
    let vocab: HashMap<&str, usize> = pieces.iter().copied().zip(0..).collect();
    let mut of_text: Vec<&str> = pieces[SPECIAL..].to_vec();
    of_text.sort_by_key(|piece| (piece.chars().all(|char| char == '▁'), vocab[piece]));
    let mut merges = Vec::new();
    for piece in of_text {
        let halves = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let mut known: Vec<(&str, &str)> =
            halves.filter(|(left, right)| vocab.contains_key(left) && vocab.contains_key(right)).collect();
        known.sort_by_key(|(left, right)| (vocab[left], vocab[right]));
        merges.extend(known);
    }
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizers = [json!({"type": "Prepend", "prepend": "▁"}), replace];
    json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": merges,
        },
    })
}

#[test]
fn published_vocabularies_give_their_published_tokens() {
    let texts = json_of("published.json");
    for (name, tokenizer) in [("gpt2", gpt2()), ("mistral", mistral())] {
        let encoder = encoder(&tokenizer);
        assert!(encoder.is_fast(), "{name}");
        for row in texts.as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            assert_eq!(json!(encode(&encoder, text).0), row[name], "{name}: {text:?}");
            let plain = encoder.tokenizer.encode_fast(text, false).unwrap();
            assert_eq!(json!(plain.get_ids()), row[name], "{name} on the slow path: {text:?}");
        }
    }
}

/// Rows of the tests of OpenAI's tiktoken 0.14.0 (MIT).
#[test]
fn tokens_of_gpt2_match_those_in_the_tests_of_tiktoken() {
    let encoder = encoder(&gpt2());
    let rows: [(&str, &[u32]); 11] = [
        ("hello world", &[31373, 995]),
        ("hello <|endoftext|>", &[31373, 220, 50256]),
        ("0", &[15]),
        ("00", &[405]),
        ("0000", &[2388]),
        ("00000000", &[8269]),
        ("000000000", &[10535, 830]),
        ("00000000000", &[8269, 830]),
        ("000000000000000", &[8269, 24598]),
        ("0000000000000000", &[25645]),
        ("00000000000000000", &[8269, 10535, 830]),
    ];
    for (text, ids) in rows {
        assert_eq!(encode(&encoder, text).0, ids, "{text:?}");
    }
}
