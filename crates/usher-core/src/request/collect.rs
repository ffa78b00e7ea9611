//! Collects the data of a JSON body that the picker needs, while the body is scanned. A
//! [`Format`] says where an API has it.

use super::body::Span;
use super::features::Features;
use super::json::{Sink, Token};
use super::messages::{self, BlockFormat, Blocks, Messages};
use super::prompt::{self, Part, PartKind, Prompt};
use super::text::unescape;
use super::values::{count, text};

/// The bodies of an API.
#[derive(Debug)]
pub(super) struct Format {
    /// Meaning of the member of this name in the body's object.
    pub member: fn(&[u8]) -> Member,
    /// Said to a client whose body has no prompt, or one that can't be read.
    pub problem: &'static str,
}

/// Meaning of a member of the body's object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Member {
    /// Irrelevant field.
    Other,
    /// The model's name.
    Model,
    /// The response is to be a stream.
    Stream,
    /// Salt of the prefix cache.
    CacheSalt,
    /// The client's limit on generated tokens; of several the one with the lowest rank.
    OutputCap(usize),
    /// An object in which this member is the limit.
    Sampling(&'static [u8]),
    /// Input that a model reads before the prompt, in this place: a list or object of this kind.
    Before(usize, PartKind),
    /// Input that a model reads before the prompt, in this place: text, or a list or object.
    Instructions(usize),
    /// The system prompt: text or blocks, read before the messages.
    System(&'static BlockFormat),
    /// The prompt: a list of messages, which may hold blocks.
    Messages(&'static BlockFormat),
    /// The prompt: text, texts or token ids.
    Texts,
    /// The prompt: text.
    Text,
    /// The prompt: token ids.
    Ids,
    /// The prompt: a list of objects, as it stands.
    Items,
    /// The prompt: anything but null, as it stands.
    Input,
    /// The multimodal items of a prompt of token ids.
    Features,
}

/// Shape of the value that should be the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shape {
    #[default]
    Missing,
    Empty,
    Texts,
    Tokens,
    /// Messages, items, or any input.
    Read,
    Wrong,
}

/// Data of a body that the picker needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed {
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
    /// The prompt in the body.
    pub prompt: Prompt,
    /// Just behind the body's opening brace, and whether a member follows: where
    /// a member can be put in.
    pub first_member: (usize, bool),
}

/// Ranks of limits on generated tokens, and places before the prompt.
const RANKS: usize = 3;
const PLACES: usize = 2;

/// Collects a [`Parsed`] from the tokens of a body.
#[derive(Debug)]
pub(super) struct Collector {
    format: &'static Format,
    parsed: Parsed,
    depth: usize,
    object: bool,
    top: Member,
    value_start: usize,
    caps: [Option<u64>; RANKS],
    /// The limit's name was the last in its object.
    in_sampling: bool,
    shape: Shape,
    before: [Option<Part>; PLACES],
    system: Vec<Part>,
    system_wrong: bool,
    system_blocks: Option<Box<Blocks>>,
    messages: Messages,
    features: Option<Box<Features>>,
}

impl Collector {
    /// A collector for bodies of this format.
    pub(super) fn new(format: &'static Format) -> Self {
        Self {
            format,
            parsed: Parsed::default(),
            depth: 0,
            object: false,
            top: Member::Other,
            value_start: 0,
            caps: [None; RANKS],
            in_sampling: false,
            shape: Shape::Missing,
            before: [None; PLACES],
            system: Vec::new(),
            system_wrong: false,
            system_blocks: None,
            messages: Messages::default(),
            features: None,
        }
    }

    /// Bytes that are kept of what the body said: its texts aren't, but their places are.
    pub(super) fn counted(&self) -> usize {
        let system = self.system_blocks.as_ref().map_or(0, |blocks| blocks.counted());
        let features = self.features.as_ref().map_or(0, |features| features.counted());
        // What the system says is put before the other parts at the end.
        let lists = prompt::bytes(&self.parsed.prompt.parts) + 2 * prompt::bytes(&self.system);
        lists + system + self.messages.counted() + features
    }

    /// Returns the parsed body. Call it once, at the end.
    ///
    /// # Errors
    /// A message for the client if the body is JSON but no request of this API.
    pub(super) fn finish(&mut self) -> Result<Parsed, &'static str> {
        if !self.object {
            return Err("the body must be a JSON object");
        }
        if self.system_wrong || !matches!(self.shape, Shape::Texts | Shape::Tokens | Shape::Read) {
            return Err(self.format.problem);
        }
        let mut parsed = std::mem::take(&mut self.parsed);
        if self.before.iter().any(Option::is_some) || !self.system.is_empty() {
            let before = self.before.iter().flatten().copied().chain(self.system.drain(..));
            parsed.prompt.parts.splice(..0, before);
        }
        if let Some(features) = &mut self.features {
            parsed.prompt.features = features.finish();
        }
        parsed.max_output_tokens = self.caps.iter().copied().flatten().next();
        Ok(parsed)
    }

    /// The name of a member.
    fn key(&mut self, span: Span, head: &[u8]) {
        // A long one is none of ours, whatever its beginning.
        let name = if head.len() == span.len() { head } else { &[] };
        if !self.named(name) && name.contains(&b'\\') {
            self.named(unescape(name).as_bytes());
        }
    }

    /// The name of a member without its escapes; `false` when it means nothing.
    fn named(&mut self, name: &[u8]) -> bool {
        let Some(level) = self.depth.checked_sub(2) else {
            self.top = (self.format.member)(name);
            self.parsed.first_member.1 = true;
            return !matches!(self.top, Member::Other);
        };
        match self.top {
            Member::Messages(_) => self.messages.key(level, name),
            Member::System(_) => match &mut self.system_blocks {
                Some(blocks) => blocks.key(level, name),
                None => true,
            },
            Member::Sampling(limit) if level == 0 => {
                self.in_sampling = limit == name;
                self.in_sampling
            }
            Member::Features => match &mut self.features {
                Some(features) => features.key(level, name),
                None => true,
            },
            // Nobody asks for it.
            _ => true,
        }
    }

    /// A value inside the body's object, or its beginning.
    fn top_value(&mut self, token: Token, span: Span, head: &[u8]) {
        self.value_start = span.start;
        match self.top {
            Member::Other => {}
            Member::Model => {
                self.parsed.model = text(token, span);
                self.parsed.model_value = match token {
                    Token::String { .. } => Some(quoted(span)),
                    Token::ObjectStart | Token::ArrayStart => None,
                    _ => Some(span),
                };
            }
            Member::Stream => self.parsed.stream = token == Token::True,
            Member::CacheSalt => self.parsed.cache_salt = text(token, span),
            Member::OutputCap(rank) => self.caps[rank] = count(token, span, head),
            Member::Sampling(_) => (self.caps[0], self.in_sampling) = (None, false),
            Member::Before(place, _) => self.before[place] = None,
            Member::Instructions(place) => self.before[place] = text(token, span),
            Member::System(format) => {
                self.system.clear();
                self.system.extend(text(token, span));
                self.system_wrong = !messages::is_content(token);
                self.system_blocks = (token == Token::ArrayStart).then(|| Box::new(Blocks::new(format)));
            }
            Member::Features => self.features = Some(Box::default()),
            prompt => self.prompt_value(prompt, token, span),
        }
    }

    /// The value of the member that is the prompt, or its beginning.
    fn prompt_value(&mut self, member: Member, token: Token, span: Span) {
        let parts = &mut self.parsed.prompt.parts;
        parts.clear();
        self.parsed.prompt.separate = false;
        self.shape = match (member, token) {
            (Member::Texts | Member::Text, Token::String { .. }) if !span.is_empty() => {
                parts.extend(text(token, span));
                Shape::Texts
            }
            (Member::Texts | Member::Ids | Member::Items | Member::Messages(_), Token::ArrayStart) => {
                Shape::Empty
            }
            (Member::Input, Token::ObjectStart | Token::ArrayStart) => Shape::Read,
            (Member::Input, token) if token != Token::Null => {
                parts.push(text(token, span).unwrap_or(Part::plain(PartKind::Json, span)));
                Shape::Read
            }
            _ => Shape::Wrong,
        };
    }

    /// A value further inside, or its beginning.
    fn inner_value(&mut self, level: usize, token: Token, span: Span, head: &[u8]) {
        let element = level == 0;
        match self.top {
            Member::Messages(_) if element => {
                self.object_element(token);
                self.messages.begin(self.parsed.prompt.parts.len());
            }
            Member::Messages(format) => {
                let parts = &mut self.parsed.prompt.parts;
                if !self.messages.value(format, level, token, span, head, parts) {
                    self.shape = Shape::Wrong;
                }
            }
            Member::System(_) => {
                if let Some(blocks) = &mut self.system_blocks {
                    self.system_wrong |= !blocks.value(level, token, span, head);
                }
            }
            Member::Texts | Member::Ids if element => self.prompt_element(token, span, head),
            Member::Items if element => self.object_element(token),
            Member::Sampling(_) if element && self.in_sampling => self.caps[0] = count(token, span, head),
            Member::Features => {
                if let Some(features) = &mut self.features {
                    features.value(level, token, span, head);
                }
            }
            _ => {}
        }
    }

    /// An element of a list of objects.
    fn object_element(&mut self, token: Token) {
        self.shape = match (self.shape, token) {
            (Shape::Empty | Shape::Read, Token::ObjectStart | Token::Null) => Shape::Read,
            _ => Shape::Wrong,
        };
    }

    /// An element of a list of texts or token ids.
    fn prompt_element(&mut self, token: Token, span: Span, head: &[u8]) {
        self.shape = match (self.shape, token) {
            (Shape::Empty | Shape::Texts, Token::String { .. }) if matches!(self.top, Member::Texts) => {
                let Prompt { parts, separate, .. } = &mut self.parsed.prompt;
                prompt::push(parts, text(token, span));
                *separate = parts.len() > 1;
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

    /// The end of a list or object.
    fn end(&mut self, span: Span) {
        let Some(level) = self.depth.checked_sub(2) else {
            if self.depth == 1 {
                self.top_end(Span { start: self.value_start, end: span.end });
            }
            return;
        };
        match self.top {
            Member::Messages(_) => self.messages.end(level, span, &mut self.parsed.prompt.parts),
            Member::System(_) => {
                if let Some(blocks) = &mut self.system_blocks {
                    blocks.end(level, span, &mut self.system);
                }
            }
            _ => {}
        }
    }

    /// The end of a list or object that a member of the body's object holds.
    fn top_end(&mut self, whole: Span) {
        let parts = &mut self.parsed.prompt.parts;
        match self.top {
            Member::Model => self.parsed.model_value = Some(whole),
            Member::Before(place, kind) => self.before[place] = Some(Part::plain(kind, whole)),
            Member::Instructions(place) => self.before[place] = Some(Part::plain(PartKind::Json, whole)),
            Member::Texts | Member::Ids if self.shape == Shape::Tokens => {
                parts.push(Part::plain(PartKind::Tokens, whole));
            }
            Member::Items | Member::Input => parts.push(Part::plain(PartKind::Json, whole)),
            _ => {}
        }
    }
}

impl Sink for Collector {
    fn token(&mut self, token: Token, span: Span, head: &[u8]) {
        match token {
            Token::ObjectEnd | Token::ArrayEnd => {
                self.depth -= 1;
                return self.end(span);
            }
            Token::Key => return self.key(span, head),
            _ => {}
        }
        match self.depth {
            0 => {
                self.object = token == Token::ObjectStart;
                self.parsed.first_member.0 = span.end;
            }
            1 => self.top_value(token, span, head),
            depth => self.inner_value(depth - 2, token, span, head),
        }
        if matches!(token, Token::ObjectStart | Token::ArrayStart) {
            self.depth += 1;
        }
    }
}

/// A string's place with its quotes.
fn quoted(span: Span) -> Span {
    Span { start: span.start - 1, end: span.end + 1 }
}
