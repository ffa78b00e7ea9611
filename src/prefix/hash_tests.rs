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
                last = xxh3_64(&[xxh3_64(block).to_le_bytes(), last.to_le_bytes()].concat());
                last
            })
            .collect();
        left -= hashes.len();
        prompts.push(hashes);
    }
    prompts
}

fn seed_of(model: &str, salt: Option<&str>) -> u64 {
    let model = xxh3_64(model.as_bytes());
    let salted =
        |salt: &str| xxh3_64(&[xxh3_64(salt.as_bytes()).to_le_bytes(), model.to_le_bytes()].concat());
    salt.map_or(model, salted)
}

/// The hashes come from another implementation, python-xxhash:
///
/// ```python
/// def chain(content, before): return h(content.to_bytes(8, "little") + before.to_bytes(8, "little"))
/// h = xxhash.xxh3_64_intdigest  # of 256 bytes at a time, the text's end filled up to four with zeros
/// ```
#[test]
fn hashes_are_those_of_another_implementation() {
    let text: String = ('a'..='z').cycle().take(300).collect();
    let plain = json!({"model": "m", "prompt": text});
    let salted = json!({"model": "m", "prompt": text, "cache_salt": "s"});
    let several = json!({"model": "m", "prompt": ["ab", "", "ab"]});
    let short = vec![0xa0fd_4747_a8d9_f00b];
    let table: [(&serde_json::Value, Vec<Vec<u64>>); 3] = [
        (&plain, vec![vec![0x827f_9619_7b96_6579, 0x5baf_f975_8ad8_9d14]]),
        (&salted, vec![vec![0x5a60_1daa_e7e0_98c3, 0xb482_a57c_6c16_525f]]),
        (&several, vec![short.clone(), vec![], short]),
    ];
    for (body, want) in table {
        assert_eq!(prompts(&Blocks::of(&completion(body), tokens(64), 100)), want, "{body}");
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
        prop_assert_eq!(Blocks::from_prompts(&want), blocks);
    }
}
