//! Token usage, read from a response as it passes. Nothing of the response is kept.

mod cache;
mod counts;
mod scanner;

pub use cache::CacheReports;
pub use counts::Usage;
pub use scanner::{Dialect, UsageScanner};

use super::api::Api;
use super::{vertex, vllm_grpc};

/// Looks for usage in the chunks of an API's responses.
#[derive(Debug)]
pub struct UsageReader(Reader);

#[derive(Debug)]
enum Reader {
    Json(UsageScanner),
    VllmGrpc(Box<vllm_grpc::UsageReading>),
    Vertex(Box<vertex::UsageReading>),
}

impl UsageReader {
    /// A reader of this API's responses; `None` when they are not read.
    pub fn of(api: Api) -> Option<Self> {
        let dialect = match api {
            Api::ChatCompletions
            | Api::Completions
            | Api::Embeddings
            | Api::Responses
            | Api::Conversations
            | Api::ImageGenerations
            | Api::VllmGenerate => Dialect::OpenAi,
            Api::Messages => Dialect::Anthropic,
            Api::SglangGenerate => Dialect::Sglang,
            Api::VllmGrpcGenerate | Api::VllmGrpcEmbed => {
                return Some(Self(Reader::VllmGrpc(Box::new(vllm_grpc::UsageReading::new(api)))));
            }
            Api::VertexChatCompletions | Api::VertexPredict => {
                return Some(Self(Reader::Vertex(Box::default())));
            }
            Api::ChatCompletionsRender | Api::CompletionsRender | Api::CountTokens | Api::PassThrough => {
                return None;
            }
        };
        Some(Self(Reader::Json(UsageScanner::new(dialect))))
    }

    /// The response is a stream of events. Call it before the first chunk.
    pub fn event_stream(&mut self) {
        if let Reader::Json(scanner) = &mut self.0 {
            scanner.event_stream();
        }
    }

    /// Scans the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        match &mut self.0 {
            Reader::Json(scanner) => scanner.feed(chunk),
            Reader::VllmGrpc(reading) => reading.feed(chunk),
            Reader::Vertex(reading) => reading.feed(chunk),
        }
    }

    /// The usage of the response so far.
    pub fn found(&self) -> Option<Usage> {
        match &self.0 {
            Reader::Json(scanner) => scanner.found(),
            Reader::VllmGrpc(reading) => reading.found(),
            Reader::Vertex(reading) => reading.found(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Usage that a reader finds in a response, however it is cut into chunks.
    fn read(api: Api, response: &str, event_stream: bool) -> Option<Usage> {
        let found = |size: usize| {
            let mut reader = UsageReader::of(api)?;
            if event_stream {
                reader.event_stream();
            }
            response.as_bytes().chunks(size).for_each(|chunk| reader.feed(chunk));
            reader.found()
        };
        let whole = found(response.len());
        for size in 1..response.len() {
            assert_eq!(found(size), whole, "{response} in chunks of {size}");
        }
        whole
    }

    /// Prompt, completion and cached tokens; -1: unknown.
    fn usage(prompt: i64, completion: i64, cached: i64) -> Option<Usage> {
        let [prompt_tokens, completion_tokens, cached_tokens] =
            [prompt, completion, cached].map(|number| u64::try_from(number).ok());
        Some(Usage { prompt_tokens, completion_tokens, cached_tokens })
    }

    #[test]
    fn each_api_has_its_names() {
        let details = r#"{"usage":{"prompt_tokens":4,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":1}}}"#;
        let response =
            r#"{"usage":{"input_tokens":4,"output_tokens":6,"input_tokens_details":{"cached_tokens":1}}}"#;
        let anthropic =
            r#"{"model":"m","usage":{"input_tokens":4,"output_tokens":6,"cache_read_input_tokens":1}}"#;
        let sglang = r#"{"text":"a","meta_info":{"id":"x","finish_reason":{"type":"stop"},"prompt_tokens":4,"completion_tokens":6,"cached_tokens":1}}"#;
        let table = [
            (Api::ChatCompletions, details, usage(4, 6, 1)),
            (Api::Completions, details, usage(4, 6, 1)),
            (Api::Embeddings, r#"{"usage":{"prompt_tokens":4,"total_tokens":4}}"#, usage(4, -1, -1)),
            (Api::Responses, response, usage(4, 6, 1)),
            (Api::ImageGenerations, response, usage(4, 6, 1)),
            (Api::VllmGenerate, details, usage(4, 6, 1)),
            (Api::Messages, anthropic, usage(4, 6, 1)),
            (Api::Messages, response, usage(4, 6, -1)),
            (Api::Messages, details, None),
            (Api::Completions, anthropic, usage(4, 6, -1)),
            (Api::SglangGenerate, sglang, usage(4, 6, 1)),
            (Api::SglangGenerate, details, None),
            (Api::Completions, sglang, None),
            (Api::ChatCompletionsRender, details, None),
            (Api::CompletionsRender, details, None),
            (Api::CountTokens, r#"{"input_tokens":4}"#, None),
            (Api::PassThrough, details, None),
        ];
        for (api, response, want) in table {
            assert_eq!(read(api, response, false), want, "{api:?} {response}");
        }
    }

    #[test]
    fn apis_without_usage_have_no_reader() {
        let unread = [Api::ChatCompletionsRender, Api::CompletionsRender, Api::CountTokens, Api::PassThrough];
        assert!(unread.into_iter().all(|api| UsageReader::of(api).is_none()));
    }

    #[test]
    fn the_events_of_a_stream_add_up() {
        let messages = concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":",
            "{\"input_tokens\":25,\"cache_read_input_tokens\":7,\"output_tokens\":1}}}\n\n",
            "event: content_block_delta\ndata: {\"delta\":{\"text\":\"\\\"usage\\\":{\\\"output_tokens\\\":9}\"}}\n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n",
        );
        assert_eq!(read(Api::Messages, messages, true), usage(25, 15, 7));
        // What is no stream has one usage, which is the last.
        assert_eq!(read(Api::Messages, messages, false), usage(-1, 15, -1));
        let zeros = "data: {\"usage\":{\"input_tokens\":2}}\n\ndata: {\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}\n\n";
        assert_eq!(read(Api::Messages, zeros, true), usage(2, 0, -1));
        let responses = concat!(
            "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n",
            "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":6,",
            "\"input_tokens_details\":{\"cached_tokens\":0}}}}\n\n",
        );
        assert_eq!(read(Api::Responses, responses, true), usage(4, 6, 0));
        // SGLang's count up, and so do OpenAI's where each event has one.
        let counting = |name: &str, of: i64| {
            format!("data: {{\"{name}\":{{\"prompt_tokens\":4,\"completion_tokens\":{of}}}}}\n\n")
        };
        let sglang = [counting("meta_info", 1), counting("meta_info", 2)].concat();
        assert_eq!(read(Api::SglangGenerate, &sglang, true), usage(4, 2, -1));
        let chat =
            [counting("usage", 1), "data: {\"usage\":{\"completion_tokens\":2}}\n\n".to_owned()].concat();
        assert_eq!(read(Api::ChatCompletions, &chat, true), usage(-1, 2, -1));
    }
}
