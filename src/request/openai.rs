//! OpenAI chat completions and completions: what the picker needs of a body,
//! collected while the body is scanned.

use super::api::Api;
use super::body::Span;
use super::json::{Sink, Token};
use super::prompt::{Part, PartKind, Prompt};
use super::text::unescape;

/// A member of an object that means something to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Model,
    Stream,
    MaxTokens,
    MaxCompletionTokens,
    CacheSalt,
    Tools,
    Messages,
    Prompt,
    Role,
    Content,
    Type,
    Text,
    ImageUrl,
    VideoUrl,
    InputAudio,
    Url,
    Data,
    Other,
}

impl Member {
    fn of(key: &[u8]) -> Self {
        if key.contains(&b'\\') { Self::named(unescape(key).as_bytes()) } else { Self::named(key) }
    }

    fn named(name: &[u8]) -> Self {
        match name {
            b"model" => Self::Model,
            b"stream" => Self::Stream,
            b"max_tokens" => Self::MaxTokens,
            b"max_completion_tokens" => Self::MaxCompletionTokens,
            b"cache_salt" => Self::CacheSalt,
            b"tools" => Self::Tools,
            b"messages" => Self::Messages,
            b"prompt" => Self::Prompt,
            b"role" => Self::Role,
            b"content" => Self::Content,
            b"type" => Self::Type,
            b"text" => Self::Text,
            b"image_url" => Self::ImageUrl,
            b"video_url" => Self::VideoUrl,
            b"input_audio" => Self::InputAudio,
            b"url" => Self::Url,
            b"data" => Self::Data,
            _ => Self::Other,
        }
    }
}

/// What a value that should be the prompt turned out to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shape {
    #[default]
    Missing,
    Empty,
    Texts,
    Tokens,
    Messages,
    Wrong,
}

/// What a body said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Value of `model` with everything that belongs to it, quotes included.
    pub model_value: Option<Span>,
    /// The name between the quotes, when it is a string.
    pub model: Option<Part>,
    /// `"stream": true`
    pub stream: bool,
    /// The client's limit on generated tokens.
    pub max_output_tokens: Option<u64>,
    /// Salt of the prefix cache.
    pub cache_salt: Option<Part>,
    /// Where the prompt is.
    pub prompt: Prompt,
    /// Just behind the body's opening brace, and whether a member follows: where
    /// a member can be put in.
    pub first_member: (usize, bool),
}

/// What a block of a message's content said. A block may hold members of other
/// kinds than its own: only the one that its type names counts.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    kind: Option<PartKind>,
    text: Option<Part>,
    image: Option<Part>,
    video: Option<Part>,
    audio: Option<Part>,
}

impl Block {
    fn part(self) -> Option<Part> {
        let kind = self.kind?;
        let value = match kind {
            PartKind::Text => self.text,
            PartKind::Image => self.image,
            PartKind::Video => self.video,
            PartKind::Audio => self.audio,
            PartKind::Tools | PartKind::Role | PartKind::Tokens => None,
        };
        value.map(|part| Part { kind, ..part })
    }
}

/// Collects a [`Parsed`] from the tokens of a body.
#[derive(Debug)]
pub struct Collector {
    api: Api,
    parsed: Parsed,
    depth: usize,
    object: bool,
    top: Member,
    /// The member inside of a message, and inside of a block of its content.
    inner: Member,
    block: Member,
    asset: Member,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    tools: Option<Part>,
    shape: Shape,
    /// Where the parts of the current message begin.
    message_from: usize,
    role: Option<Part>,
    content: Block,
    value_start: usize,
}

impl Collector {
    /// A collector for chat completions or completions.
    pub fn new(api: Api) -> Self {
        Self {
            api,
            parsed: Parsed::default(),
            depth: 0,
            object: false,
            top: Member::Other,
            inner: Member::Other,
            block: Member::Other,
            asset: Member::Other,
            max_tokens: None,
            max_completion_tokens: None,
            tools: None,
            shape: Shape::Missing,
            message_from: 0,
            role: None,
            content: Block::default(),
            value_start: 0,
        }
    }

    /// What the body said.
    ///
    /// # Errors
    /// A sentence when the body is JSON but not a request of this API.
    pub fn finish(mut self) -> Result<Parsed, &'static str> {
        if !self.object {
            return Err("the body must be a JSON object");
        }
        let (want, problem): (&[Shape], _) = match self.api {
            Api::ChatCompletions => (
                &[Shape::Messages],
                "messages must be a non-empty list of objects whose content is text or a list of blocks",
            ),
            _ => (
                &[Shape::Texts, Shape::Tokens],
                "prompt must be text, a list of texts or a list of token ids, and not empty",
            ),
        };
        if !want.contains(&self.shape) {
            return Err(problem);
        }
        if let (Api::ChatCompletions, Some(tools)) = (self.api, self.tools) {
            self.parsed.prompt.parts.insert(0, tools);
        }
        self.parsed.max_output_tokens = match self.api {
            Api::ChatCompletions => self.max_completion_tokens.or(self.max_tokens),
            _ => self.max_tokens,
        };
        Ok(self.parsed)
    }

    /// A token inside the body's object: a member's value, or its beginning.
    fn top_value(&mut self, token: Token, span: Span, head: &[u8]) {
        self.value_start = span.start;
        match self.top {
            Member::Model => {
                self.parsed.model = part(PartKind::Text, token, span);
                self.parsed.model_value = match token {
                    Token::String { .. } => Some(Span { start: span.start - 1, end: span.end + 1 }),
                    Token::ObjectStart | Token::ArrayStart => None,
                    _ => Some(span),
                };
            }
            Member::Stream => self.parsed.stream = token == Token::True,
            Member::MaxTokens => self.max_tokens = count(token, span, head),
            Member::MaxCompletionTokens => self.max_completion_tokens = count(token, span, head),
            Member::CacheSalt => self.parsed.cache_salt = part(PartKind::Text, token, span),
            Member::Tools => self.tools = None,
            Member::Messages if self.api == Api::ChatCompletions => {
                self.parsed.prompt.parts.clear();
                self.shape = if token == Token::ArrayStart { Shape::Empty } else { Shape::Wrong };
            }
            Member::Prompt if self.api == Api::Completions => self.prompt_value(token, span),
            _ => {}
        }
    }

    fn prompt_value(&mut self, token: Token, span: Span) {
        self.parsed.prompt = Prompt::default();
        self.shape = match token {
            Token::ArrayStart => Shape::Empty,
            Token::String { .. } if !span.is_empty() => {
                self.parsed.prompt.parts.extend(part(PartKind::Text, token, span));
                Shape::Texts
            }
            _ => Shape::Wrong,
        };
    }

    /// An element of a list of prompts.
    fn prompt_element(&mut self, token: Token, span: Span, head: &[u8]) {
        self.shape = match (self.shape, token) {
            (Shape::Empty | Shape::Texts, Token::String { .. }) => {
                self.parsed.prompt.parts.extend(part(PartKind::Text, token, span));
                self.parsed.prompt.separate = self.parsed.prompt.parts.len() > 1;
                Shape::Texts
            }
            (Shape::Empty | Shape::Tokens, Token::Number)
                if count(token, span, head).is_some_and(|id| id <= u64::from(u32::MAX)) =>
            {
                Shape::Tokens
            }
            _ => Shape::Wrong,
        };
    }

    /// An element of `messages`.
    fn message(&mut self, token: Token) {
        self.shape = match (self.shape, token) {
            (Shape::Empty | Shape::Messages, Token::ObjectStart | Token::Null) => Shape::Messages,
            _ => Shape::Wrong,
        };
        self.message_from = self.parsed.prompt.parts.len();
        self.role = None;
    }

    /// The value of a member of a message.
    fn message_value(&mut self, token: Token, span: Span) {
        match (self.inner, token) {
            (Member::Role, Token::String { .. }) => self.role = part(PartKind::Role, token, span),
            (Member::Content, Token::String { .. } | Token::Null | Token::ArrayStart) => {
                self.parsed.prompt.parts.truncate(self.message_from);
                self.parsed.prompt.parts.extend(part(PartKind::Text, token, span));
            }
            (Member::Role, Token::Null) => {}
            (Member::Role | Member::Content, _) => self.shape = Shape::Wrong,
            _ => {}
        }
    }

    /// An element of a message's content.
    fn block(&mut self, token: Token) {
        if !matches!(token, Token::ObjectStart | Token::Null) {
            self.shape = Shape::Wrong;
        }
        self.content = Block::default();
    }

    /// The value of a member of a block.
    fn block_value(&mut self, token: Token, span: Span, head: &[u8]) {
        match self.block {
            Member::Type => self.content.kind = block_kind(token, span, head),
            Member::Text => self.content.text = part(PartKind::Text, token, span),
            // Their values are in objects, and this is a new one.
            Member::ImageUrl => self.content.image = None,
            Member::VideoUrl => self.content.video = None,
            Member::InputAudio => self.content.audio = None,
            _ => {}
        }
    }

    /// The value of a member of an asset, which is the value of a block's member.
    fn asset_value(&mut self, token: Token, span: Span) {
        let value = part(PartKind::Text, token, span);
        match (self.block, self.asset) {
            (Member::ImageUrl, Member::Url) => self.content.image = value,
            (Member::VideoUrl, Member::Url) => self.content.video = value,
            (Member::InputAudio, Member::Data) => self.content.audio = value,
            _ => {}
        }
    }

    fn end(&mut self, span: Span) {
        let in_messages = self.api == Api::ChatCompletions && self.top == Member::Messages;
        match self.depth {
            1 => {
                let whole = Span { start: self.value_start, end: span.end };
                match self.top {
                    Member::Tools => {
                        self.tools = Some(Part { kind: PartKind::Tools, span: whole, escaped: false })
                    }
                    Member::Model => self.parsed.model_value = Some(whole),
                    Member::Prompt if self.shape == Shape::Tokens => {
                        let part = Part { kind: PartKind::Tokens, span: whole, escaped: false };
                        self.parsed.prompt.parts.push(part);
                    }
                    _ => {}
                }
            }
            2 if in_messages => {
                if let Some(role) = self.role.take() {
                    self.parsed.prompt.parts.insert(self.message_from, role);
                }
            }
            4 if in_messages && self.inner == Member::Content => {
                self.parsed.prompt.parts.extend(std::mem::take(&mut self.content).part());
            }
            _ => {}
        }
    }
}

impl Sink for Collector {
    fn token(&mut self, token: Token, span: Span, head: &[u8]) {
        let in_messages = self.api == Api::ChatCompletions && self.top == Member::Messages;
        match token {
            Token::ObjectEnd | Token::ArrayEnd => {
                self.depth -= 1;
                return self.end(span);
            }
            Token::Key => {
                // A long name is none of ours, whatever its beginning.
                let member = if head.len() == span.len() { Member::of(head) } else { Member::Other };
                match self.depth {
                    1 => {
                        self.top = member;
                        self.parsed.first_member.1 = true;
                    }
                    3 => self.inner = member,
                    5 => {
                        self.block = member;
                        self.asset = Member::Other;
                    }
                    6 => self.asset = member,
                    _ => {}
                }
                return;
            }
            _ => {}
        }
        match self.depth {
            0 => {
                self.object = token == Token::ObjectStart;
                self.parsed.first_member.0 = span.end;
            }
            1 => self.top_value(token, span, head),
            2 if in_messages => self.message(token),
            2 if self.top == Member::Prompt && self.api == Api::Completions => {
                self.prompt_element(token, span, head);
            }
            3 if in_messages => self.message_value(token, span),
            4 if in_messages && self.inner == Member::Content => self.block(token),
            5 if in_messages && self.inner == Member::Content => self.block_value(token, span, head),
            6 if in_messages && self.inner == Member::Content => self.asset_value(token, span),
            _ => {}
        }
        if matches!(token, Token::ObjectStart | Token::ArrayStart) {
            self.depth += 1;
        }
    }
}

/// The kind of block that a `type` names.
fn block_kind(token: Token, span: Span, head: &[u8]) -> Option<PartKind> {
    match token {
        Token::String { escaped: false } => block_kind_named(head),
        Token::String { escaped: true } if head.len() == span.len() => {
            block_kind_named(unescape(head).as_bytes())
        }
        _ => None,
    }
}

fn block_kind_named(name: &[u8]) -> Option<PartKind> {
    match name {
        b"text" => Some(PartKind::Text),
        b"image_url" => Some(PartKind::Image),
        b"video_url" => Some(PartKind::Video),
        b"input_audio" => Some(PartKind::Audio),
        _ => None,
    }
}

fn part(kind: PartKind, token: Token, span: Span) -> Option<Part> {
    match token {
        Token::String { escaped } => Some(Part { kind, span, escaped }),
        _ => None,
    }
}

/// A number that counts something: not negative and without a fraction.
fn count(token: Token, span: Span, head: &[u8]) -> Option<u64> {
    if token != Token::Number || head.len() != span.len() {
        return None;
    }
    let text = std::str::from_utf8(head).ok()?;
    text.parse().ok().or_else(|| {
        let value: f64 = text.parse().ok()?;
        (value.fract() == 0.0 && (0.0..=9e15).contains(&value)).then_some(value as u64)
    })
}

#[cfg(test)]
#[path = "openai_tests.rs"]
mod tests;
