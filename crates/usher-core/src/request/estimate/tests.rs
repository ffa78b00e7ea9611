//! Estimates of requests as their parsers read them.

use proptest::prelude::*;
use serde_json::json;
use xxhash_rust::xxh64::xxh64;

use super::*;
use crate::request::{Headers, ParserKind, Parsers, RequestParser};

/// A request whose body arrives in chunks of a size.
fn parsed(path: &str, headers: &[(&str, &str)], body: &str, chunk: usize) -> Request {
    let headers: Headers = [(":path", path)].into_iter().chain(headers.iter().copied()).collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&ParserKind::ALL));
    for chunk in body.as_bytes().chunks(chunk) {
        parser.push(bytes::Bytes::copy_from_slice(chunk));
    }
    parser.finish().unwrap()
}

fn completion(prompt: &str) -> Request {
    parsed("/v1/completions", &[], &format!(r#"{{"model":"m","prompt":{prompt}}}"#), usize::MAX)
}

fn chat(messages: &serde_json::Value) -> Request {
    let body = json!({"model": "m", "messages": messages}).to_string();
    parsed("/v1/chat/completions", &[], &body, usize::MAX)
}

/// The prompts as bytes.
fn prompts(request: &Request) -> Vec<Vec<u8>> {
    let (mut prompts, mut prompt) = (Vec::new(), Vec::new());
    chunks(request, |chunk| {
        match chunk {
            Chunk::Bytes(bytes) => prompt.extend_from_slice(bytes),
            Chunk::End => prompts.push(std::mem::take(&mut prompt)),
        }
        ControlFlow::Continue(())
    });
    assert!(prompt.is_empty(), "every prompt has an end");
    prompts
}

#[test]
fn a_completion_is_its_text_and_ids_are_themselves() {
    let ids = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let table: [(&str, u64, Vec<Vec<u8>>); 8] = [
        (r#""abcdefgh""#, 2, vec![b"abcdefgh".to_vec()]),
        (r#""abcdefghi""#, 3, vec![b"abcdefghi\0\0\0".to_vec()]),
        (r#""a\n\u00e9\"""#, 2, vec!["a\né\"\0\0\0".into()]),
        (r#"["abcde", "", "f"]"#, 3, vec![b"abcde\0\0\0".to_vec(), Vec::new(), b"f\0\0\0".to_vec()]),
        (r#"["abcde"]"#, 2, vec![b"abcde\0\0\0".to_vec()]),
        ("[1, 258,\n 4294967295]", 3, vec![ids(&[1, 258, u32::MAX])]),
        ("[7]", 1, vec![ids(&[7])]),
        ("[7.0, 1e3]", 2, vec![ids(&[7, 1000])]),
    ];
    for (prompt, tokens, bytes) in table {
        let request = completion(prompt);
        assert_eq!(count(&request), Some(tokens), "{prompt}");
        assert_eq!(prompts(&request), bytes, "{prompt}");
    }
}

#[test]
fn a_chat_is_tools_then_role_and_text_of_each_message() {
    let body = r#"{"model":"m","messages":[
        {"content":"be brief","role":"system"},
        {"role":"user","content":[{"type":"text","text":"a\tb"},{"type":"text","text":"cd"}]}
    ],"tools":[{"x": 1}]}"#;
    let request = parsed("/v1/chat/completions", &[], body, 7);
    let text = b"[{\"x\": 1}]systembe briefusera\tbcd";
    assert_eq!(text.len(), 33);
    assert_eq!(prompts(&request), [[&text[..], &[0; 3]].concat()]);
    assert_eq!(count(&request), Some(9));
}

/// The first bytes of a PNG of 64 by 32 pixels: two tokens.
const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAAAgCAIAAAA=";

#[test]
fn media_begin_at_a_token_and_repeat_their_hash() {
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let link = "http://example.com/a.png";
    let request = chat(&json!([{"role": "u", "content": [
        {"type": "text", "text": "abcd"},
        image(PNG),
        {"type": "text", "text": "e"},
        {"type": "input_audio", "input_audio": {"data": "123456789", "format": "wav"}},
        image(link),
    ]}]));
    let token = |text: &str| (xxh64(text.as_bytes(), 0) as u32).to_le_bytes();
    let want = [
        b"uabcd\0\0\0".to_vec(),
        token(PNG).repeat(2),
        b"e\0\0\0".to_vec(),
        token("123456789").repeat(3),
        token(link).repeat(225),
    ];
    assert_eq!(prompts(&request), [want.concat()]);
    assert_eq!(count(&request), Some(2 + 2 + 1 + 3 + 225));
    let want = [(Modality::Image, PNG), (Modality::Audio, "123456789"), (Modality::Image, link)];
    let want = want.map(|(modality, text)| Medium { modality, hash: xxh64(text.as_bytes(), 0) });
    assert_eq!(media(&request).collect::<Vec<_>>(), want);
}

#[test]
fn escaped_image_url_has_the_same_identity() {
    let body = |url: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
        )
    };
    let read = |url: &str, chunk| {
        let request = parsed("/v1/chat/completions", &[], &body(url), chunk);
        (count(&request), prompts(&request), media(&request).collect::<Vec<_>>())
    };
    let plain = read(PNG, usize::MAX);
    assert_eq!(plain.0, Some(2));
    assert_eq!(read(&PNG.replace('/', r"\/"), usize::MAX), plain);
    assert_eq!(read(&PNG.replace('/', r"\/"), 3), plain);
    assert_eq!(read(PNG, 3), plain);
}

#[test]
fn video_tokens_follow_the_duration_header() {
    let body = json!({"model": "m", "messages": [{"content": [
        {"type": "video_url", "video_url": {"url": "http://example.com/a.mp4"}},
        {"type": "video_url", "video_url": {"url": ""}},
    ]}]});
    let read = |headers: &[(&str, &str)]| {
        count(&parsed("/v1/chat/completions", headers, &body.to_string(), usize::MAX))
    };
    assert_eq!(read(&[]), Some(2 * 20 * 225));
    assert_eq!(read(&[("x-llm-d-video-duration-seconds", "1")]), Some(2 * 2 * 225));
    let request = parsed("/v1/chat/completions", &[], &body.to_string(), usize::MAX);
    assert_eq!(media(&request).count(), 1, "what has no content is no item");
}

#[test]
fn chunk_callback_can_stop_the_iteration() {
    let request = chat(&json!([{"role": "u", "content": [
        {"type": "image_url", "image_url": {"url": "http://x"}}, {"type": "text", "text": "never"},
    ]}]));
    let mut given = Vec::new();
    chunks(&request, |chunk| {
        let Chunk::Bytes(bytes) = chunk else { panic!("{given:?}") };
        given.push(bytes.len());
        if given.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(given, [1, 3, 256]);
}

#[test]
fn tokenized_images_are_identified_by_hash() {
    let body =
        r#"{"model":"m","token_ids":[1,2,3],"features":{"mm_hashes":{"image":["a","\u0062",""],"x":["c"]}}}"#;
    for chunk in [3, usize::MAX] {
        let request = parsed("/inference/v1/generate", &[], body, chunk);
        assert_eq!(count(&request), Some(3));
        let image = |hash: &str| Medium { modality: Modality::Image, hash: xxh64(hash.as_bytes(), 0) };
        assert_eq!(media(&request).collect::<Vec<_>>(), [image("a"), image("b")]);
    }
}

#[test]
fn unread_request_has_no_estimate() {
    let request = Request::default();
    assert_eq!((count(&request), media(&request).count()), (None, 0));
    assert!(prompts(&request).is_empty());
}

/// A block of a message, and what it adds to the prompt.
#[derive(Clone, Debug)]
enum Block {
    Text(String),
    Image(String),
    Audio(String),
    Video(String),
}

impl Block {
    fn json(&self) -> serde_json::Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
            Self::Video(url) => json!({"type": "video_url", "video_url": {"url": url}}),
            Self::Audio(data) => json!({"type": "input_audio", "input_audio": {"data": data}}),
        }
    }

    /// The bytes of the prompt behind it.
    fn append(&self, bytes: &mut Vec<u8>) {
        let (content, tokens) = match self {
            Self::Text(text) => return bytes.extend_from_slice(text.as_bytes()),
            Self::Image(url) => (url, 225),
            Self::Video(url) => (url, 4500),
            Self::Audio(data) => (data, data.len().div_ceil(4)),
        };
        while !bytes.len().is_multiple_of(4) {
            bytes.push(0);
        }
        let word = xxh64(content.as_bytes(), 0) as u32;
        for _ in 0..tokens {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
}

fn block() -> impl Strategy<Value = Block> {
    let text = || "[a-z\n\"/\u{e9}]{0,9}";
    prop_oneof![
        4 => any::<String>().prop_map(Block::Text),
        1 => text().prop_map(|url| Block::Image(format!("http://{url}"))),
        1 => text().prop_map(Block::Video),
        1 => text().prop_map(Block::Audio),
    ]
}

proptest! {
    #[test]
    fn chat_estimate_matches_its_content_blocks(
        messages in prop::collection::vec(("[a-z]{0,5}", prop::collection::vec(block(), 0..4)), 1..4),
        chunk in 1usize..300,
    ) {
        let mut want = Vec::new();
        let mut list = Vec::new();
        for (role, blocks) in &messages {
            want.extend_from_slice(role.as_bytes());
            blocks.iter().for_each(|block| block.append(&mut want));
            let content: Vec<_> = blocks.iter().map(Block::json).collect();
            list.push(json!({"role": role, "content": content}));
        }
        want.resize(want.len().next_multiple_of(4), 0);
        let body = json!({"model": "m", "messages": list}).to_string();
        let request = parsed("/v1/chat/completions", &[], &body, chunk);
        prop_assert_eq!(count(&request), Some(want.len() as u64 / 4));
        prop_assert_eq!(prompts(&request).concat(), want);
    }

    #[test]
    fn prompts_of_a_list_are_counted_each_on_its_own(texts in prop::collection::vec(any::<String>(), 1..5)) {
        let request = completion(&json!(texts).to_string());
        let want: Vec<usize> = texts.iter().map(|text| text.len().div_ceil(4)).collect();
        prop_assert_eq!(prompts(&request).iter().map(|bytes| bytes.len() / 4).collect::<Vec<_>>(), &want[..]);
        prop_assert_eq!(count(&request), Some(want.iter().sum::<usize>() as u64));
    }
}
