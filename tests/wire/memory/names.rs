//! Requests whose fields are as long as their bodies may be.

use super::*;
use crate::support::{string, with_subset};

/// Larger than any field that serves a purpose.
const LONG: usize = 20 * MI;

/// Copies of an element that are as long as [`LONG`] together.
fn many(element: &str) -> String {
    element.repeat(LONG / element.len())
}

/// A path, the field of its body that is long, and the body.
type Long = (&'static str, String, Vec<u8>);

/// Bodies whose one field is long, of the APIs that are asked most.
fn bodies() -> Vec<Long> {
    let (completions, chat, messages) = ("/v1/completions", "/v1/chat/completions", "/v1/messages");
    let (responses, generate, grpc) = ("/v1/responses", "/inference/v1/generate", "/generate");
    let x = || "x".repeat(LONG);
    let list = |element: &str| format!("[{}{element}]", many(&format!("{element},")));
    let text = |x: String| format!(r#""{x}""#);
    let image = || format!(r#"{{"url":"data:image/png;base64,{}"}}"#, "A".repeat(LONG));
    let block = |of: &str, value: String| format!(r#"[{{"type":"{of}","{of}":{value}}}]"#);
    let content = |content: String| format!(r#"[{{"role":"user","content":{content}}}]"#);
    let features = |name: &str, element: &str| format!(r#"{{"{name}":{{"image":{}}}}}"#, list(element));
    // Path, name of the member, its value.
    let fields = [
        (completions, "model", text(x())),
        (completions, "model", text(r"\u0041".repeat(LONG / 6))),
        (chat, "model", text(x())),
        (generate, "model", text(x())),
        (completions, "cache_salt", text(x())),
        (grpc, "extra_key", text(x())),
        (completions, "max_tokens", "1".repeat(LONG)),
        (completions, "stream", text(x())),
        (completions, "unknown", text(x())),
        (completions, "stop", list(r#""a""#)),
        (completions, "metadata", format!(r#"{{"a":"b"{}}}"#, many(r#","a":"b""#))),
        (completions, "logit_bias", format!("{}{}", "[".repeat(9000), many("]"))),
        (completions, "prompt", list(r#""""#)),
        (completions, "prompt", list("1")),
        (completions, "prompt", text(x())),
        (chat, "messages", list("{}")),
        (chat, "messages", list(r#"{"role":"","content":""}"#)),
        (chat, "messages", format!(r#"[{{"role":"{}","content":"x"}}]"#, x())),
        (chat, "messages", content(text(r"\n".repeat(LONG / 2)))),
        (chat, "messages", content(list(r#"{"type":"text","text":""}"#))),
        (chat, "messages", content(block("image_url", image()))),
        (chat, "tools", list(r#"{"type":"function","function":{"name":"x"}}"#)),
        (messages, "system", list(r#"{"type":"text","text":""}"#)),
        (
            messages,
            "messages",
            content(format!(
                r#"[{{"type":"tool_result","content":{}}}]"#,
                list(r#"{"type":"text","text":""}"#)
            )),
        ),
        (responses, "input", list(r#"{"role":"user","content":"x"}"#)),
        (responses, "instructions", text(x())),
        (generate, "features", features("mm_hashes", r#""""#)),
        (generate, "features", features("mm_placeholders", "1")),
        (generate, "token_ids", list("1")),
        (grpc, "input_ids", list("1e0")),
    ];
    let rest = |path: &str| match path {
        "/v1/completions" => r#""model":"m","prompt":"x""#,
        "/v1/chat/completions" | "/v1/messages" => r#""model":"m","messages":[{"content":"x"}]"#,
        "/v1/responses" => r#""model":"m","input":"x""#,
        "/inference/v1/generate" => r#""model":"m","token_ids":[1]"#,
        _ => r#""input_ids":[1]"#,
    };
    let body = |(path, name, value): (&'static str, &str, String)| {
        (
            path,
            format!("{name} of {path}, {}", &value[..40]),
            format!(r#"{{{},"{name}":{value}}}"#, rest(path)).into_bytes(),
        )
    };
    fields.into_iter().map(body).collect()
}

/// The same of the other APIs: JSON in frames of gRPC, messages in them, and what is seldom asked.
fn other_bodies() -> Vec<Long> {
    const VLLM: &str = "/vllm.grpc.engine.VllmEngine/Generate";
    const VERTEX: &str = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions";
    let x = || "x".repeat(LONG);
    let list = |element: &str| format!("[{}{element}]", many(&format!("{element},")));
    let json = [
        ("/v1/embeddings", "model", format!(r#"{{"model":"{}","input":"x"}}"#, x())),
        ("/v1/embeddings", "texts", format!(r#"{{"model":"m","input":{}}}"#, list(r#""""#))),
        ("/v1/embeddings", "lists of ids", format!(r#"{{"model":"m","input":{}}}"#, list("[1]"))),
        (
            "/v1/conversations",
            "items",
            format!(r#"{{"model":"m","items":{}}}"#, list(r#"{"role":"user","content":"x"}"#)),
        ),
        ("/v1/conversations", "metadata", format!(r#"{{"items":[],"metadata":{{"a":"{}"}}}}"#, x())),
        ("/v1/images/generations", "prompt", format!(r#"{{"model":"m","prompt":"{}"}}"#, x())),
        ("/v1/images/generations", "size", format!(r#"{{"model":"m","prompt":"x","size":"{}"}}"#, x())),
    ];
    let ids = || field(2, &field(2, &[1, 2, 3]));
    let inputs = |input: Vec<u8>| [ids(), field(7, &input.repeat(LONG / input.len()))].concat();
    let grpc = [
        (VLLM, "text", field(3, x().as_bytes())),
        (VLLM, "packed ids", field(2, &field(2, &vec![1; LONG]))),
        (VLLM, "ids one by one", field(2, &[0x10, 1].repeat(LONG / 2))),
        (
            VLLM,
            "ids and texts in turn",
            field(2, &[&[0x10, 1][..], &field(1, b"x")].concat().repeat(LONG / 5)),
        ),
        (VLLM, "hashes", inputs(field(6, b"h"))),
        (VLLM, "places", inputs(field(5, &[0x08, 1, 0x10, 1]))),
        (VERTEX, "model", http_body(&format!(r#"{{"model":"{}","messages":[{{"content":"x"}}]}}"#, x()))),
        (VERTEX, "messages", http_body(&format!(r#"{{"model":"m","messages":{}}}"#, list("{}")))),
    ];
    let json = json.into_iter().map(|(path, what, text)| (path, what, text.into_bytes()));
    let grpc = grpc.into_iter().map(|(path, what, message)| (path, what, frame(&message)));
    json.chain(grpc).map(|(path, what, body)| (path, format!("{what} of {path}"), body)).collect()
}

/// A field of a protobuf message, whose number has one digit.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (mut bytes, mut length) = (vec![number << 3 | 2], content.len());
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(content);
    bytes
}

/// A request of Vertex AI with this JSON.
fn http_body(json: &str) -> Vec<u8> {
    field(2, &field(2, json.as_bytes()))
}

/// A frame of gRPC.
fn frame(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// Awaits the outcome of a request: nothing but a destination, a 400, a 413 or a 429. Returns
/// whether it was other than a 429, which is for want of memory.
async fn ends(mut stream: Stream, what: &str) -> bool {
    match stream.reply().await.response {
        Some(Reply::RequestHeaders(_)) => {
            while !stream.request_body().await.1 {}
            true
        }
        Some(Reply::ImmediateResponse(refusal)) => {
            let code = refusal.status.as_ref().unwrap().code;
            assert!(matches!(code, 400 | 413 | 429), "{what}: {code}");
            code != 429
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[tokio::test]
async fn memory_stays_below_the_budget_for_long_openai_fields() {
    stays_below_its_budget(bodies()).await;
}

#[tokio::test]
async fn memory_stays_below_the_budget_for_long_fields_of_other_apis() {
    stays_below_its_budget(other_bodies()).await;
}

/// One request with each of these bodies, which is answered or refused for what is in it, and then three at
/// once, whose bodies are more than the budget has room for: some of those are refused for want of memory.
async fn stays_below_its_budget(bodies: Vec<Long>) {
    let config = tempfile::tempdir().unwrap();
    let file = config.path().join("config.yaml");
    let parsers = ["openai", "anthropic", "vllmhttp", "sglanghttp", "vllmgrpc", "vertexai"]
        .map(|name| format!("{{type: {name}-parser}}"));
    let text = format!("plugins: [{}]\n", parsers.join(", "));
    std::fs::write(&file, text).unwrap();
    let process = Process::start(small_budget(), 1, &[&format!("--config-file={}", file.display())]);
    let limit = process.limit();
    let used = || process.held() + process.metric("usher_memory_connections_bytes");
    let has_room = || process.limit() > used() + (LONG + 4 * MI) as f64;
    for (path, what, text) in bodies {
        let post = [(":method", "POST"), (":path", path)];
        // Each finds another picture: with nobody beside it, and with others that take the room.
        for requests in [1, 3] {
            let mut tries = 0;
            loop {
                // The allocator takes a second to give memory back, more on a busy machine, and may keep a 32nd of
                // the budget.
                let start = Instant::now();
                settle(|| requests > 1 || has_room() || start.elapsed() > Duration::from_secs(30)).await;
                let answered = ask(&process, requests, &post, &text, &what).await;
                let peak = process.peak();
                assert!(peak < small_budget() * MI, "{what}: {peak} bytes");
                settle(|| process.held() == 0.0).await;
                tries += 1;
                if requests > 1 || answered {
                    break;
                }
                assert!(tries < 5, "{what}: refused for want of memory");
            }
        }
    }
    stayed_within(&process, small_budget(), limit).await;
}

/// Sends this body so many times at once. Returns whether the first was other than refused for want of memory.
async fn ask(process: &Process, requests: usize, post: &[(&str, &str)], text: &[u8], what: &str) -> bool {
    let mut streams = Vec::new();
    for connection in process.connections(requests).await {
        let stream = connection.stream().await;
        stream.try_send(headers(post, false));
        streams.push(stream);
    }
    let mut chunks = text.chunks(MI).peekable();
    while let Some(chunk) = chunks.next() {
        let is_last = chunks.peek().is_none();
        streams.iter().for_each(|stream| stream.try_send(body(chunk, is_last)));
    }
    let ended = streams.into_iter().map(|stream| ends(stream, what));
    futures_util::future::join_all(ended).await[0]
}

/// Names in headers: a gateway may send more than any client should.
#[tokio::test]
async fn memory_stays_below_the_budget_for_long_headers() {
    // Those that are read here, and others. An objective is read where the pool has any, which a file of
    // endpoints can't: that is a test of the exchange's.
    const READ: [&str; 6] = [
        "x-request-id",
        "x-llm-d-inference-fairness-id",
        "x-gateway-inference-fairness-id",
        "x-llm-d-model-name-rewrite",
        "session-id",
        "cookie",
    ];
    const OTHERS: [&str; 3] = ["x-llm-d-inference-objective", "x-llm-d-slo-ttft-ms", "x-other"];
    let config = tempfile::tempdir().unwrap();
    let file = config.path().join("config.yaml");
    let text =
        "plugins:\n- {type: agent-identity}\n- {type: session-id-producer, parameters: {cookieName: sid}}\n";
    std::fs::write(&file, text).unwrap();
    let flags = [
        &format!("--config-file={}", file.display()),
        "--grpc-max-recv-msg-size=32MiB",
        "--allow-experimental-plugins",
    ];
    let process = Process::start(small_budget(), 1, &flags);
    let limit = process.limit();
    let long = format!("sid={}", "x".repeat(LONG));
    for name in READ.into_iter().chain(OTHERS) {
        let connection = process.connect().await;
        for _ in 0..3 {
            let stream = connection.stream().await;
            stream.try_send(headers(&[COMPLETION[0], COMPLETION[1], (name, &long)], false));
            stream.try_send(body(PROMPT, true));
            ends(stream, name).await;
        }
        let peak = process.peak();
        assert!(peak < small_budget() * MI, "{name}: {peak} bytes");
        settle(|| process.held() == 0.0).await;
    }
    // And a subset hint: one address, and very many.
    for addresses in ["x".repeat(LONG), many("127.0.0.1:1,")] {
        let connection = process.connect().await;
        for _ in 0..3 {
            let mut stream = connection.stream().await;
            stream.try_send(with_subset(headers(&COMPLETION, false), string(&addresses)));
            stream.try_send(body(PROMPT, true));
            // An endpoint, or none of this subset.
            let reply = stream.reply().await.response.unwrap();
            assert!(matches!(reply, Reply::RequestHeaders(_) | Reply::ImmediateResponse(_)), "{reply:?}");
        }
        let peak = process.peak();
        assert!(peak < small_budget() * MI, "subset: {peak} bytes");
        settle(|| process.held() == 0.0).await;
    }
    for name in READ.into_iter().chain(OTHERS) {
        let value = format!("sid={}", "x".repeat(2000));
        let stream = process.connect().await.stream().await;
        stream.send(headers(&[COMPLETION[0], COMPLETION[1], (name, &value)], false));
        stream.send(body(PROMPT, true));
        assert!(ends(stream, name).await, "{name}");
    }
    let ignored =
        |name: &str| process.metric(&format!("usher_long_headers_ignored_total{{header=\"{name}\"}}"));
    assert!(READ.iter().all(|name| ignored(name) > 0.0), "{:?}", READ.map(ignored));
    assert_eq!(ignored("x-other"), 0.0);
    stayed_within(&process, small_budget(), limit).await;
}
