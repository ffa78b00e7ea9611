//! Request bodies, per API.

use bytes::Bytes;
use usher::request::{
    Api, Headers, ParseError, ParserKind, Parsers, Part, PartKind, Prompt, Request, RequestParser, Span,
};

use super::estimate;
use super::input::Input;
use super::tree::{Kind, Node, is_json};

/// The name that a rewrite asks for; its quote has to be escaped in the body.
const TARGET: &str = "t\"\u{e9}";

/// What a request is sent as.
#[derive(Clone, Copy, Debug)]
struct Case {
    path: &'static str,
    parsers: &'static [ParserKind],
    rewrite: bool,
}

impl Case {
    fn of(letter: u8) -> Self {
        const ALL: &[ParserKind] = &[ParserKind::OpenAi, ParserKind::PassThrough];
        let (path, parsers) = match letter.to_ascii_lowercase() {
            b'p' => ("/tokenize", ALL),
            b'n' => ("/x", &ALL[..1]),
            b'c' => ("/v1/chat/completions", ALL),
            _ => ("/v1/completions", ALL),
        };
        Self { path, parsers, rewrite: letter.is_ascii_uppercase() }
    }

    fn parse(self, chunks: &[Bytes]) -> Result<Request, ParseError> {
        let rewrite = ("x-llm-d-model-name-rewrite", TARGET);
        let headers: Headers =
            [(":path", self.path)].into_iter().chain(self.rewrite.then_some(rewrite)).collect();
        let mut parser = RequestParser::new(headers, &Parsers::new(self.parsers));
        for chunk in chunks {
            parser.push(chunk.clone());
        }
        let len: usize = chunks.iter().map(Bytes::len).sum();
        assert_eq!(parser.body_len(), len);
        parser.finish()
    }
}

/// All that a request says, comparable.
#[derive(Debug, PartialEq)]
struct Seen {
    model: String,
    target_model: String,
    stream: bool,
    max_output_tokens: Option<u64>,
    cache_salt: Option<Part>,
    prompt: Prompt,
    sent: Vec<u8>,
}

impl Seen {
    fn of(request: &Request) -> Self {
        let outgoing = request.outgoing();
        assert!(outgoing.chunks().iter().all(|chunk| !chunk.is_empty()));
        let sent = outgoing.chunks().concat();
        assert_eq!(sent.len(), outgoing.len());
        Self {
            model: request.model.clone(),
            target_model: request.target_model.clone(),
            stream: request.stream,
            max_output_tokens: request.max_output_tokens,
            cache_salt: request.cache_salt,
            prompt: request.prompt.clone(),
            sent,
        }
    }
}

/// The first byte chooses the API: `c`hat completions, comple`t`ions, `p`ass
/// through, `n`obody's; a capital asks for another model. Chunk sizes follow.
///
/// - Every split gives the same request, or the same refusal.
/// - A body is JSON exactly when `serde_json` says so.
/// - All that is read from it is what a reader of the whole document reads.
/// - What is sent on is the body, but for the value of its model.
/// - Every split comes to the same number of tokens, by both ways of counting.
pub fn request_body(bytes: &[u8]) {
    let input = Input::of(bytes);
    let case = Case::of(input.setting(0));
    let [whole, others @ ..] = input.splits(1).map(|chunks| case.parse(&chunks));
    let seen = whole.as_ref().map(Seen::of);
    for other in &others {
        assert_eq!(seen, other.as_ref().map(Seen::of), "another split gives another result");
    }
    for request in others.iter().chain([&whole]).flatten() {
        assert_eq!(request.body.chunks().concat(), input.data, "the body was changed");
    }
    let tokens = whole.as_ref().ok().map(estimate::check);
    for request in others.iter().flatten() {
        assert_eq!(Some(estimate::check(request)), tokens, "another split has other tokens");
    }
    let api = match Parsers::new(case.parsers).resolve(case.path) {
        None => return assert_eq!(seen, Err(&ParseError::NoParser(case.path.to_owned()))),
        Some(Api::PassThrough) => {
            let seen = seen.expect("what passes through is never refused");
            assert_eq!((seen.model.as_str(), seen.sent.as_slice()), ("", input.data));
            return assert_eq!(seen.prompt, Prompt::default());
        }
        Some(api) => api,
    };
    let refused = matches!(seen, Err(ParseError::Json(_)));
    assert_eq!(!refused, is_json(input.data), "only one of two readers takes it for JSON: {seen:?}");
    // Only text can be told apart any further.
    let Ok(text) = std::str::from_utf8(input.data) else { return };
    let Some(body) = Node::of(text) else { return };
    match (read(api, body), seen) {
        (Some(reading), Ok(seen)) => {
            reading.check(&seen, case, text);
            let request = whole.as_ref().expect("it was seen");
            for part in request.prompt.parts.iter().chain(&request.cache_salt) {
                check_part(*part, request, text);
            }
        }
        (Some(reading), Err(ParseError::NoModel)) => {
            let name = reading.model.and_then(Node::text);
            assert!(!case.rewrite && name.unwrap_or_default().is_empty(), "the model is there");
        }
        (None, Err(ParseError::Shape(_))) => {}
        (reading, seen) => panic!("{api:?}: expected {reading:?}, got {seen:?}"),
    }
}

/// A part's text is what `serde_json` makes of the same bytes.
fn check_part(part: Part, request: &Request, text: &str) {
    let bytes = part.bytes(&request.body);
    let raw = &text[part.span.start..part.span.end];
    if matches!(part.kind, PartKind::Tools | PartKind::Tokens) {
        return assert_eq!(bytes.as_ref(), raw.as_bytes());
    }
    let quoted = Node { start: 0, raw: &text[part.span.start - 1..part.span.end + 1] };
    if let Some(text) = quoted.text() {
        assert_eq!(bytes.as_ref(), text.as_bytes());
    }
}

/// A body as the documentation of its API has it, read from the whole document. Of
/// members with one name the last counts.
#[derive(Debug)]
struct Reading<'a> {
    body: Node<'a>,
    model: Option<Node<'a>>,
    stream: bool,
    max_output_tokens: Option<u64>,
    cache_salt: Option<Part>,
    prompt: Prompt,
}

impl Reading<'_> {
    fn check(&self, seen: &Seen, case: Case, text: &str) {
        let model = self.model.filter(|model| model.kind() == Kind::String);
        match model.map(Node::text) {
            None => assert_eq!(seen.model, ""),
            Some(Some(name)) => assert_eq!(seen.model, name),
            // It holds lone surrogates.
            Some(None) => assert!(seen.model.contains('\u{fffd}')),
        }
        let target = if case.rewrite { TARGET } else { seen.model.as_str() };
        assert_eq!(seen.target_model, target);
        assert_eq!(seen.stream, self.stream);
        assert_eq!(seen.max_output_tokens, self.max_output_tokens);
        assert_eq!(seen.cache_salt, self.cache_salt);
        assert_eq!(seen.prompt, self.prompt);
        if seen.model == seen.target_model {
            return assert_eq!(seen.sent, text.as_bytes());
        }
        let name = serde_json::to_string(target).expect("a string");
        let sent = match self.model {
            Some(model) => [&text[..model.start], &name, &text[model.end()..]].concat(),
            None => {
                let (before, after) = text.split_at(self.body.start + 1);
                let comma = if self.body.members().is_empty() { "" } else { "," };
                [before, "\"model\":", &name, comma, after].concat()
            }
        };
        assert_eq!(String::from_utf8_lossy(&seen.sent), sent);
        let sent = Node::of(&sent).expect("what is sent on is JSON");
        assert_eq!(sent.last("model").and_then(Node::text).as_deref(), Some(target));
    }
}

/// Reads a document; `None` when it is not a request of the API.
fn read<'a>(api: Api, body: Node<'a>) -> Option<Reading<'a>> {
    if body.kind() != Kind::Object {
        return None;
    }
    let tokens = |name| body.last(name).and_then(count);
    let (prompt, max_output_tokens) = if api == Api::ChatCompletions {
        let mut prompt = Prompt { parts: messages(body.last("messages")?)?, ..Prompt::default() };
        let tools = body.last("tools").filter(|tools| matches!(tools.kind(), Kind::Object | Kind::Array));
        if let Some(tools) = tools {
            prompt.parts.insert(0, raw_part(PartKind::Tools, tools));
        }
        (prompt, tokens("max_completion_tokens").or(tokens("max_tokens")))
    } else {
        (completion(body.last("prompt")?)?, tokens("max_tokens"))
    };
    Some(Reading {
        body,
        model: body.last("model"),
        stream: body.last("stream").is_some_and(|value| value.kind() == Kind::True),
        max_output_tokens,
        cache_salt: body.last("cache_salt").and_then(|salt| text_part(PartKind::Text, salt)),
        prompt,
    })
}

fn completion(prompt: Node<'_>) -> Option<Prompt> {
    let elements = match prompt.kind() {
        Kind::String if !prompt.inside().is_empty() => vec![prompt],
        Kind::Array => prompt.elements(),
        _ => return None,
    };
    if elements.is_empty() {
        return None;
    }
    let is_token = |token: &Node<'_>| count(*token).is_some_and(|id| u32::try_from(id).is_ok());
    if elements.iter().all(is_token) {
        return Some(Prompt { parts: vec![raw_part(PartKind::Tokens, prompt)], ..Prompt::default() });
    }
    let parts: Vec<Part> =
        elements.iter().map(|text| text_part(PartKind::Text, *text)).collect::<Option<_>>()?;
    let separate = parts.len() > 1;
    Some(Prompt { parts, separate, ..Prompt::default() })
}

fn messages(messages: Node<'_>) -> Option<Vec<Part>> {
    if messages.kind() != Kind::Array || messages.elements().is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    for message in messages.elements() {
        if !matches!(message.kind(), Kind::Object | Kind::Null) {
            return None;
        }
        let (mut role, mut content) = (None, Vec::new());
        for (name, value) in message.members() {
            if name.is_name("role") {
                match value.kind() {
                    Kind::String => role = text_part(PartKind::Role, value),
                    // As in Go, null leaves what was there.
                    Kind::Null => {}
                    _ => return None,
                }
            } else if name.is_name("content") {
                content = match value.kind() {
                    Kind::String => text_part(PartKind::Text, value).into_iter().collect(),
                    Kind::Null => Vec::new(),
                    Kind::Array => blocks(value)?,
                    _ => return None,
                };
            }
        }
        parts.extend(role);
        parts.append(&mut content);
    }
    Some(parts)
}

/// The blocks of a message's content that have something to read.
fn blocks(content: Node<'_>) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    for block in content.elements() {
        if !matches!(block.kind(), Kind::Object | Kind::Null) {
            return None;
        }
        let inner = |name, field| block.last(name).and_then(|asset: Node<'_>| asset.last(field));
        let kind = block.last("type").filter(|kind| kind.raw.len() <= 66).and_then(Node::text);
        let (kind, value) = match kind.as_deref() {
            Some("text") => (PartKind::Text, block.last("text")),
            Some("image_url") => (PartKind::Image, inner("image_url", "url")),
            Some("video_url") => (PartKind::Video, inner("video_url", "url")),
            Some("input_audio") => (PartKind::Audio, inner("input_audio", "data")),
            _ => continue,
        };
        parts.extend(value.and_then(|value| text_part(kind, value)));
    }
    Some(parts)
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
