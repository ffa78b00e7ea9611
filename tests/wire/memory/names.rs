//! Requests whose fields are as long as their bodies may be.

use super::*;

/// Larger than any field that serves a purpose.
const LONG: usize = 20 * MI;

/// So many of them, one as long as [`LONG`] all together.
fn many(element: &str) -> String {
    element.repeat(LONG / element.len())
}

/// Bodies whose one field is long, by path.
fn bodies() -> Vec<(&'static str, String, String)> {
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
            format!(r#"{{{},"{name}":{value}}}"#, rest(path)),
        )
    };
    fields.into_iter().map(body).collect()
}

/// What becomes of a request: nothing but a destination, a 400, a 413 or a 429. Whether it was not
/// for want of memory.
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
async fn the_process_stays_below_its_budget_whichever_field_is_long() {
    let config = tempfile::tempdir().unwrap();
    let file = config.path().join("config.yaml");
    let parsers =
        ["openai", "anthropic", "vllmhttp", "sglanghttp"].map(|name| format!("{{type: {name}-parser}}"));
    let text = format!("plugins: [{}]\n", parsers.join(", "));
    std::fs::write(&file, text).unwrap();
    let process = Process::start(96, 1, &[&format!("--config-file={}", file.display())]);
    let limit = process.limit();
    let used = || process.held() + process.metric("usher_memory_connections_bytes");
    let has_room = || process.limit() > used() + (LONG + 4 * MI) as f64;
    let (bodies, mut served) = (bodies(), 0);
    let wanted = bodies.len() / 2;
    for (path, what, text) in bodies {
        let post = [(":method", "POST"), (":path", path)];
        // The allocator takes a second to give memory back, and may keep a 32nd of the budget.
        let start = Instant::now();
        settle(|| has_room() || start.elapsed() > Duration::from_secs(5)).await;
        let is_roomy = has_room();
        // Each finds another picture: with nobody beside it, and with others that take the room.
        for requests in [1, 3] {
            let mut streams = Vec::new();
            for connection in process.connections(requests).await {
                let stream = connection.stream().await;
                stream.try_send(headers(&post, false));
                streams.push(stream);
            }
            let mut chunks = text.as_bytes().chunks(MI).peekable();
            while let Some(chunk) = chunks.next() {
                let is_last = chunks.peek().is_none();
                streams.iter().for_each(|stream| stream.try_send(body(chunk, is_last)));
            }
            let ended = streams.into_iter().map(|stream| ends(stream, &what));
            let answered = futures_util::future::join_all(ended).await;
            assert!(requests > 1 || answered[0] || !is_roomy, "{what}: refused for want of memory");
            served += usize::from(requests == 1 && answered[0]);
            let peak = process.peak();
            assert!(peak < 96 * MI, "{what}: {peak} bytes");
            settle(|| process.held() == 0.0).await;
        }
    }
    assert!(served >= wanted, "only {served} were not refused for want of memory");
    stayed_within(&process, 96, limit).await;
}

/// Names in headers: a gateway may send more than any client should.
#[tokio::test]
async fn the_process_stays_below_its_budget_whichever_header_is_long() {
    // Those that are read here, and others.
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
    let process = Process::start(96, 1, &flags);
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
        assert!(peak < 96 * MI, "{name}: {peak} bytes");
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
    stayed_within(&process, 96, limit).await;
}
