//! From a request's path to the API that it uses.

use super::headers::Headers;

/// A request API and with it the shape of bodies and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    ChatCompletions,
    /// Chat completions whose response is the rendered prompt.
    ChatCompletionsRender,
    /// OpenAI completions.
    Completions,
    /// Completions whose response is the rendered prompt.
    CompletionsRender,
    /// OpenAI embeddings.
    Embeddings,
    /// OpenAI responses.
    Responses,
    /// OpenAI conversations.
    Conversations,
    /// OpenAI image generations.
    ImageGenerations,
    /// Anthropic messages.
    Messages,
    /// Anthropic's count of a request's tokens: neither body nor response is read.
    CountTokens,
    /// vLLM's own generate, of token ids.
    VllmGenerate,
    /// SGLang's own generate, of token ids.
    SglangGenerate,
    /// `Generate` of vLLM's gRPC service.
    VllmGrpcGenerate,
    /// `Embed` of vLLM's gRPC service.
    VllmGrpcEmbed,
    /// `ChatCompletions` of Vertex AI's prediction service.
    VertexChatCompletions,
    /// `RawPredict` and `StreamRawPredict` of Vertex AI's prediction service: an
    /// OpenAI chat or response.
    VertexPredict,
    /// Anything else: the body is not read.
    PassThrough,
}

/// A parser that a configuration can list: it claims the paths of its APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParserKind {
    /// `openai-parser`
    OpenAi,
    /// `anthropic-parser`
    Anthropic,
    /// `vllmhttp-parser`
    VllmHttp,
    /// `sglanghttp-parser`
    SglangHttp,
    /// `vllmgrpc-parser`
    VllmGrpc,
    /// `vertexai-parser`
    VertexAi,
    /// `passthrough-parser`: claims every path that no other parser does.
    PassThrough,
}

impl Api {
    /// The parser that reads it.
    pub fn parser(self) -> ParserKind {
        match self {
            Self::ChatCompletions
            | Self::ChatCompletionsRender
            | Self::Completions
            | Self::CompletionsRender
            | Self::Embeddings
            | Self::Responses
            | Self::Conversations
            | Self::ImageGenerations => ParserKind::OpenAi,
            Self::Messages | Self::CountTokens => ParserKind::Anthropic,
            Self::VllmGenerate => ParserKind::VllmHttp,
            Self::SglangGenerate => ParserKind::SglangHttp,
            Self::VllmGrpcGenerate | Self::VllmGrpcEmbed => ParserKind::VllmGrpc,
            Self::VertexChatCompletions | Self::VertexPredict => ParserKind::VertexAi,
            Self::PassThrough => ParserKind::PassThrough,
        }
    }

    /// Operation and provider, as OpenTelemetry's conventions for generative AI name them. The provider is whose API it
    /// is. `None`: no generative operation.
    pub fn gen_ai(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::ChatCompletions | Self::Responses => ("chat", "openai"),
            Self::Completions => ("text_completion", "openai"),
            Self::Embeddings => ("embeddings", "openai"),
            Self::ImageGenerations => ("generate_content", "openai"),
            Self::Messages => ("chat", "anthropic"),
            Self::VertexChatCompletions | Self::VertexPredict => ("chat", "gcp.vertex_ai"),
            Self::VllmGenerate | Self::VllmGrpcGenerate => ("text_completion", "vllm"),
            Self::VllmGrpcEmbed => ("embeddings", "vllm"),
            Self::SglangGenerate => ("text_completion", "sglang"),
            Self::ChatCompletionsRender
            | Self::CompletionsRender
            | Self::Conversations
            | Self::CountTokens
            | Self::PassThrough => return None,
        })
    }

    /// Returns `true` if the model in its bodies can be replaced. A request that names none
    /// is refused then.
    pub fn rewrites_model(self) -> bool {
        let rewrites =
            matches!(self.parser(), ParserKind::OpenAi | ParserKind::Anthropic | ParserKind::VllmHttp);
        rewrites && self != Self::CountTokens
    }
}

impl ParserKind {
    /// All parsers.
    pub const ALL: [Self; 7] = [
        Self::OpenAi,
        Self::Anthropic,
        Self::VllmHttp,
        Self::SglangHttp,
        Self::VllmGrpc,
        Self::VertexAi,
        Self::PassThrough,
    ];

    /// The type under which a configuration names it.
    pub fn plugin_type(self) -> &'static str {
        match self {
            Self::OpenAi => "openai-parser",
            Self::Anthropic => "anthropic-parser",
            Self::VllmHttp => "vllmhttp-parser",
            Self::SglangHttp => "sglanghttp-parser",
            Self::VllmGrpc => "vllmgrpc-parser",
            Self::VertexAi => "vertexai-parser",
            Self::PassThrough => "passthrough-parser",
        }
    }

    /// Returns `true` if its requests are gRPC, which only pods that speak HTTP/2 serve.
    pub fn needs_http2(self) -> bool {
        matches!(self, Self::VllmGrpc | Self::VertexAi)
    }

    /// The path suffixes that the parser claims.
    fn claims(self) -> &'static [(&'static str, Api)] {
        match self {
            Self::OpenAi => &[
                ("chat/completions", Api::ChatCompletions),
                ("completions", Api::Completions),
                ("embeddings", Api::Embeddings),
                ("responses", Api::Responses),
                ("conversations", Api::Conversations),
                ("chat/completions/render", Api::ChatCompletionsRender),
                ("completions/render", Api::CompletionsRender),
                ("images/generations", Api::ImageGenerations),
            ],
            Self::Anthropic => &[("messages", Api::Messages), ("messages/count_tokens", Api::CountTokens)],
            Self::VllmHttp => &[("inference/v1/generate", Api::VllmGenerate)],
            Self::SglangHttp => &[("generate", Api::SglangGenerate)],
            Self::VllmGrpc => &[
                ("vllm.grpc.engine.VllmEngine/Generate", Api::VllmGrpcGenerate),
                ("vllm.grpc.engine.VllmEngine/Embed", Api::VllmGrpcEmbed),
            ],
            // Of any version of the package google.cloud.aiplatform.
            Self::VertexAi => &[
                ("PredictionService/ChatCompletions", Api::VertexChatCompletions),
                ("PredictionService/StreamRawPredict", Api::VertexPredict),
                ("PredictionService/RawPredict", Api::VertexPredict),
            ],
            Self::PassThrough => &[],
        }
    }
}

/// The parsers of a configuration.
#[derive(Clone, Debug)]
pub struct Parsers {
    /// The longest suffixes first.
    claims: Vec<(&'static str, Api)>,
    falls_back: bool,
    /// API of the default path, for requests that name none; `None`: no parser claims it.
    default: Option<Api>,
}

impl Parsers {
    /// The path of a request that names none, as llm-d-router has it.
    pub const DEFAULT_PATH: &'static str = "/v1/completions";

    /// Parsers in the order of the configuration. As in llm-d-router, those after a
    /// pass-through parser are never asked.
    pub fn new(kinds: &[ParserKind]) -> Self {
        let fallback = kinds.iter().position(|kind| *kind == ParserKind::PassThrough);
        let asked = &kinds[..fallback.unwrap_or(kinds.len())];
        let mut claims: Vec<_> = asked.iter().flat_map(|kind| kind.claims()).copied().collect();
        claims.sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        let mut parsers = Self { claims, falls_back: fallback.is_some(), default: None };
        parsers.default = parsers.resolve(Self::DEFAULT_PATH);
        parsers
    }

    /// The API for a path: the longest claimed suffix that begins at a segment, or at
    /// a name in a dotted one, as gRPC's paths have them. `None` when nothing claims
    /// the path and there is no fallback.
    pub fn resolve(&self, path: &str) -> Option<Api> {
        let path = path.as_bytes();
        let path = &path[..memchr::memchr2(b'?', b'#', path).unwrap_or(path.len())];
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let longest = self.claims.iter().find(|(suffix, _)| {
            let before = path.strip_suffix(suffix.as_bytes());
            before.is_some_and(|before| matches!(before.last(), None | Some(b'/' | b'.')))
        });
        match longest {
            Some((_, api)) => Some(*api),
            None => self.falls_back.then_some(Api::PassThrough),
        }
    }

    /// The API of a request that names no path.
    pub fn default_api(&self) -> Option<Api> {
        self.default
    }

    /// The path that decides: `:path`, or what a gateway that rewrote it left.
    pub fn path_of(headers: &Headers) -> &str {
        // A path is no name: it is read here and not kept, however long its query is.
        let text = |name: &&str| headers.get(name).and_then(|path| std::str::from_utf8(path).ok());
        let names = [":path", "x-original-path", "x-forwarded-path"];
        let mut paths = names.iter().filter_map(text);
        paths.find(|path| !path.is_empty()).unwrap_or(Self::DEFAULT_PATH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_suffix_on_a_segment_boundary_wins() {
        let parsers = Parsers::new(&ParserKind::ALL);
        let table = [
            ("/v1/chat/completions", Api::ChatCompletions),
            ("/v1/chat/completions/render", Api::ChatCompletionsRender),
            ("/v1/completions", Api::Completions),
            ("completions", Api::Completions),
            ("/v1/completions/", Api::Completions),
            ("/v1/completions/render", Api::CompletionsRender),
            ("/v1/chat/completions?a=b/completions", Api::ChatCompletions),
            ("/v1/chat/completions?a=b/embeddings", Api::ChatCompletions),
            ("/openai/deployments/x/chat/completions", Api::ChatCompletions),
            ("/v1/embeddings", Api::Embeddings),
            ("/v1/responses", Api::Responses),
            ("/v1/conversations", Api::Conversations),
            ("/v1/images/generations", Api::ImageGenerations),
            ("/v1/messages", Api::Messages),
            ("/v1/messages/", Api::Messages),
            ("/v1/messages/count_tokens", Api::CountTokens),
            ("/inference/v1/generate", Api::VllmGenerate),
            ("/inference/v1/generate/", Api::VllmGenerate),
            ("/generate", Api::SglangGenerate),
            ("/v2/generate", Api::SglangGenerate),
            ("/vllm.grpc.engine.VllmEngine/Generate", Api::VllmGrpcGenerate),
            ("/vllm.grpc.engine.VllmEngine/Embed", Api::VllmGrpcEmbed),
            ("/vllm.grpc.engine.VllmEngine/HealthCheck", Api::PassThrough),
            (
                "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions",
                Api::VertexChatCompletions,
            ),
            ("/google.cloud.aiplatform.v1.PredictionService/RawPredict", Api::VertexPredict),
            ("/google.cloud.aiplatform.v1.PredictionService/StreamRawPredict", Api::VertexPredict),
            ("/google.cloud.aiplatform.v1.PredictionService/Predict", Api::PassThrough),
            ("/x/mycompletions", Api::PassThrough),
            ("/v1/responses/resp_1/cancel", Api::PassThrough),
            ("/v1/models", Api::PassThrough),
            ("/", Api::PassThrough),
            ("", Api::PassThrough),
        ];
        for (path, api) in table {
            assert_eq!(parsers.resolve(path), Some(api), "{path}");
        }
    }

    #[test]
    fn a_parser_claims_the_paths_of_its_apis() {
        for kind in ParserKind::ALL {
            for (suffix, api) in kind.claims() {
                assert_eq!(api.parser(), kind, "{suffix}");
                assert_eq!(Parsers::new(&[kind]).resolve(suffix), Some(*api));
            }
        }
        let default = |kinds: &[ParserKind]| Parsers::new(kinds).default_api();
        assert_eq!(default(&[ParserKind::OpenAi]), Some(Api::Completions));
        assert_eq!(default(&[ParserKind::PassThrough]), Some(Api::PassThrough));
        assert_eq!(default(&[ParserKind::VllmGrpc]), None);
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
