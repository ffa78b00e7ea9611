//! Usage in JSON.
//!
//! The same scanner serves JSON responses and event streams: it looks for a member
//! named as its [`Dialect`] has it, and reads the object behind it, however the bytes
//! are cut into chunks. Text that a model generated can't be mistaken for it, as
//! quotes inside a JSON string are escaped.
//!
//! An event stream is read line by line: an object that is spread over several `data:` lines, which no
//! model server does, is not found.

use std::sync::LazyLock;

use super::super::body::Span;
use super::super::json::{Scanner, Sink, Token};
use super::super::name::Name;
use super::counts::Usage;

static USAGE: LazyLock<Name> = LazyLock::new(|| Name::new("\"usage\""));
static META_INFO: LazyLock<Name> = LazyLock::new(|| Name::new("\"meta_info\""));

/// Format in which an API reports usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `"usage": {"prompt_tokens", "completion_tokens", "prompt_tokens_details": {"cached_tokens"}}`,
    /// with `input` and `output` in place of `prompt` and `completion` in newer APIs.
    #[default]
    OpenAi,
    /// `"usage": {"input_tokens", "output_tokens", "cache_read_input_tokens"}`. The first
    /// and the last event of a stream have one each: later numbers replace earlier ones.
    Anthropic,
    /// `"meta_info": {"prompt_tokens", "completion_tokens", "cached_tokens"}`
    Sglang,
}

impl Dialect {
    /// The name of the member that holds usage.
    fn name(self) -> &'static Name {
        match self {
            Self::OpenAi | Self::Anthropic => &USAGE,
            Self::Sglang => &META_INFO,
        }
    }

    /// Usage field of this name, in the object at depth 1 or, with `details`, in the details at 2.
    fn field(self, depth: usize, details: bool, name: &[u8]) -> Option<Field> {
        match (self, depth, name) {
            (Self::OpenAi | Self::Sglang, 1, b"prompt_tokens") => Some(Field::Prompt),
            (Self::OpenAi | Self::Sglang, 1, b"completion_tokens") => Some(Field::Completion),
            (Self::OpenAi | Self::Anthropic, 1, b"input_tokens") => Some(Field::Prompt),
            (Self::OpenAi | Self::Anthropic, 1, b"output_tokens") => Some(Field::Completion),
            (Self::OpenAi, 1, b"prompt_tokens_details" | b"input_tokens_details") => Some(Field::Details),
            (Self::OpenAi, 2, b"cached_tokens") if details => Some(Field::Cached),
            (Self::Anthropic, 1, b"cache_read_input_tokens") => Some(Field::Cached),
            (Self::Sglang, 1, b"cached_tokens") => Some(Field::Cached),
            _ => None,
        }
    }
}

/// Looks for usage in the chunks of a response.
#[derive(Debug, Default)]
pub struct UsageScanner {
    dialect: Dialect,
    /// `true` if usage is merged into what was found before, member by member, and doesn't replace it.
    merges: bool,
    state: State,
    found: Option<Usage>,
}

#[derive(Debug)]
enum State {
    /// Number of bytes of the name at the end of the last chunk, or a backslash.
    Search {
        matched: usize,
        backslash: bool,
    },
    Colon,
    Value,
    Object(Box<(Scanner, Fields)>),
}

impl Default for State {
    fn default() -> Self {
        Self::SEARCH
    }
}

impl State {
    const SEARCH: Self = Self::Search { matched: 0, backslash: false };
}

impl UsageScanner {
    /// A scanner of responses in this dialect.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, ..Self::default() }
    }

    /// The response is a stream of events. Call it before the first chunk.
    pub fn event_stream(&mut self) {
        self.merges = self.dialect == Dialect::Anthropic;
    }

    /// The last usage that was complete: servers that report with every event
    /// count up, so the last one is the request's.
    pub fn found(&self) -> Option<Usage> {
        self.found
    }

    /// Scans the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        let name = self.dialect.name();
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = match &mut self.state {
                State::Search { matched, backslash } => match find_name(name, rest, *matched, *backslash) {
                    Some(after) => {
                        self.state = State::Colon;
                        &rest[after..]
                    }
                    None => {
                        self.state = search_on(name, rest, *matched, *backslash);
                        &[]
                    }
                },
                State::Colon | State::Value => {
                    let skipped = rest.trim_ascii_start();
                    match (skipped.first(), &self.state) {
                        (None, _) => &[],
                        (Some(b':'), State::Colon) => {
                            self.state = State::Value;
                            &skipped[1..]
                        }
                        (Some(b'{'), State::Value) => {
                            self.state =
                                State::Object(Box::new((Scanner::default(), Fields::of(self.dialect))));
                            skipped
                        }
                        _ => {
                            self.state = State::SEARCH;
                            skipped
                        }
                    }
                }
                State::Object(inner) => {
                    let (scanner, fields) = &mut **inner;
                    let error = scanner.feed(rest, fields).err();
                    let before = fields.fed;
                    fields.fed += rest.len();
                    let next = if scanner.is_done() {
                        if fields.usage != Usage::default() {
                            let mut usage = self.found.filter(|_| self.merges).unwrap_or_default();
                            usage.merge(fields.usage);
                            self.found = Some(usage);
                        }
                        Some(fields.end)
                    } else {
                        // What is broken ends where it breaks: the next event is read again.
                        error.map(|error| error.offset)
                    };
                    match next {
                        Some(next) => {
                            self.state = State::SEARCH;
                            &rest[next - before..]
                        }
                        None => &[],
                    }
                }
            };
        }
    }
}

/// Finds the name: the offset behind it. `matched` bytes of it stood before the
/// first byte, or a backslash.
fn find_name(name: &Name, bytes: &[u8], matched: usize, backslash: bool) -> Option<usize> {
    let left = name.len() - matched;
    if matched > 0 && name.goes_on(bytes, matched) == left {
        return Some(left);
    }
    name.find(bytes, 0, backslash).map(|at| at + name.len())
}

/// Search state after bytes in which the name doesn't end.
fn search_on(name: &Name, bytes: &[u8], matched: usize, backslash: bool) -> State {
    let matched = if matched > 0 && name.goes_on(bytes, matched) == bytes.len() {
        matched + bytes.len()
    } else {
        name.begun(bytes, backslash)
    };
    State::Search { matched, backslash: bytes.ends_with(b"\\") }
}

/// Reads the members of a usage object.
#[derive(Debug, Default)]
struct Fields {
    dialect: Dialect,
    usage: Usage,
    depth: usize,
    field: Option<Field>,
    details: bool,
    end: usize,
    fed: usize,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Prompt,
    Completion,
    Cached,
    Details,
}

impl Fields {
    fn of(dialect: Dialect) -> Self {
        Self { dialect, ..Self::default() }
    }
}

impl Sink for Fields {
    fn token(&mut self, token: Token, span: Span, head: &[u8]) {
        match token {
            Token::ObjectStart | Token::ArrayStart => {
                if self.depth == 1 {
                    self.details = matches!(self.field, Some(Field::Details));
                }
                self.depth += 1;
                // What is inside is not the field's value.
                self.field = None;
            }
            Token::ObjectEnd | Token::ArrayEnd => {
                self.depth -= 1;
                self.end = span.end;
            }
            Token::Key => {
                self.field = self.dialect.field(self.depth, self.details, head);
            }
            // Some servers write numbers as strings.
            Token::Number | Token::String { .. } => {
                let whole = head.len() == span.len();
                let text = std::str::from_utf8(head).ok().filter(|_| whole);
                let number = text.and_then(|text| text.parse().ok());
                match self.field {
                    Some(Field::Prompt) => self.usage.prompt_tokens = number,
                    Some(Field::Completion) => self.usage.completion_tokens = number,
                    Some(Field::Cached) => self.usage.cached_tokens = number,
                    Some(Field::Details) | None => {}
                }
            }
            Token::True | Token::False | Token::Null => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str, size: usize) -> Option<Usage> {
        let mut scanner = UsageScanner::default();
        for chunk in text.as_bytes().chunks(size) {
            scanner.feed(chunk);
        }
        scanner.found()
    }

    #[test]
    fn usage_is_found_at_any_split() {
        // text, prompt, completion, cached
        type Row = (&'static str, Option<u64>, Option<u64>, Option<u64>);
        let table: [Row; 15] = [
            (
                r#"{"usage":{"prompt_tokens":7,"completion_tokens":10,"total_tokens":17}}"#,
                Some(7),
                Some(10),
                None,
            ),
            (
                r#"{"usage" : {"input_tokens":"7","output_tokens":1,"input_tokens_details":{"cached_tokens":3}}}"#,
                Some(7),
                Some(1),
                Some(3),
            ),
            (
                "data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":2}}\n\ndata: [DONE]\n\n",
                Some(2),
                None,
                None,
            ),
            (
                r#"{"usage":{"prompt_tokens":1},"x":{"usage":{"prompt_tokens":5,"completion_tokens":6}}}"#,
                Some(5),
                Some(6),
                None,
            ),
            (r#"{"tools":{"usage":{"type":"string"}},"usage":{"completion_tokens":4}}"#, None, Some(4), None),
            (
                r#"{"usage":{"x":{"prompt_tokens":9,"cached_tokens":9},"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}"#,
                None,
                Some(4),
                Some(0),
            ),
            (r#"{"text":"\"usage\":{\"prompt_tokens\":9}"}"#, None, None, None),
            (r#"{"usage":[1],"usage":5,"usage":"x"}"#, None, None, None),
            (r#"{"us""usage":{"prompt_tokens":8}"#, Some(8), None, None),
            (r#"{"a\"usage":{"prompt_tokens":9}}"#, None, None, None),
            (r#"{"\\":"\\","usage":{"prompt_tokens":9}}"#, Some(9), None, None),
            (r#"{"usage":{"completion_tokens":1,"prompt_tokens":[9]}}"#, None, Some(1), None),
            (
                r#"{"usage":{"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":[9]}}}"#,
                None,
                Some(1),
                None,
            ),
            ("data: {\"usage\":{\"x\n\ndata: {\"usage\":{\"prompt_tokens\":3}}\n\n", Some(3), None, None),
            (r#"{"usage":{broken"usage":{"prompt_tokens":4}}"#, Some(4), None, None),
        ];
        for (text, prompt_tokens, completion_tokens, cached_tokens) in table {
            let want = Usage { prompt_tokens, completion_tokens, cached_tokens };
            let want = (want != Usage::default()).then_some(want);
            for size in 1..=text.len() {
                assert_eq!(scan(text, size), want, "{text} in chunks of {size}");
            }
        }
    }

    #[test]
    fn broken_usage_is_skipped() {
        assert_eq!(scan(r#"{"usage":{prompt_tokens:1}}"#, 5), None);
        assert_eq!(scan(r#"{"usage":{"prompt_tokens":1"#, 5), None);
        assert_eq!(scan(r#"{"usage":{"prompt_tokens":-1}}"#, 5), None);
        let long = format!(r#"{{"usage":{{"prompt_tokens":"{}12"}}}}"#, "0".repeat(70));
        assert_eq!(scan(&long, 5), None, "a number of which only a part is seen");
    }
}
