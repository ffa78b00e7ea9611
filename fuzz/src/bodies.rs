//! The bodies of the JSON APIs as their documentation has them, read from the whole
//! document. Of members with one name the last counts.

use std::collections::BTreeMap;

use usher::request::{Api, Feature, Modality, Part, PartKind, Prompt, Span};

use super::tree::{Kind, Node};

/// Fields of a request body.
#[derive(Debug)]
pub struct Reading<'a> {
    pub body: Node<'a>,
    pub model: Option<Node<'a>>,
    pub stream: bool,
    pub max_output_tokens: Option<u64>,
    pub cache_salt: Option<Part>,
    pub prompt: Prompt,
}

/// Reads a document; `None` when it is not a request of the API.
pub fn read<'a>(api: Api, body: Node<'a>) -> Option<Reading<'a>> {
    if body.kind() != Kind::Object {
        return None;
    }
    let names = |names: &[&str]| {
        let mut members = body.members().into_iter().rev();
        members.find(|(name, _)| names.iter().any(|known| name.is_name(known)))
    };
    let (prompt, caps, salt): (_, &[&str], _) = match api {
        Api::ChatCompletions | Api::ChatCompletionsRender | Api::VertexChatCompletions => {
            (chat(body)?, &["max_completion_tokens", "max_tokens"], "cache_salt")
        }
        Api::Completions | Api::CompletionsRender => {
            (texts(body.last("prompt")?)?, &["max_tokens"], "cache_salt")
        }
        Api::Embeddings => (texts(body.last("input")?)?, &[], "cache_salt"),
        Api::Responses => (response(body)?, &["max_output_tokens"], "cache_salt"),
        Api::Conversations => {
            let items = body.last("items").filter(|items| objects(*items))?;
            (prompt([raw_part(PartKind::Json, items)]), &[], "cache_salt")
        }
        Api::ImageGenerations => {
            let text = body.last("prompt").filter(|text| text.raw.len() > 2)?;
            (prompt([text_part(PartKind::Text, text)?]), &[], "cache_salt")
        }
        Api::Messages => (messages(body)?, &["max_tokens"], "cache_salt"),
        Api::VllmGenerate => {
            let parts = vec![ids(body.last("token_ids")?)?];
            let features = body.last("features").map(features).unwrap_or_default();
            (Prompt { parts, features, separate: false }, &[], "cache_salt")
        }
        Api::SglangGenerate => (prompt([ids(body.last("input_ids")?)?]), &[], "extra_key"),
        Api::VertexPredict => {
            // The one that comes last says which API it is.
            let (name, _) = names(&["messages", "input"])?;
            let prompt = if name.is_name("input") { response(body)? } else { chat_of_prediction(body)? };
            (prompt, &["max_completion_tokens", "max_tokens", "max_output_tokens"], "cache_salt")
        }
        _ => unreachable!("{api:?} is no JSON"),
    };
    let sampling = |name| body.last("sampling_params").and_then(|params| params.last(name)).and_then(count);
    let names_model = api != Api::SglangGenerate;
    Some(Reading {
        body,
        model: body.last("model").filter(|_| names_model),
        stream: body.last("stream").is_some_and(|value| value.kind() == Kind::True),
        max_output_tokens: match api {
            Api::VllmGenerate => sampling("max_tokens"),
            Api::SglangGenerate => sampling("max_new_tokens"),
            _ => caps.iter().find_map(|name| body.last(name).and_then(count)),
        },
        cache_salt: body.last(salt).and_then(|salt| text_part(PartKind::Text, salt)),
        prompt,
    })
}

fn prompt(parts: impl IntoIterator<Item = Part>) -> Prompt {
    Prompt { parts: parts.into_iter().collect(), ..Prompt::default() }
}

fn tools(body: Node<'_>) -> Option<Part> {
    let tools = body.last("tools").filter(|tools| is_container(*tools));
    tools.map(|tools| raw_part(PartKind::Tools, tools))
}

fn instructions(body: Node<'_>) -> Option<Part> {
    let instructions = body.last("instructions")?;
    let json = is_container(instructions).then(|| raw_part(PartKind::Json, instructions));
    text_part(PartKind::Text, instructions).or(json)
}

fn chat(body: Node<'_>) -> Option<Prompt> {
    let said = conversation(body.last("messages")?, chat_block)?;
    Some(prompt(tools(body).into_iter().chain(said)))
}

fn chat_of_prediction(body: Node<'_>) -> Option<Prompt> {
    let chat = chat(body)?;
    Some(prompt(instructions(body).into_iter().chain(chat.parts)))
}

fn response(body: Node<'_>) -> Option<Prompt> {
    let input = body.last("input").filter(|input| input.kind() != Kind::Null)?;
    let input = text_part(PartKind::Text, input).unwrap_or(raw_part(PartKind::Json, input));
    Some(prompt(instructions(body).into_iter().chain(tools(body)).chain([input])))
}

fn messages(body: Node<'_>) -> Option<Prompt> {
    let billing = |text: Node<'_>| text.inside().starts_with("x-anthropic-billing-header");
    let system_block = |block: Node<'_>| {
        let text = block.last("text").filter(|_| type_of(block).as_deref() == Some("text"));
        text.and_then(|text| text_part(PartKind::Text, text).filter(|_| !billing(text))).into_iter().collect()
    };
    let system = match body.last("system") {
        None => Vec::new(),
        Some(system) => content(system, system_block)?,
    };
    let said = conversation(body.last("messages")?, |block| anthropic_block(block, true))?;
    Some(prompt(tools(body).into_iter().chain(system).chain(said)))
}

/// Text, texts or token ids.
fn texts(value: Node<'_>) -> Option<Prompt> {
    let elements = match value.kind() {
        Kind::String if !value.inside().is_empty() => vec![value],
        Kind::Array => value.elements(),
        _ => return None,
    };
    if elements.is_empty() {
        return None;
    }
    if let Some(ids) = ids(value) {
        return Some(prompt([ids]));
    }
    let parts: Vec<Part> =
        elements.iter().map(|text| text_part(PartKind::Text, *text)).collect::<Option<_>>()?;
    let separate = parts.len() > 1;
    Some(Prompt { parts, separate, ..Prompt::default() })
}

/// A list of token ids that is not empty.
fn ids(value: Node<'_>) -> Option<Part> {
    let is_id = |id: &Node<'_>| count(*id).is_some_and(|id| u32::try_from(id).is_ok());
    let elements = value.elements();
    let are_ids = !elements.is_empty() && elements.iter().all(is_id);
    are_ids.then(|| raw_part(PartKind::Tokens, value))
}

/// Returns `true` if a value is a list of objects that is not empty.
fn objects(value: Node<'_>) -> bool {
    let elements = value.elements();
    !elements.is_empty() && elements.iter().all(|element| matches!(element.kind(), Kind::Object | Kind::Null))
}

/// Role and content of each message.
fn conversation(messages: Node<'_>, block: impl Fn(Node<'_>) -> Vec<Part>) -> Option<Vec<Part>> {
    if !objects(messages) {
        return None;
    }
    let mut parts = Vec::new();
    for message in messages.elements() {
        let (mut role, mut said) = (None, Vec::new());
        for (name, value) in message.members() {
            if name.is_name("role") {
                match value.kind() {
                    Kind::String => role = text_part(PartKind::Role, value),
                    // As in Go, null leaves what was there.
                    Kind::Null => {}
                    _ => return None,
                }
            } else if name.is_name("content") {
                said = content(value, &block)?;
            }
        }
        parts.extend(role);
        parts.append(&mut said);
    }
    Some(parts)
}

/// Text, or blocks.
fn content(value: Node<'_>, block: impl Fn(Node<'_>) -> Vec<Part>) -> Option<Vec<Part>> {
    match value.kind() {
        Kind::String => Some(text_part(PartKind::Text, value).into_iter().collect()),
        Kind::Null => Some(Vec::new()),
        Kind::Array if value.elements().is_empty() || objects(value) => {
            Some(value.elements().into_iter().flat_map(block).collect())
        }
        _ => None,
    }
}

fn type_of(block: Node<'_>) -> Option<String> {
    block.last("type").filter(|kind| kind.raw.len() <= 66).and_then(Node::text)
}

fn chat_block(block: Node<'_>) -> Vec<Part> {
    let inside = |name, field| block.last(name).and_then(|asset: Node<'_>| asset.last(field));
    let (kind, value) = match type_of(block).as_deref() {
        Some("text") => (PartKind::Text, block.last("text")),
        Some("image_url") => (PartKind::Image, inside("image_url", "url")),
        Some("video_url") => (PartKind::Video, inside("video_url", "url")),
        Some("input_audio") => (PartKind::Audio, inside("input_audio", "data")),
        _ => return Vec::new(),
    };
    value.and_then(|value| text_part(kind, value)).into_iter().collect()
}

/// A block, and those inside of a tool's result, of which there is one level.
fn anthropic_block(block: Node<'_>, outer: bool) -> Vec<Part> {
    let text = |name| block.last(name).and_then(|text| text_part(PartKind::Text, text));
    match type_of(block).as_deref() {
        Some("text") => text("text").into_iter().collect(),
        Some("thinking") => text("thinking").into_iter().collect(),
        Some("image") => {
            let source = block.last("source").map(|source| source.members()).unwrap_or_default();
            let data = source.into_iter().rev().find(|(name, _)| name.is_name("data") || name.is_name("url"));
            data.and_then(|(_, data)| text_part(PartKind::Image, data)).into_iter().collect()
        }
        Some("tool_use") => {
            let input = block.last("input").filter(|input| is_container(*input));
            let input = input.map(|input| raw_part(PartKind::Json, input));
            text("id").into_iter().chain(text("name")).chain(input).collect()
        }
        Some("tool_result") if outer => match block.last("content") {
            Some(said) if said.kind() == Kind::Array => {
                said.elements().into_iter().flat_map(|inner| anthropic_block(inner, false)).collect()
            }
            said => said.and_then(|said| text_part(PartKind::Text, said)).into_iter().collect(),
        },
        _ => Vec::new(),
    }
}

/// Hashes of multimodal items, each with its place.
fn features(value: Node<'_>) -> Vec<Feature> {
    let lists = |name: &str| {
        // Of modalities that nobody knows the last one, behind all others.
        let mut lists: BTreeMap<(bool, Option<Modality>), Node<'_>> = BTreeMap::new();
        for (name, list) in value.last(name).map(|lists| lists.members()).unwrap_or_default() {
            let known = Modality::ALL.into_iter().find(|modality| name.is_name(modality.label()));
            lists.insert((known.is_none(), known), list);
        }
        lists
    };
    let places = lists("mm_placeholders");
    let mut features = Vec::new();
    for (key @ (_, modality), list) in lists("mm_hashes") {
        let places = places.get(&key).map(|places| places.elements()).unwrap_or_default();
        for (at, hash) in list.elements().into_iter().enumerate() {
            let number = |name| places.get(at).and_then(|place: &Node<'_>| place.last(name)).and_then(count);
            let range = number("offset").zip(number("length")).and_then(|(offset, length)| {
                Some(u32::try_from(offset).ok()?..u32::try_from(offset.checked_add(length)?).ok()?)
            });
            let hash = text_part(PartKind::Text, hash);
            features.extend(hash.map(|hash| Feature { modality, hash, tokens: range }));
        }
    }
    features.sort_by_key(|feature| feature.tokens.as_ref().map_or(u32::MAX, |tokens| tokens.start));
    features
}

fn is_container(node: Node<'_>) -> bool {
    matches!(node.kind(), Kind::Object | Kind::Array)
}

fn raw_part(kind: PartKind, node: Node<'_>) -> Part {
    Part { kind, span: Span { start: node.start, end: node.end() }, escaped: false }
}

fn text_part(kind: PartKind, node: Node<'_>) -> Option<Part> {
    let span = Span { start: node.start + 1, end: node.end() - 1 };
    (node.kind() == Kind::String).then(|| Part { kind, span, escaped: node.inside().contains('\\') })
}

/// A number that counts something: not negative, without a fraction, and written
/// in at most 64 bytes. What is not written as an integer is one up to 9e15.
fn count(node: Node<'_>) -> Option<u64> {
    if node.kind() != Kind::Number || node.raw.len() > 64 {
        return None;
    }
    // Not serde_json's numbers: they can be off by the last bit.
    node.raw.parse().ok().or_else(|| {
        let value: f64 = node.raw.parse().ok()?;
        (value.fract() == 0.0 && (0.0..=9e15).contains(&value)).then_some(value as u64)
    })
}
