//! Request bodies, per API.

use bytes::Bytes;
use usher::request::{
    Api, Body, Headers, ParseError, ParserKind, Parsers, Part, PartKind, Prompt, Request, RequestParser,
};

use super::bodies::{Reading, read};
use super::estimate;
use super::frames;
use super::input::Input;
use super::protos::{PredictRequest, framed};
use super::tree::{Kind, Node, is_json};

/// The name that a rewrite asks for; its quote has to be escaped in the body.
const TARGET: &str = "t\"\u{e9}";

/// Path and parsers of a request, and whether its model is rewritten.
#[derive(Clone, Copy, Debug)]
struct Case {
    path: &'static str,
    parsers: &'static [ParserKind],
    rewrite: bool,
}

impl Case {
    fn of(letter: u8) -> Self {
        const ALL: &[ParserKind] = &ParserKind::ALL;
        let (path, parsers) = match letter.to_ascii_lowercase() {
            b'p' => ("/tokenize", ALL),
            b'n' => ("/x", &ALL[..1]),
            b'c' => ("/v1/chat/completions", ALL),
            b'd' => ("/v1/chat/completions/render", ALL),
            b'u' => ("/v1/completions/render", ALL),
            b'e' => ("/v1/embeddings", ALL),
            b'r' => ("/v1/responses", ALL),
            b'v' => ("/v1/conversations", ALL),
            b'i' => ("/v1/images/generations", ALL),
            b'm' => ("/v1/messages", ALL),
            b'k' => ("/v1/messages/count_tokens", ALL),
            b'g' => ("/inference/v1/generate", ALL),
            b's' => ("/generate", ALL),
            b'q' => ("/vllm.grpc.engine.VllmEngine/Generate", ALL),
            b'b' => ("/vllm.grpc.engine.VllmEngine/Embed", ALL),
            b'x' => ("/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions", ALL),
            b'y' => ("/google.cloud.aiplatform.v1beta1.PredictionService/RawPredict", ALL),
            b'z' => ("/google.cloud.aiplatform.v1beta1.PredictionService/StreamRawPredict", ALL),
            _ => ("/v1/completions", ALL),
        };
        Self { path, parsers, rewrite: letter.is_ascii_uppercase() }
    }

    fn api(self) -> Option<Api> {
        Parsers::new(self.parsers).resolve(self.path)
    }

    /// Returns `true` if the model's name is another one in what is sent on.
    fn rewrites(self) -> bool {
        self.rewrite && self.api().is_some_and(Api::rewrites_model)
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

/// The first byte chooses the API, as [`Case`] has it: `c`hat completions, comple`t`ions,
/// `p`ass through, `n`obody's and so on; a capital asks for another model. Chunk sizes
/// follow. The data is the body; of Vertex AI's `x` and `y` it is the JSON in it.
///
/// - Every split gives the same request, or the same refusal.
/// - A body is JSON exactly when `serde_json` says so.
/// - All that is read from it is what a reader of the whole document reads, or what
///   prost decodes.
/// - What is sent on is the body, but for the value of its model.
/// - Every split comes to the same number of tokens, by both ways of counting.
pub fn request_body(bytes: &[u8]) {
    let input = Input::of(bytes);
    let case = Case::of(input.setting(0));
    let api = case.api();
    // An offset at which the JSON begins, and the body around it.
    let (offset, body) = match (api, std::str::from_utf8(input.data)) {
        (Some(Api::VertexChatCompletions | Api::VertexPredict), Ok(json))
            if input.setting(0) | 32 != b'z' =>
        {
            let body = framed(&PredictRequest::around(json));
            (body.len() - json.len(), body)
        }
        _ => (0, input.data.to_vec()),
    };
    let input = input.with(&body);
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
    match api {
        None => assert_eq!(seen, Err(&ParseError::NoParser(case.path.to_owned()))),
        Some(Api::PassThrough | Api::CountTokens) => {
            let seen = seen.expect("what passes through is never refused");
            assert_eq!((seen.model.as_str(), seen.sent.as_slice()), ("", input.data));
            assert_eq!(seen.prompt, Prompt::default());
        }
        Some(api @ (Api::VllmGrpcGenerate | Api::VllmGrpcEmbed)) => {
            frames::check_request(api, &whole, input.data, |body| case.parse(&[body]));
        }
        // Frames of any kind, and text that is none.
        Some(Api::VertexChatCompletions | Api::VertexPredict) if offset == 0 => {}
        Some(api) => check_json(api, case, &whole, offset, input.data),
    }
}

/// Checks what was read of a body that has JSON from an offset on.
fn check_json(api: Api, case: Case, whole: &Result<Request, ParseError>, offset: usize, body: &[u8]) {
    let seen = whole.as_ref().map(Seen::of);
    let refused = matches!(seen, Err(ParseError::Json(_)));
    assert_eq!(!refused, is_json(&body[offset..]), "only one of two readers takes it for JSON: {seen:?}");
    // Only text can be told apart any further.
    let Ok(text) = std::str::from_utf8(&body[offset..]) else { return };
    let Some(document) = Node::of(text) else { return };
    let document = Node { start: offset + document.start, ..document };
    match (read(api, document), seen) {
        (Some(reading), Ok(seen)) => {
            check(&reading, &seen, case, body);
            let request = whole.as_ref().expect("it was seen");
            let hashes = request.prompt.features.iter().map(|feature| &feature.hash);
            for part in request.prompt.parts.iter().chain(&request.cache_salt).chain(hashes) {
                check_part(*part, &request.body, body);
            }
        }
        (Some(reading), Err(ParseError::NoModel)) => {
            let name = reading.model.and_then(Node::text);
            assert!(api.rewrites_model() && !case.rewrite, "no model is needed");
            assert!(name.unwrap_or_default().is_empty(), "the model is there");
        }
        (None, Err(ParseError::Shape(_))) => {}
        (reading, seen) => panic!("{api:?}: expected {reading:?}, got {seen:?}"),
    }
}

/// A part's text is what `serde_json` makes of the same bytes.
fn check_part(part: Part, kept: &Body, body: &[u8]) {
    let bytes = part.bytes(kept);
    let text = |span: std::ops::Range<usize>| std::str::from_utf8(&body[span]).expect("a part of a text");
    let raw = text(part.span.start..part.span.end);
    match part.kind {
        PartKind::Tokens => {
            let ids: Vec<u32> = part.token_ids(kept).collect();
            let want: Vec<f64> = serde_json::from_str(raw).expect("numbers");
            assert_eq!(ids, want.iter().map(|id| *id as u32).collect::<Vec<_>>());
        }
        PartKind::Tools | PartKind::Json => assert_eq!(bytes.as_ref(), raw.as_bytes()),
        _ => {
            let quoted = Node { start: 0, raw: text(part.span.start - 1..part.span.end + 1) };
            if let Some(text) = quoted.text() {
                assert_eq!(bytes.as_ref(), text.as_bytes());
            }
        }
    }
}

/// Asserts that the request was read as the whole document has it.
fn check(reading: &Reading<'_>, seen: &Seen, case: Case, body: &[u8]) {
    let model = reading.model.filter(|model| model.kind() == Kind::String);
    match model.map(Node::text) {
        None => assert_eq!(seen.model, ""),
        Some(Some(name)) => assert_eq!(seen.model, name),
        // It holds lone surrogates.
        Some(None) => assert!(seen.model.contains('\u{fffd}')),
    }
    let target = if case.rewrites() { TARGET } else { seen.model.as_str() };
    assert_eq!(seen.target_model, target);
    assert_eq!(seen.stream, reading.stream);
    assert_eq!(seen.max_output_tokens, reading.max_output_tokens);
    assert_eq!(seen.cache_salt, reading.cache_salt);
    assert_eq!(seen.prompt, reading.prompt);
    if seen.model == seen.target_model {
        return assert_eq!(seen.sent, body);
    }
    let text = std::str::from_utf8(body).expect("JSON of text");
    let name = serde_json::to_string(target).expect("a string");
    let sent = match reading.model {
        Some(model) => [&text[..model.start], &name, &text[model.end()..]].concat(),
        None => {
            let (before, after) = text.split_at(reading.body.start + 1);
            let comma = if reading.body.members().is_empty() { "" } else { "," };
            [before, "\"model\":", &name, comma, after].concat()
        }
    };
    assert_eq!(String::from_utf8_lossy(&seen.sent), sent);
    let sent = Node::of(&sent).expect("what is sent on is JSON");
    assert_eq!(sent.last("model").and_then(Node::text).as_deref(), Some(target));
}
