//! Messages of the gRPC APIs, encoded and decoded by prost.

use prost::Message;

/// `vllm.grpc.engine.TokenizedInput`
#[derive(Clone, PartialEq, Message)]
pub struct TokenizedInput {
    #[prost(string, tag = "1")]
    pub original_text: String,
    #[prost(uint32, repeated, tag = "2")]
    pub input_ids: Vec<u32>,
}

/// `vllm.grpc.engine.SamplingParams`
#[derive(Clone, PartialEq, Message)]
pub struct SamplingParams {
    #[prost(float, optional, tag = "1")]
    pub temperature: Option<f32>,
    #[prost(uint32, optional, tag = "8")]
    pub max_tokens: Option<u32>,
    #[prost(double, tag = "99")]
    pub unknown: f64,
}

/// `vllm.grpc.engine.PlaceholderRange`
#[derive(Clone, PartialEq, Message)]
pub struct PlaceholderRange {
    #[prost(uint32, tag = "1")]
    pub offset: u32,
    #[prost(uint32, tag = "2")]
    pub length: u32,
}

/// `vllm.grpc.engine.MultimodalInputs`
#[derive(Clone, PartialEq, Message)]
pub struct MultimodalInputs {
    #[prost(bytes = "vec", tag = "2")]
    pub pixel_values: Vec<u8>,
    #[prost(message, repeated, tag = "5")]
    pub mm_placeholders: Vec<PlaceholderRange>,
    #[prost(string, repeated, tag = "6")]
    pub mm_hashes: Vec<String>,
}

/// Input of a request.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Input {
    #[prost(message, tag = "2")]
    Tokenized(TokenizedInput),
    #[prost(string, tag = "3")]
    Text(String),
}

/// `vllm.grpc.engine.GenerateRequest`
#[derive(Clone, PartialEq, Message)]
pub struct GenerateRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(oneof = "Input", tags = "2, 3")]
    pub input: Option<Input>,
    #[prost(message, optional, tag = "4")]
    pub sampling_params: Option<SamplingParams>,
    #[prost(bool, tag = "5")]
    pub stream: bool,
    #[prost(message, optional, tag = "7")]
    pub mm_inputs: Option<MultimodalInputs>,
}

/// `vllm.grpc.engine.EmbedRequest`
#[derive(Clone, PartialEq, Message)]
pub struct EmbedRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(message, optional, tag = "2")]
    pub tokenized: Option<TokenizedInput>,
}

/// `vllm.grpc.engine.GenerateStreamChunk`
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    #[prost(uint32, repeated, tag = "1")]
    pub token_ids: Vec<u32>,
    #[prost(uint32, tag = "2")]
    pub prompt_tokens: u32,
    #[prost(uint32, tag = "3")]
    pub completion_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub cached_tokens: u32,
}

/// `vllm.grpc.engine.GenerateComplete`
#[derive(Clone, PartialEq, Message)]
pub struct Complete {
    #[prost(uint32, repeated, tag = "1")]
    pub output_ids: Vec<u32>,
    #[prost(string, tag = "2")]
    pub finish_reason: String,
    #[prost(uint32, tag = "3")]
    pub prompt_tokens: u32,
    #[prost(uint32, tag = "4")]
    pub completion_tokens: u32,
    #[prost(uint32, tag = "5")]
    pub cached_tokens: u32,
}

/// Content of a response.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Response {
    #[prost(message, tag = "1")]
    Chunk(Chunk),
    #[prost(message, tag = "2")]
    Complete(Complete),
}

/// `vllm.grpc.engine.GenerateResponse`
#[derive(Clone, PartialEq, Message)]
pub struct GenerateResponse {
    #[prost(oneof = "Response", tags = "1, 2")]
    pub response: Option<Response>,
}

/// `vllm.grpc.engine.EmbedResponse`
#[derive(Clone, PartialEq, Message)]
pub struct EmbedResponse {
    #[prost(float, repeated, tag = "1")]
    pub embedding: Vec<f32>,
    #[prost(uint32, tag = "2")]
    pub prompt_tokens: u32,
}

/// `google.api.HttpBody`
#[derive(Clone, PartialEq, Message)]
pub struct HttpBody {
    #[prost(string, tag = "1")]
    pub content_type: String,
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

/// `google.cloud.aiplatform.v1beta1.ChatCompletionsRequest`, `RawPredictRequest` and
/// `StreamRawPredictRequest`, which are alike.
#[derive(Clone, PartialEq, Message)]
pub struct PredictRequest {
    #[prost(string, tag = "1")]
    pub endpoint: String,
    #[prost(message, optional, tag = "2")]
    pub http_body: Option<HttpBody>,
}

impl PredictRequest {
    /// A request around some JSON.
    pub fn around(json: &str) -> Self {
        let http_body =
            HttpBody { content_type: "application/json".to_owned(), data: json.as_bytes().to_vec() };
        Self { endpoint: "projects/p/locations/l/endpoints/e".to_owned(), http_body: Some(http_body) }
    }
}

/// A message in its gRPC frame.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let len = u32::try_from(message.len()).expect("a message is short").to_be_bytes();
    [&[0][..], &len, &message].concat()
}
