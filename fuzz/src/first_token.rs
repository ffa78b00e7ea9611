//! First tokens of event streams.

use bytes::Bytes;
use usher::request::Api;
use usher::request::first_token::FirstTokenReader;

use super::frames;
use super::input::Input;
use super::tree::{Kind, Node};

/// Members of generated content that are not generated.
const LABELS: [&str; 5] = ["role", "id", "type", "stop_reason", "stop_sequence"];

/// Checks that every split finds the first token with the same byte. Returns how many bytes
/// have passed then; the outer `None` is of an API that has no reader.
pub fn passed(api: Api, input: &Input<'_>) -> Option<Option<usize>> {
    FirstTokenReader::of(api)?;
    let [whole, bytes, cut] = input.splits(0);
    let at = ends(api, &bytes);
    for chunks in [whole, cut] {
        let mut end = 0;
        let holding = at.map(|at| {
            chunks.iter().map(Bytes::len).find_map(|len| {
                end += len;
                (end >= at).then_some(end)
            })
        });
        assert_eq!(ends(api, &chunks), holding.flatten(), "another split finds another first token");
    }
    if api == Api::VllmGrpcGenerate
        && let Some((again, has_tokens)) = frames::generated(input.data)
    {
        assert_eq!(ends(api, &[again]).is_some(), has_tokens, "written again");
    }
    Some(at)
}

/// The end of the chunk with the first token.
fn ends(api: Api, chunks: &[Bytes]) -> Option<usize> {
    let mut reader = FirstTokenReader::of(api).expect("the response is read");
    let mut passed = 0;
    chunks.iter().find_map(|chunk| {
        passed += chunk.len();
        reader.feed(chunk).then_some(passed)
    })
}

/// Returns `true` if a stream begins as one does; the first bytes of others stand for the token.
pub fn begins_as_stream(text: &str) -> bool {
    text.is_empty() || text.starts_with(['d', 'e', 'i', 'r', ':', '\r', '\n'])
}

/// Returns `true` if an event has generated content.
pub fn is_generated(api: Api, event: Node<'_>) -> bool {
    event.members().into_iter().any(|(name, value)| match (api, name.inside()) {
        (Api::Messages, "delta" | "content_block") | (Api::SglangGenerate, "text") => has_text(value),
        (Api::SglangGenerate, "output_ids") => has_number(value),
        (Api::Messages | Api::SglangGenerate, _) => false,
        (_, "delta" | "text" | "arguments" | "refusal" | "b64_json" | "partial_image_b64") => has_text(value),
        (_, "item") => {
            value.members().into_iter().any(|(name, value)| name.inside() == "name" && has_text(value))
        }
        (_, "choices") => {
            value.elements().into_iter().flat_map(Node::members).any(|(name, value)| match name.inside() {
                "delta" | "text" => has_text(value),
                "token_ids" => has_number(value),
                _ => false,
            })
        }
        _ => false,
    })
}

fn has_text(node: Node<'_>) -> bool {
    match node.kind() {
        Kind::String => !node.inside().is_empty(),
        Kind::Array => node.elements().into_iter().any(has_text),
        Kind::Object => node.members().into_iter().any(|(name, value)| {
            let is_label = value.kind() == Kind::String && LABELS.contains(&name.inside());
            !is_label && has_text(value)
        }),
        _ => false,
    }
}

fn has_number(node: Node<'_>) -> bool {
    match node.kind() {
        Kind::Number => true,
        Kind::Array => node.elements().into_iter().any(has_number),
        Kind::Object => {
            node.members().into_iter().any(|(_, value)| value.kind() != Kind::Number && has_number(value))
        }
        _ => false,
    }
}
