//! Vocabularies of any length, made up.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Bytes of a token at most.
const LONGEST: usize = 12;

/// Type of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Model {
    Bpe,
    WordPiece,
    Unigram,
}

/// A tokenizer.json whose vocabulary has so many entries: letters, and what merges make of two earlier ones.
pub(crate) fn tokenizer(model: Model, entries: usize) -> String {
    let mut tokens: Vec<String> =
        ["[UNK]".to_owned(), "Ġ".to_owned()].into_iter().chain(('!'..='~').map(String::from)).collect();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    let mut merges = Vec::new();
    let mut state = 1u64;
    let mut below = |end: usize| {
        // Constants of Knuth's MMIX.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    while tokens.len() < entries {
        let [left, right] = [(); 2].map(|()| &tokens[1 + below(tokens.len() - 1)]);
        let token = format!("{left}{right}");
        if token.len() > LONGEST || known.contains(&token) {
            continue;
        }
        merges.push(format!("{left} {right}"));
        known.insert(token.clone());
        tokens.push(token);
    }
    let numbered: Map<String, Value> =
        (0u32..).zip(&tokens).map(|(id, token)| (token.clone(), id.into())).collect();
    let model = match model {
        Model::Bpe => json!({"type": "BPE", "vocab": numbered, "merges": merges}),
        Model::WordPiece => json!({
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": numbered
        }),
        Model::Unigram => {
            let scored: Vec<Value> = tokens.iter().map(|token| json!([token, -1.5])).collect();
            json!({"type": "Unigram", "unk_id": 0, "vocab": scored, "byte_fallback": false})
        }
    };
    let pre_tokenizer =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null, "model": model
    })
    .to_string()
}
