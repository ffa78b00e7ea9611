//! Requests and responses.

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::net::TcpStream;
use usher::sim::{EngineConfig, SimConfig};
use xxhash_rust::xxh64::xxh64;

use crate::sim::support::*;

#[tokio::test]
async fn servers_report_their_name_and_models() {
    let config = SimConfig { loras: vec!["food".into()], strict_models: true, ..SimConfig::default() };
    let group = servers(config, 3).await;
    for (index, address) in group.addresses().iter().enumerate() {
        let (parts, _, _) = exchange(*address, Request::get("/health").body(full("")).unwrap(), Http1).await;
        assert_eq!(parts.status, 200);
        assert_eq!(parts.headers["x-inference-pod"], format!("sim-{index}"));
        assert_eq!(parts.headers["x-inference-port"], address.port().to_string());
    }
    let at = group.addresses()[0];
    let models = get_json(at, "/v1/models").await;
    assert_eq!(
        (&models["data"][1]["id"], &models["data"][1]["parent"]),
        (&json!("food"), &models["data"][0]["id"])
    );
    let (parts, body, _) = exchange(at, chat(&prompt(1), ""), Http1).await;
    assert_eq!(parts.status, 404, "strict about models");
    assert!(body.starts_with(br#"{"error":"#));
    assert_eq!(get(at, "/v1/embeddings").await, (StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#.into()));
    assert_eq!(get(at, "/v1/completions").await.0, StatusCode::METHOD_NOT_ALLOWED);
    group.shutdown().await;
    assert_eq!(TcpStream::connect(at).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_repeated_prompt_is_cached_and_answered_alike() {
    let group = instant().await;
    let at = group.addresses()[0];
    let first = ask(at, &prompt(1000)).await;
    let second = ask(at, &prompt(1000)).await;
    // 4 bytes of role, 4,000 of text, 9 of the response's role.
    assert_eq!(first["usage"]["prompt_tokens"], 1004);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 992);
    assert_eq!(second["usage"]["completion_tokens"], 5);
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(first["choices"][0]["finish_reason"], "length");
    let page = metrics(&get(at, "/metrics").await.1);
    assert_eq!(
        (page["vllm_prefix_cache_queries_total"], page["vllm_prefix_cache_hits_total"]),
        (2008.0, 992.0)
    );
}

#[tokio::test]
async fn response_reused_as_a_message_is_cached() {
    let group = instant().await;
    let at = group.addresses()[0];
    let mut body = prompt(100);
    body["max_tokens"] = 500.into();
    let (_, response, _) = exchange(at, chat(&body, ""), Http1).await;
    let response: Value = serde_json::from_slice(&response).unwrap();
    let said = response["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(said.len(), 2000);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": said}));
    messages.push(json!({"role": "user", "content": "and then?"}));
    let (_, next, _) = exchange(at, chat(&body, ""), Http1).await;
    let next: Value = serde_json::from_slice(&next).unwrap();
    // 413 bytes and 500 tokens are 603 tokens; the last one was never computed.
    assert_eq!(next["usage"]["prompt_tokens_details"]["cached_tokens"], 592);

    let ask = async |prompt: String| -> Value {
        let body = json!({"prompt": prompt, "max_tokens": 64}).to_string();
        let request = Request::post("/v1/completions").body(full(body)).unwrap();
        serde_json::from_slice(&exchange(at, request, Http1).await.1).unwrap()
    };
    let first = ask("once ".repeat(64)).await;
    let second = ask("once ".repeat(64) + first["choices"][0]["text"].as_str().unwrap() + "more").await;
    // 80 tokens and 63 of the response.
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 128);
}

#[tokio::test]
async fn response_stops_at_the_requested_length() {
    let group = instant().await;
    let at = group.addresses()[0];
    for (limit, tokens, generated, reason) in
        [(9, "4", 4, "stop"), (9, "9", 9, "length"), (3, "4", 3, "length")]
    {
        let mut body = prompt(3);
        body["max_tokens"] = limit.into();
        let mut request = chat(&body, "");
        request.headers_mut().insert("x-sim-output-tokens", tokens.parse().unwrap());
        let response: Value = serde_json::from_slice(&exchange(at, request, Http1).await.1).unwrap();
        assert_eq!(response["usage"]["completion_tokens"], generated);
        assert_eq!(response["choices"][0]["finish_reason"], reason);
    }
    for tokens in ["0", "-1", "many", ""] {
        let mut request = chat(&prompt(3), "");
        request.headers_mut().insert("x-sim-output-tokens", tokens.parse().unwrap());
        assert_eq!(exchange(at, request, Http1).await.0.status, 400, "{tokens:?}");
    }
}

#[tokio::test]
async fn a_stream_interval_puts_several_tokens_into_an_event() {
    let config = SimConfig { stream_interval: 4, engine: EngineConfig::instant(), ..SimConfig::default() };
    let group = servers(config, 1).await;
    let mut body = streaming(prompt(3), true);
    body["max_tokens"] = 11.into();
    let (_, response, _) = exchange(group.addresses()[0], chat(&body, ""), Http1).await;
    let all = events(&response);
    let contents = all.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(contents.map(|text| text.len() / 4).collect::<Vec<_>>(), [0, 1, 4, 4, 2]);
    assert_eq!(all.last().unwrap()["usage"]["completion_tokens"], 11);
    let (_, mut body) =
        send(group.addresses()[0], chat(&body, "drop-after=7"), Http1).await.unwrap().into_parts();
    let mut received = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        received.extend_from_slice(&frame.into_data().unwrap());
    }
    let received = events(&received);
    let contents = received.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(contents.map(|text| text.len() / 4).sum::<usize>(), 7, "it breaks off within an event");
}

#[tokio::test]
async fn stream_has_usage_only_if_requested() {
    let group = instant().await;
    let at = group.addresses()[0];
    let whole = ask(at, &prompt(3)).await;
    for (protocol, usage) in [(Http1, true), (Http2, false)] {
        let (parts, body, _) = exchange(at, chat(&streaming(prompt(3), usage), ""), protocol).await;
        assert!(parts.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        assert!(body.ends_with(b"data: [DONE]\n\n"));
        let mut events = events(&body);
        if usage {
            let last = events.pop().unwrap();
            assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
            assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
        assert!(events.iter().all(|event| event["usage"].is_null()));
        assert_eq!(events.len(), 6);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let text: String =
            events[1..].iter().map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        assert_eq!(text, whole["choices"][0]["message"]["content"]);
        let reasons: Vec<_> = events.iter().map(|event| &event["choices"][0]["finish_reason"]).collect();
        assert_eq!(reasons[5], "length");
        assert!(reasons[..5].iter().all(|reason| reason.is_null()));
    }
    let body = json!({"prompt": "once", "stream": true, "max_tokens": 2}).to_string();
    let (_, body, _) = exchange(at, Request::post("/v1/completions").body(full(body)).unwrap(), Http1).await;
    let texts = events(&body).iter().filter(|event| event["choices"][0]["text"].is_string()).count();
    assert_eq!(texts, 2);
}

#[tokio::test]
async fn metrics_show_queue_and_adapters_of_live_clients() {
    // A request takes 100,000 steps of a millisecond: the test is over long before.
    let decode_step = Duration::from_millis(1);
    let engine = EngineConfig { decode_step, max_running: 2, max_waiting: 3, ..EngineConfig::instant() };
    let group = servers(SimConfig { loras: vec!["food".into()], engine, ..SimConfig::default() }, 1).await;
    let at = group.addresses()[0];
    let mut body = streaming(prompt(100), false);
    body["model"] = "food".into();
    body["max_tokens"] = 100_000.into();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(send(at, chat(&body, ""), Http1).await.unwrap());
    }
    let state = until(at, |state| state["running"] == 2).await;
    assert_eq!(state["waiting"], 3);
    assert_eq!(send(at, chat(&body, ""), Http1).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    let page = get(at, "/metrics").await.1;
    let values = metrics(&page);
    assert_eq!((values["vllm_num_requests_running"], values["vllm_num_requests_waiting"]), (2.0, 3.0));
    // 6 blocks of the prompt are shared; each has its own for the end of it.
    assert!(values["vllm_kv_cache_usage_perc"] >= 8.0 / 27_000.0);
    let text = String::from_utf8(page.to_vec()).unwrap();
    assert!(text.contains(r#"{max_lora="1",running_lora_adapters="food",waiting_lora_adapters=""} "#));
    drop(clients);
    let state = until(at, |state| state["aborted"] == 5).await;
    assert_eq!((&state["running"], &state["waiting"], &state["rejected"]), (&json!(0), &json!(0), &json!(1)));
    assert_eq!(state["kv"]["used_blocks"], 0);
}

#[tokio::test]
async fn the_metrics_page_is_as_large_as_a_real_one_and_well_formed() {
    let group = instant().await;
    let at = group.addresses()[0];
    let before = get(at, "/metrics").await.1;
    assert_eq!(get(at, "/metrics").await.1, before, "nothing happened");
    ask(at, &prompt(100)).await;
    let after = get(at, "/metrics").await.1;
    for page in [&before, &after] {
        assert!((55_000..65_000).contains(&page.len()), "{} bytes", page.len());
    }
    let values = metrics(&after);
    assert_eq!(values["vllm_prompt_tokens_total"], 104.0);
    assert_eq!(values["vllm_generation_tokens_total"], 5.0);
    let text = String::from_utf8(after.to_vec()).unwrap();
    for part in [
        "# TYPE vllm:time_to_first_token_seconds histogram\n",
        "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 1.0\n",
        "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"0.3\",model_name=",
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=",
        "vllm:cache_config_info{block_size=\"16\",",
        ",num_gpu_blocks=\"27000\",",
        "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"2xx\"} 1.0\n",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Every family is announced once, before its samples.
    let mut types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), count);
}

#[tokio::test]
async fn bodies_of_any_kind_are_echoed_by_size_and_hash() {
    let engine = EngineConfig { max_model_len: 2_000_000, num_blocks: 125_000, ..EngineConfig::instant() };
    let group = servers(SimConfig { engine, ..SimConfig::default() }, 1).await;
    let at = group.addresses()[0];
    let words = "a long prompt, ".repeat(5 << 20 >> 4);
    let body = json!({"prompt": words, "max_tokens": 1}).to_string();
    let hash = format!("{:016x}", xxh64(body.as_bytes(), 0));
    let chunks: Vec<Bytes> = body.as_bytes().chunks(30_000).map(Bytes::copy_from_slice).collect();
    for protocol in [Http1, Http2] {
        let frames = chunks.clone().into_iter().map(|chunk| Ok(Frame::data(chunk)));
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        let frames = frames.chain([Ok(Frame::trailers(trailers))]);
        let request =
            Request::post("/v1/completions").header("trailer", "x-sum").header("authorization", "secret");
        let request = request.body(StreamBody::new(stream::iter(frames)).boxed_unsync()).unwrap();
        let (parts, _, _) = exchange(at, request, protocol).await;
        assert_eq!(parts.status, 200, "{protocol:?}");
        assert_eq!(parts.headers["x-sim-body-bytes"], body.len().to_string());
        assert_eq!(parts.headers["x-sim-body-xxh64"], hash);
        assert_eq!(parts.headers["x-sim-request-trailers"], "x-sum=7");
        let last = &get_json(at, "/admin/state").await["last"];
        assert_eq!((&last["body_xxh64"], &last["trailers"]["x-sum"]), (&json!(hash), &json!(["7"])));
        assert_eq!(last["headers"]["authorization"], json!(["(hidden)"]));
    }
    let (parts, _, _) = exchange(at, Request::get("/nowhere").body(full("")).unwrap(), Http2).await;
    assert_eq!(
        (parts.status, &parts.headers["x-sim-body-bytes"]),
        (StatusCode::NOT_FOUND, &"0".parse().unwrap())
    );
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_but_still_echoed() {
    let config = SimConfig { max_body_bytes: 1000, ..SimConfig::default() };
    let group = servers(config, 1).await;
    let request = Request::post("/v1/completions").body(full(vec![b'x'; 100_000])).unwrap();
    let (parts, _, _) = exchange(group.addresses()[0], request, Http1).await;
    assert_eq!(
        (parts.status, &parts.headers["x-sim-body-bytes"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &"100000".parse().unwrap())
    );
}

#[tokio::test]
async fn trailers_come_when_asked_for() {
    let group = instant().await;
    let at = group.addresses()[0];
    for protocol in [Http1, Http2] {
        for body in [prompt(1), streaming(prompt(1), true)] {
            let mut request = chat(&body, "");
            request.headers_mut().insert("x-sim-trailers", "1".parse().unwrap());
            request.headers_mut().insert("te", "trailers".parse().unwrap());
            let (_, _, trailers) = exchange(at, request, protocol).await;
            assert_eq!(trailers.unwrap()["x-sim-trailer"], "sim-0", "{protocol:?} {body}");
        }
        let (_, _, trailers) = exchange(at, chat(&prompt(1), ""), protocol).await;
        assert_eq!(trailers, None);
    }
}

#[tokio::test]
async fn bad_requests_are_refused_as_vllm_refuses_them() {
    let group = instant().await;
    let at = group.addresses()[0];
    for body in [
        "{",
        r#"{"model":"m"}"#,
        r#"{"messages":[],"max_tokens":0}"#,
        r#"{"messages":[],"max_tokens":200000}"#,
    ] {
        let request = Request::post("/v1/chat/completions").body(full(body)).unwrap();
        let (parts, response, _) = exchange(at, request, Http1).await;
        let response: Value = serde_json::from_slice(&response).unwrap();
        assert_eq!((parts.status.as_u16(), &response["error"]["code"]), (400, &json!(400)), "{body}");
    }
}

#[tokio::test]
async fn starting_server_responds_with_503() {
    let config = SimConfig { startup: Duration::from_secs(86_400), ..SimConfig::default() };
    let group = servers(config, 1).await;
    let at = group.addresses()[0];
    assert_eq!(get(at, "/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(at, "/metrics").await.0, StatusCode::OK);
}
