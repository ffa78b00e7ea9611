//! One request of each API, and its response.

use crate::protos::{
    Complete, EmbedRequest, EmbedResponse, GenerateRequest, GenerateResponse, HttpBody, Input,
    PredictRequest, Response, TokenizedInput, framed,
};
use crate::support::*;

const ONE: [(&str, &str, u16); 1] = [("a", "127.0.0.1", 1)];
/// Every parser, those that are not there by default included.
const ALL: &str = "--config-text=requestHandler: {parsers: [{pluginRef: openai-parser}, {pluginRef: anthropic-parser}, \
                   {pluginRef: vllmhttp-parser}, {pluginRef: sglanghttp-parser}, {pluginRef: vllmgrpc-parser}, \
                   {pluginRef: vertexai-parser}, {pluginRef: passthrough-parser}]}";
const JSON: &str = "application/json";
const SSE: &str = "text/event-stream";
const GRPC: &str = "application/grpc";
const PREDICTION: &str = "/google.cloud.aiplatform.v1beta1.PredictionService";

/// A request and its response.
struct Row {
    path: String,
    body: Vec<u8>,
    /// Model that it is counted under.
    model: &'static str,
    response: (&'static str, Vec<u8>),
    /// Tokens that are counted: of the prompt, generated, and from the cache. 0 is none.
    tokens: [u64; 3],
}

fn row(path: &str, body: &str, model: &'static str, response: (&'static str, &str), tokens: [u64; 3]) -> Row {
    let response = (response.0, response.1.into());
    Row { path: path.to_owned(), body: body.into(), model, response, tokens }
}

fn rows() -> Vec<Row> {
    let usage =
        r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    let newer = concat!(
        "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":2,",
        "\"input_tokens_details\":{\"cached_tokens\":4}}}}\n\n",
    );
    let messages = concat!(
        "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n",
        "event: message_delta\ndata: {\"usage\":{\"output_tokens\":2}}\n\n",
    );
    let sglang = r#"{"text":"a","meta_info":{"prompt_tokens":7,"completion_tokens":2,"cached_tokens":4}}"#;
    let chat = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}]}"#;
    let ids = TokenizedInput { original_text: String::new(), input_ids: vec![1, 2, 300] };
    let generate = GenerateRequest {
        input: Some(Input::Tokenized(ids.clone())),
        stream: true,
        ..GenerateRequest::default()
    };
    let complete =
        Complete { prompt_tokens: 7, completion_tokens: 2, cached_tokens: 4, ..Complete::default() };
    let generated = GenerateResponse { response: Some(Response::Complete(complete)) };
    let embedded = EmbedResponse { embedding: vec![0.5; 9], prompt_tokens: 7 };
    let predicted = HttpBody { data: usage.into(), ..HttpBody::default() };
    let grpc = |path: &str, body: Vec<u8>, model, response: Vec<u8>, tokens| Row {
        path: path.to_owned(),
        body,
        model,
        response: (GRPC, response),
        tokens,
    };
    vec![
        row("/v1/chat/completions", chat, "chat", (JSON, usage), [7, 2, 4]),
        row("/v1/completions", r#"{"model":"text","prompt":"hi"}"#, "text", (JSON, usage), [7, 2, 4]),
        row("/v1/embeddings", r#"{"model":"embed","input":["a","b"]}"#, "embed", (JSON, usage), [7, 2, 4]),
        row(
            "/v1/responses",
            r#"{"model":"respond","input":[{"role":"user"}]}"#,
            "respond",
            (SSE, newer),
            [7, 2, 4],
        ),
        row(
            "/v1/conversations",
            r#"{"model":"converse","items":[{"type":"message"}]}"#,
            "converse",
            (JSON, "{}"),
            [0; 3],
        ),
        row(
            "/v1/images/generations",
            r#"{"model":"image","prompt":"a cat"}"#,
            "image",
            (JSON, usage),
            [7, 2, 4],
        ),
        row(
            "/v1/chat/completions/render",
            r#"{"model":"render","messages":[{"role":"user","content":"hi"}]}"#,
            "render",
            (JSON, usage),
            [0; 3],
        ),
        row(
            "/v1/completions/render",
            r#"{"model":"render-text","prompt":"hi"}"#,
            "render-text",
            (JSON, usage),
            [0; 3],
        ),
        row(
            "/v1/messages",
            r#"{"model":"message","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#,
            "message",
            (SSE, messages),
            [7, 2, 4],
        ),
        row("/v1/messages/count_tokens", r#"{"model":"count"}"#, "", (JSON, usage), [0; 3]),
        row("/inference/v1/generate", r#"{"model":"ids","token_ids":[1]}"#, "ids", (JSON, usage), [7, 2, 4]),
        row("/generate", r#"{"input_ids":[1]}"#, "", (JSON, sglang), [7, 2, 4]),
        grpc("/vllm.grpc.engine.VllmEngine/Generate", framed(&generate), "", framed(&generated), [7, 2, 4]),
        grpc(
            "/vllm.grpc.engine.VllmEngine/Embed",
            framed(&EmbedRequest { request_id: String::new(), tokenized: Some(ids) }),
            "",
            framed(&embedded),
            [7, 0, 0],
        ),
        grpc(
            &format!("{PREDICTION}/ChatCompletions"),
            framed(&PredictRequest::around(r#"{"model":"vertex","messages":[{"content":"hi"}]}"#)),
            "vertex",
            framed(&predicted),
            [7, 2, 4],
        ),
        grpc(
            &format!("{PREDICTION}/RawPredict"),
            framed(&PredictRequest::around(r#"{"model":"raw","input":"hi"}"#)),
            "raw",
            framed(&predicted),
            [7, 2, 4],
        ),
        grpc(
            &format!("{PREDICTION}/StreamRawPredict"),
            framed(&PredictRequest::around(r#"{"model":"stream","input":"hi"}"#)),
            "stream",
            framed(&predicted),
            [7, 2, 4],
        ),
        row("/tokenize", "not json", "", (JSON, usage), [0; 3]),
    ]
}

/// Sums of the tokens that are counted under a model.
fn counted(picker: &Picker, model: &str) -> [f64; 3] {
    ["input_tokens", "output_tokens", "prompt_cached_tokens"].map(|family| {
        let labels = format!(r#"{{model_name="{model}",target_model_name="{model}"}}"#);
        picker.metric(&format!("inference_objective_{family}_sum{labels}")).unwrap_or(0.0)
    })
}

#[tokio::test]
async fn a_request_of_each_api_is_routed_and_its_response_counted() {
    let picker = Picker::start(&ONE, &[ALL]).await;
    for Row { path, body: sent, model, response: (content_type, response), tokens } in rows() {
        let before = counted(&picker, model);
        let mut stream = picker.stream().await;
        stream.send(headers(
            &[(":method", "POST"), (":path", &path), ("x-llm-d-inference-fairness-id", &path)],
            false,
        ));
        for chunk in sent.chunks(11) {
            stream.send(body(chunk, false));
        }
        stream.send(body("", true));
        assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1", "{path}");
        // Where nobody reads it, it comes as it was sent.
        let (mut received, mut ended) = stream.request_body().await;
        while !ended {
            let (more, last) = stream.request_body().await;
            received.extend(more);
            ended = last;
        }
        assert_eq!(received, sent, "{path}");
        let total = format!(
            r#"llm_d_epp_request_total{{fairness_id="{path}",model_name="{model}",priority="0",target_model_name="{model}"}}"#
        );
        assert_eq!(picker.metric(&total), Some(1.0), "{path}");
        stream.send(response_headers(&[(":status", "200"), ("content-type", content_type)], false));
        stream.response_headers().await;
        for chunk in response.chunks(7) {
            stream.send(response_body(chunk, false));
            assert_eq!(stream.response_body().await, (chunk.to_vec(), false), "{path}");
        }
        // gRPC ends with trailers.
        if content_type == GRPC {
            stream.send(response_trailers());
            stream.reply().await;
        } else {
            stream.send(response_body("", true));
            stream.response_body().await;
        }
        let after = counted(&picker, model);
        assert_eq!([0, 1, 2].map(|at| (after[at] - before[at]) as u64), tokens, "{path}");
    }
    assert_eq!(picker.in_flight(), 0);
}

/// The refusal of a request.
async fn refusal(picker: &Picker, path: &str, text: &[u8]) -> (i32, String) {
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", path)], false));
    stream.send(body(text, true));
    let refusal = stream.immediate().await;
    (refusal.status.unwrap().code, String::from_utf8(refusal.body).unwrap())
}

#[tokio::test]
async fn invalid_request_of_each_api_is_refused() {
    let picker = Picker::start(&ONE, &[ALL]).await;
    let predict = framed(&PredictRequest::around("{}"));
    let predict_path = format!("{PREDICTION}/RawPredict");
    let table: [(&str, &[u8], &str); 17] = [
        ("/v1/completions", br#"{"model":"m","prompt":["a",1]}"#, "prompt must be text, a list of texts"),
        ("/v1/completions/render", br#"{"model":"m"}"#, "prompt must be text, a list of texts"),
        (
            "/v1/chat/completions/render",
            br#"{"model":"m","messages":[]}"#,
            "messages must be a non-empty list",
        ),
        ("/v1/embeddings", br#"{"model":"m"}"#, "input must be text, a list of texts"),
        ("/v1/responses", br#"{"model":"m","input":null}"#, "input must be there"),
        ("/v1/conversations", br#"{"model":"m"}"#, "items must be a non-empty list"),
        ("/v1/images/generations", br#"{"model":"m","prompt":["a"]}"#, "prompt must be text, and not empty"),
        ("/v1/messages", br#"{"model":"m","max_tokens":5}"#, "messages must be a non-empty list"),
        (
            "/v1/messages",
            br#"{"messages":[{"role":"user","content":"hi"}]}"#,
            "model not found in request body",
        ),
        ("/inference/v1/generate", br#"{"model":"m"}"#, "token_ids must be a non-empty list"),
        ("/generate", br#"{"text":"hi"}"#, "input_ids must be a non-empty list"),
        ("/generate", b"[1]", "the body must be a JSON object"),
        (
            "/vllm.grpc.engine.VllmEngine/Generate",
            b"\x01\0\0\0\x02\x1a\0",
            "invalid or unsupported gRPC payload",
        ),
        ("/vllm.grpc.engine.VllmEngine/Generate", b"\0\0", "invalid or unsupported gRPC payload"),
        (
            "/vllm.grpc.engine.VllmEngine/Embed",
            b"\0\0\0\0\x02\x1a\x05",
            "invalid or unsupported gRPC payload",
        ),
        (&predict_path, b"", "invalid or unsupported gRPC payload"),
        (&predict_path, &predict, "the body must have messages"),
    ];
    for (path, text, problem) in table {
        let (status, got) = refusal(&picker, path, text).await;
        let want = format!("inference error: BadRequest - {problem}");
        assert!(status == 400 && got.starts_with(&want), "{path}: {status} {got}");
    }
}

#[tokio::test]
async fn unclaimed_path_is_refused() {
    let parsers = "--config-text=requestHandler: {parsers: [{pluginRef: openai-parser}]}";
    let picker = Picker::start(&ONE, &[parsers]).await;
    let (status, text) =
        refusal(&picker, "/v1/messages", br#"{"model":"m","messages":[{"role":"user"}]}"#).await;
    assert_eq!(
        (status, &text[..66]),
        (400, "inference error: BadRequest - no parser claims the path /v1/messag")
    );
}

#[tokio::test]
async fn paths_of_unlisted_parsers_pass_through() {
    let picker = Picker::start(&ONE, &[]).await;
    for path in ["/generate", "/vllm.grpc.engine.VllmEngine/Generate"] {
        let mut stream = picker.stream().await;
        stream.send(headers(&[(":path", path)], false));
        stream.send(body("neither JSON nor a frame", true));
        assert_eq!(stream.request_headers().await.destination(), "127.0.0.1:1", "{path}");
    }
    let (status, _) = refusal(&picker, "/inference/v1/generate", b"{}").await;
    assert_eq!(status, 400, "vLLM's is read by default");
}

#[tokio::test]
async fn a_model_is_replaced_and_restored() {
    let picker = Picker::start(&ONE, &[ALL]).await;
    // path, body, whether its model is replaced
    let table = [
        ("/v1/messages", r#"{"model":"m","messages":[{"content":"hi"}]}"#, true),
        ("/inference/v1/generate", r#"{"model":"m","token_ids":[1]}"#, true),
        ("/generate", r#"{"model":"m","input_ids":[1]}"#, false),
        ("/v1/messages/count_tokens", r#"{"model":"m"}"#, false),
    ];
    for (path, text, replaced) in table {
        let mut stream = picker.stream().await;
        stream.send(headers(&[(":path", path), ("x-llm-d-model-name-rewrite", "target")], false));
        stream.send(body(text, true));
        stream.request_headers().await;
        let want = if replaced { text.replace(r#""m""#, r#""target""#) } else { text.to_owned() };
        assert_eq!(stream.request_body().await, (want.into_bytes(), true), "{path}");
        stream.send(response_headers(&[(":status", "200")], false));
        stream.response_headers().await;
        stream.send(response_body(r#"{"model":"target"}"#, true));
        let want = if replaced { r#"{"model":"m"}"# } else { r#"{"model":"target"}"# };
        assert_eq!(stream.response_body().await, (want.as_bytes().to_vec(), true), "{path}");
    }
}

#[tokio::test]
async fn response_without_a_body_is_read_by_its_api() {
    let picker = Picker::start(&ONE, &[ALL]).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/vllm.grpc.engine.VllmEngine/Generate")], false));
    stream.send(response_headers(&[(":status", "200"), ("content-type", GRPC)], false));
    stream.response_headers().await;
    let complete = Complete { prompt_tokens: 7, completion_tokens: 10, ..Complete::default() };
    let response = framed(&GenerateResponse { response: Some(Response::Complete(complete)) });
    for chunk in response.chunks(4) {
        stream.send(response_body(chunk, false));
        stream.response_body().await;
    }
    stream.send(response_trailers());
    stream.reply().await;
    assert_eq!(counted(&picker, ""), [7.0, 10.0, 0.0]);
}
