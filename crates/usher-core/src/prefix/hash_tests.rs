//! Block hashes compared with fixed ones and with a plain loop over the prompt's bytes.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::request::{Headers, ParserKind, Parsers, RequestParser};

/// A request whose body arrives in chunks of a size.
fn parsed(path: &str, body: &str, chunk: usize) -> Request {
    let headers: Headers = [(":path", path)].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&ParserKind::ALL));
    for chunk in body.as_bytes().chunks(chunk) {
        parser.push(bytes::Bytes::copy_from_slice(chunk));
    }
    parser.finish().unwrap()
}

fn completion(body: &serde_json::Value) -> Request {
    parsed("/v1/completions", &body.to_string(), usize::MAX)
}

fn tokens(tokens: u32) -> NonZeroU32 {
    NonZeroU32::new(tokens).unwrap()
}

fn prompts(blocks: &Blocks) -> Vec<Vec<u64>> {
    blocks.prompts().map(<[u64]>::to_vec).collect()
}

/// Every prompt is cut into blocks of so many bytes; what is beyond the bound is left out.
fn plain(seed: u64, texts: &[Vec<u8>], size: usize, max: usize) -> Vec<Vec<u64>> {
    let mut left = max;
    let mut prompts = Vec::new();
    for text in texts {
        if left == 0 {
            break;
        }
        let mut text = text.clone();
        text.resize(text.len().next_multiple_of(4), 0);
        let mut last = seed;
        let hashes: Vec<u64> = text
            .chunks(size)
            .take(left)
            .map(|block| {
                for piece in block.chunks(128) {
                    last = fold(xxh3_64(piece), last);
                }
                last
            })
            .collect();
        left -= hashes.len();
        prompts.push(hashes);
    }
    prompts
}

fn fold(content: u64, before: u64) -> u64 {
    let product = u128::from(content ^ 0x243f_6a88_85a3_08d3) * u128::from(before ^ 0x1319_8a2e_0370_7344);
    product as u64 ^ (product >> 64) as u64
}

fn seed_of(model: &str, salt: Option<&str>) -> u64 {
    let model = xxh3_64(model.as_bytes());
    match salt {
        None | Some("") => model,
        Some(salt) => fold(xxh3_64(salt.as_bytes()), model),
    }
}

/// The hashes come from another implementation, of Python and its package xxhash: with
/// `h = xxhash.xxh3_64_intdigest`, each 128 bytes of a block, and what is left of it, are
/// chained by
///
/// ```python
/// def chain(content, before):
///     product = (content ^ 0x243f6a8885a308d3) * (before ^ 0x13198a2e03707344)
///     return (product ^ product >> 64) & 2**64 - 1
/// ```
#[test]
fn hashes_match_another_implementation() {
    let text = |bytes: usize| ('a'..='z').cycle().take(bytes).collect::<String>();
    let plain = json!({"model": "m", "prompt": text(300)});
    let salted = json!({"model": "m", "prompt": text(300), "cache_salt": "s"});
    let several = json!({"model": "m", "prompt": ["ab", "", "ab"]});
    let short = vec![0x013e_088c_48fe_961d];
    let table: [(u32, &serde_json::Value, Vec<Vec<u64>>); 4] = [
        (64, &plain, vec![vec![0xd3f7_4886_c163_c477, 0x1227_56c9_454e_9290]]),
        (64, &salted, vec![vec![0x4219_b523_c871_c946, 0x38ce_2a03_41fa_cf58]]),
        (64, &several, vec![short.clone(), vec![], short]),
        (
            100,
            &json!({"model": "m", "prompt": text(900)}),
            vec![vec![0xd116_6ab6_9130_6323, 0x4aa9_8a45_86d4_2bff, 0x76b8_91ac_807b_c408]],
        ),
    ];
    for (size, body, want) in table {
        assert_eq!(prompts(&Blocks::of(&completion(body), tokens(size), 100)), want, "{body}");
    }
}

#[test]
fn other_models_and_salts_have_other_blocks() {
    let body = |model: &str, salt: Option<&str>| {
        let mut body = json!({"model": model, "prompt": "the same"});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        Blocks::of(&completion(&body), tokens(64), 9).hashes().to_vec()
    };
    let all =
        [body("m", None), body("n", None), body("m", Some("s")), body("m", Some("t")), body("ms", None)];
    for (index, hashes) in all.iter().enumerate() {
        assert_eq!(hashes.len(), 1);
        assert!(!all[..index].contains(hashes), "{index}");
    }
    assert_eq!(body("m", Some("s")), all[2]);
    assert_eq!(body("m", Some("")), all[0], "an empty salt is none");
    let escaped = r#"{"model":"m","prompt":"the same","cache_salt":"\u0073"}"#;
    let request = parsed("/v1/completions", escaped, usize::MAX);
    assert_eq!(Blocks::of(&request, tokens(64), 9).hashes(), all[2], "the salt without its escapes");
}

#[test]
fn no_more_blocks_than_asked_for_are_read() {
    let request =
        completion(&json!({"model": "m", "prompt": ["a".repeat(16), "b".repeat(24), "c".repeat(8)]}));
    let mut blocks = Blocks::default();
    let counts = [
        (0, vec![]),
        (1, vec![1]),
        (2, vec![2]),
        (3, vec![2, 1]),
        (5, vec![2, 3]),
        (6, vec![2, 3, 1]),
        (usize::MAX, vec![2, 3, 1]),
    ];
    for (max, want) in counts {
        blocks.read(&request, tokens(2), max);
        let lens: Vec<usize> = blocks.prompts().map(<[u64]>::len).collect();
        assert_eq!((lens, blocks.len()), (want.clone(), want.iter().sum()), "{max}");
    }
    blocks.read(&Request::default(), tokens(2), 9);
    assert!(blocks.is_empty() && blocks.prompts().next().is_none(), "nothing was read");
}

proptest! {
    /// However the body arrives and whatever is escaped in it, the hashes are those of the
    /// prompts' plain bytes, one after the other.
    #[test]
    fn pieces_have_the_hashes_of_the_whole(
        texts in prop::collection::vec("[a-z\n\"\\\\é]{0,300}", 1..4),
        chunk in 1..400usize,
        size in 1..40u32,
        max in 1..200usize,
        salt in prop::option::of("[a-z\n]{0,5}"),
    ) {
        let mut body = json!({"model": "some-model", "prompt": texts});
        if let Some(salt) = &salt {
            body["cache_salt"] = salt.as_str().into();
        }
        let request = parsed("/v1/completions", &body.to_string(), chunk);
        let blocks = Blocks::of(&request, tokens(size), max);
        let bytes: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
        let want = plain(seed_of("some-model", salt.as_deref()), &bytes, size as usize * 4, max);
        let got = prompts(&blocks);
        prop_assert_eq!(&got, &want);
        prop_assert_eq!(blocks.hashes(), want.concat());
        let all = prompts(&Blocks::from_prompts(&want));
        prop_assert_eq!(all, want);
        let count = bytes.iter().map(|text| text.len().div_ceil(4) as u64).sum::<u64>();
        let whole = blocks.len() < max;
        prop_assert_eq!(blocks.tokens(), whole.then_some(count));
    }
}
