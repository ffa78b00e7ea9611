//! From a request's path to the API that it uses.

use super::headers::Headers;

/// A request API and with it the shape of bodies and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    ChatCompletions,
    /// OpenAI completions.
    Completions,
    /// Anything else: the body is not read.
    PassThrough,
}

/// A parser that a configuration can list: it claims the paths of its APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParserKind {
    /// `openai-parser`
    OpenAi,
    /// `passthrough-parser`: claims every path that no other parser does.
    PassThrough,
}

impl Api {
    /// The parser that reads it.
    pub fn parser(self) -> ParserKind {
        match self {
            Self::ChatCompletions | Self::Completions => ParserKind::OpenAi,
            Self::PassThrough => ParserKind::PassThrough,
        }
    }
}

impl ParserKind {
    /// All parsers.
    pub const ALL: [Self; 2] = [Self::OpenAi, Self::PassThrough];

    /// The type under which a configuration names it.
    pub fn plugin_type(self) -> &'static str {
        match self {
            Self::OpenAi => "openai-parser",
            Self::PassThrough => "passthrough-parser",
        }
    }

    /// The path suffixes that the parser claims.
    fn claims(self) -> &'static [(&'static str, Api)] {
        match self {
            Self::OpenAi => &[("chat/completions", Api::ChatCompletions), ("completions", Api::Completions)],
            Self::PassThrough => &[],
        }
    }
}

/// The parsers of a configuration.
#[derive(Clone, Debug)]
pub struct Parsers {
    claims: Vec<(&'static str, Api)>,
    falls_back: bool,
}

impl Parsers {
    /// The path of a request that names none, as the peer has it.
    pub const DEFAULT_PATH: &'static str = "/v1/completions";

    /// Parsers in the order of the configuration. As with the peer, those after a
    /// pass-through parser are never asked.
    pub fn new(kinds: &[ParserKind]) -> Self {
        let fallback = kinds.iter().position(|kind| *kind == ParserKind::PassThrough);
        let asked = &kinds[..fallback.unwrap_or(kinds.len())];
        Self {
            claims: asked.iter().flat_map(|kind| kind.claims()).copied().collect(),
            falls_back: fallback.is_some(),
        }
    }

    /// The API for a path: the longest claimed suffix that begins at a segment.
    /// `None` when nothing claims the path and there is no fallback.
    pub fn resolve(&self, path: &str) -> Option<Api> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let path = path.strip_suffix('/').unwrap_or(path);
        let best = self
            .claims
            .iter()
            .filter(|(suffix, _)| {
                path.strip_suffix(suffix).is_some_and(|before| before.is_empty() || before.ends_with('/'))
            })
            .max_by_key(|(suffix, _)| suffix.len());
        match best {
            Some((_, api)) => Some(*api),
            None => self.falls_back.then_some(Api::PassThrough),
        }
    }

    /// The path that decides: `:path`, or what a gateway that rewrote it left.
    pub fn path_of(headers: &Headers) -> &str {
        headers.first_text(&[":path", "x-original-path", "x-forwarded-path"]).unwrap_or(Self::DEFAULT_PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_suffix_on_a_segment_boundary_wins() {
        let parsers = Parsers::new(&[ParserKind::OpenAi, ParserKind::PassThrough]);
        let table = [
            ("/v1/chat/completions", Api::ChatCompletions),
            ("/v1/completions", Api::Completions),
            ("completions", Api::Completions),
            ("/v1/completions/", Api::Completions),
            ("/v1/chat/completions?a=b/completions", Api::ChatCompletions),
            ("/openai/deployments/x/chat/completions", Api::ChatCompletions),
            ("/x/mycompletions", Api::PassThrough),
            ("/v1/models", Api::PassThrough),
            ("/", Api::PassThrough),
            ("", Api::PassThrough),
        ];
        for (path, api) in table {
            assert_eq!(parsers.resolve(path), Some(api), "{path}");
        }
    }

    #[test]
    fn without_a_fallback_a_path_can_be_unclaimed() {
        let parsers = Parsers::new(&[ParserKind::OpenAi]);
        assert_eq!(parsers.resolve("/v1/messages"), None);
        let parsers = Parsers::new(&[ParserKind::PassThrough, ParserKind::OpenAi]);
        assert_eq!(parsers.resolve("/v1/completions"), Some(Api::PassThrough));
    }

    #[test]
    fn the_path_comes_from_the_first_header_that_has_one() {
        let path = |pairs: &[(&str, &str)]| {
            let headers: Headers = pairs.iter().copied().collect();
            Parsers::path_of(&headers).to_owned()
        };
        assert_eq!(path(&[(":path", "/a"), ("x-original-path", "/b")]), "/a");
        assert_eq!(path(&[("x-forwarded-path", "/c"), ("x-original-path", "/b")]), "/b");
        assert_eq!(path(&[("x-forwarded-path", "/c")]), "/c");
        assert_eq!(path(&[]), "/v1/completions");
    }
}
