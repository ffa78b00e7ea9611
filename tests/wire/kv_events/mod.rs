//! KV events of engines, published by another implementation of ZeroMQ.

mod agreement;
mod engine;
mod explained;
mod process;
mod renderer;
mod simulated;
mod tokenizer;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::*;
use engine::Engine;
use renderer::Renderer;

/// Tokens of a block.
const BLOCK: u32 = 4;

const A: &str = "127.0.0.2";
const B: &str = "127.0.0.3";

/// Families with llm-d-router's names.
const THEIRS: [&str; 9] = [
    "kv_cache_index_admissions_total",
    "kv_cache_index_lookup_requests_total",
    "kv_cache_index_lookup_hits_total",
    "kv_cache_events_stores_skipped_total",
    "kv_cache_events_removals_skipped_total",
    "kv_cache_events_active_subscribers",
    "kv_cache_events_messages_received_total",
    "kv_cache_events_pool_queue_depth",
    "kv_cache_events_pool_capacity",
];

async fn picker(ports: &str, more: &str) -> Picker {
    picker_with(&format!("podDiscoveryConfig: {{{ports}}}"), more, B).await
}

async fn picker_with(events: &str, more: &str, b: &str) -> Picker {
    Picker::start(&[("a", A, 8000), ("b", b, 8000)], &[&config(events, more)]).await
}

/// Configuration with these sockets and more plugins; without an approximate match among these nothing is known by
/// decisions.
fn config(events: &str, more: &str) -> String {
    let approximate = match more.contains("approx-prefix-cache-producer") {
        true => "",
        false => ", {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 1}}",
    };
    format!(
        "--config-text=plugins: [{{type: precise-prefix-cache-producer, parameters: {{tokenProcessorConfig: {{blockSizeTokens: {BLOCK}}}, kvEventsConfig: {{{events}}}}}}}, {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}{more}{approximate}]"
    )
}

fn number(picker: &Picker, name: &str, endpoint: &str) -> Option<f64> {
    let plugin = "precise-prefix-cache-producer";
    let labels = format!("endpoint=\"default/{endpoint}\",plugin_name=\"{plugin}\"");
    picker.metric(&format!("usher_kv_events_{name}{{{labels}}}"))
}

/// Waits for a number of an endpoint.
fn wait(picker: &Picker, name: &str, endpoint: &str, value: f64) {
    let end = Instant::now() + Duration::from_secs(30);
    while number(picker, name, endpoint) != Some(value) {
        let found = number(picker, name, endpoint);
        assert!(Instant::now() < end, "{name} of {endpoint} is {found:?}, not {value}");
    }
}

/// Waits until an engine is heard, and all that it holds is known: nothing.
async fn connected(picker: &Picker, engine: &mut Engine, endpoint: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while number(picker, "known", endpoint) != Some(2.0) {
        assert!(Instant::now() < end, "{endpoint} is not heard");
        engine.clear().await;
    }
}

/// Endpoints that a prompt of these tokens goes to, asked some times.
async fn destinations(picker: &Picker, tokens: impl IntoIterator<Item = u32>) -> Vec<String> {
    let ids: Vec<String> = tokens.into_iter().map(|token| token.to_string()).collect();
    let prompt = format!(r#"{{"model":"m","prompt":[{}]}}"#, ids.join(","));
    destinations_of(picker, "/v1/completions", &prompt).await
}

/// The same for a body.
async fn destinations_of(picker: &Picker, path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for _ in 0..16 {
        let mut stream = picker.stream().await;
        stream.send(headers(&[(":path", path)], false));
        stream.send(body(text, true));
        found.push(stream.request_headers().await.destination().to_owned());
    }
    found.sort();
    found.dedup();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_endpoints_with_their_blocks() {
    let mut a = Engine::at(A, 0).await;
    let mut b = Engine::at(B, a.port).await;
    let picker = picker(&format!("socketPort: {}", a.port), "").await;
    connected(&picker, &mut a, "a").await;
    connected(&picker, &mut b, "b").await;
    a.store(None, 0..8).await;
    b.store(None, 100..108).await;
    wait(&picker, "blocks", "a", 2.0);
    wait(&picker, "blocks", "b", 2.0);
    assert_eq!(destinations(&picker, 0..12).await, [format!("{A}:8000")]);
    assert_eq!(destinations(&picker, 100..112).await, [format!("{B}:8000")]);
    // Without its head the rest is of no use.
    b.remove(100..104).await;
    b.store(None, 900..904).await;
    a.store(None, 100..104).await;
    a.store(Some(103), 104..108).await;
    wait(&picker, "blocks", "a", 4.0);
    wait(&picker, "blocks", "b", 3.0);
    assert_eq!(destinations(&picker, 100..112).await, [format!("{A}:8000")]);
    assert_eq!(number(&picker, "gaps_total", "a"), Some(0.0));
    assert_eq!(picker.metric("llm_d_epp_kv_cache_events_active_subscribers"), Some(2.0));
    a.hold_in_group("sliding_window").await;
    let skipped = "plugin_name=\"precise-prefix-cache-producer\",reason=\"other_group\"";
    let skipped = format!("usher_kv_events_skipped_total{{{skipped}}}");
    let end = Instant::now() + Duration::from_secs(30);
    while picker.metric(&skipped) != Some(2.0) {
        assert!(Instant::now() < end, "{:?}", picker.metric(&skipped));
    }
    let page = Picker::get(picker.metrics, "/metrics");
    for family in THEIRS {
        assert!(page.contains(&format!("# TYPE llm_d_epp_{family} ")), "{family}");
    }
    // What llm-d's dashboards group by, and the older name that they query.
    let of_group = "cache_kind=\"sliding_window\",reason=\"unsupported_cache_kind\"";
    for kind in ["stores", "removals"] {
        let series = format!("llm_d_epp_kv_cache_events_{kind}_skipped_total{{{of_group}}}");
        assert_eq!(picker.metric(&series), Some(1.0), "{series}");
    }
    let messages = "llm_d_epp_kv_cache_events_messages_received_total{pod_identifier=\"default/b\"}";
    assert!(picker.metric(messages) >= Some(4.0));
    assert_eq!(picker.metric("llm_d_epp_kv_cache_events_pool_capacity"), Some(1.0));
    let admitted = picker.metric("llm_d_epp_kv_cache_index_admissions_total");
    assert_eq!(picker.metric("kvcache_index_admissions_total"), admitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gap_without_replay_drops_cached_blocks() {
    let mut a = Engine::at(A, 0).await;
    let picker = picker(&format!("socketPort: {}", a.port), "").await;
    connected(&picker, &mut a, "a").await;
    a.store(None, 0..8).await;
    wait(&picker, "blocks", "a", 2.0);
    a.lose(None, 50..54).await;
    a.store(None, 200..204).await;
    wait(&picker, "gaps_total", "a", 1.0);
    wait(&picker, "blocks", "a", 1.0);
    assert_eq!(number(&picker, "known", "a"), Some(1.0));
    assert_eq!(destinations(&picker, 200..208).await, [format!("{A}:8000")]);
    assert_eq!(destinations(&picker, 0..8).await.len(), 2, "nobody is known to hold it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_messages_are_replayed() {
    let mut a = Engine::at(A, 0).await;
    a.replays().await;
    // Before anybody listens.
    a.store(None, 0..8).await;
    let ports = format!("socketPort: {}, replaySocketPort: {}", a.port, a.port + 1);
    let picker = picker(&ports, "").await;
    wait(&picker, "blocks", "a", 2.0);
    wait(&picker, "known", "a", 2.0);
    a.lose(Some(7), 8..12).await;
    a.store(Some(11), 12..16).await;
    wait(&picker, "blocks", "a", 4.0);
    wait(&picker, "known", "a", 2.0);
    assert_eq!(number(&picker, "gaps_total", "a"), Some(1.0));
    assert_eq!(number(&picker, "failed_replays_total", "a"), Some(0.0));
    assert_eq!(destinations(&picker, 0..16).await, [format!("{A}:8000")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speculative_blocks_keep_a_conversation_together() {
    let port = Engine::at(A, 0).await.port;
    let more = format!(
        ", {{type: precise-prefix-cache-scorer, parameters: {{tokenProcessorConfig: {{blockSizeTokens: {BLOCK}}}, kvEventsConfig: {{podDiscoveryConfig: {{socketPort: {port}}}}}, speculativeIndexing: true, speculativeTTL: 1h}}}}"
    );
    let picker = picker(&format!("socketPort: {port}"), &more).await;
    assert_eq!(destinations(&picker, 0..8).await.len(), 1);
}

#[test]
fn overlong_frame_length_closes_the_connection() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = TcpListener::bind((A, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let picker = runtime.block_on(picker(&format!("socketPort: {port}"), ""));
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    greeting.extend(b"NULL");
    greeting.resize(64, 0);
    let hostile: [&[u8]; 3] = [
        b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB\x02\x3f\xff\xff\xff\xff\xff\xff\xff",
        b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB\x06\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x04\x19\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB",
    ];
    for bytes in hostile {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&greeting).unwrap();
        stream.write_all(bytes).unwrap();
        // To its end, which may be a reset.
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    assert!(!runtime.block_on(destinations(&picker, 0..8)).is_empty(), "requests are served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_prompts_use_tokens_rendered_by_a_server() {
    let renderer = Renderer::rendering();
    let mut b = Engine::at(B, 0).await;
    // Long, as this machine may be busy.
    let tokens = format!(
        ", {{type: token-producer, parameters: {{modelName: base, vllm: {{url: '{}', timeout: 30s}}}}}}",
        renderer.url
    );
    let picker = picker(&format!("socketPort: {}", b.port), &tokens).await;
    connected(&picker, &mut b, "b").await;
    // The bytes of "abcdefgh".
    b.store(None, 97..105).await;
    wait(&picker, "blocks", "b", 2.0);
    let completion = destinations_of(&picker, "/v1/completions", r#"{"model":"m","prompt":"abcdefgh, and"}"#);
    assert_eq!(completion.await, [format!("{B}:8000")]);
    let chat =
        r#"{"model":"m","messages":[{"role":"user","content":"abcd"},{"role":"user","content":"efgh"}]}"#;
    assert_eq!(destinations_of(&picker, "/v1/chat/completions", chat).await, [format!("{B}:8000")]);
    let asked = renderer.asked.lock().unwrap().clone();
    assert_eq!(asked.first().unwrap(), &(renderer::COMPLETIONS.to_owned(), "base".to_owned()));
    assert_eq!(asked.last().unwrap(), &(renderer::CHATS.to_owned(), "base".to_owned()));
    let rendered = r#"usher_tokens_rendered_total{plugin_name="token-producer",result="rendered"}"#;
    assert_eq!(picker.metric(rendered), Some(32.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_without_render_endpoints_are_asked_to_tokenize() {
    let renderer = Renderer::with(&[renderer::TOKENIZE]);
    let mut b = Engine::at(B, 0).await;
    let tokens = format!(
        ", {{type: token-producer, parameters: {{modelName: base, vllm: {{url: '{}', timeout: 30s, mmTimeout: 30s}}}}}}",
        renderer.url
    );
    let picker = picker(&format!("socketPort: {}", b.port), &tokens).await;
    connected(&picker, &mut b, "b").await;
    // The bytes of "abcdefgh".
    b.store(None, 97..105).await;
    wait(&picker, "blocks", "b", 2.0);
    let well = [format!("{B}:8000")];
    let (completion, chat) = ("/v1/completions", "/v1/chat/completions");
    let asked = |paths: &[&str]| {
        let calls = std::mem::take(&mut *renderer.asked.lock().unwrap());
        let expected: Vec<_> = paths.iter().map(|path| ((*path).to_owned(), "base".to_owned())).collect();
        assert_eq!(calls, expected);
    };
    let text = r#"{"model":"m","prompt":"abcdefgh, and"}"#;
    assert_eq!(destinations_of(&picker, completion, text).await, well);
    // Once it is known to be missing, the render endpoint is not asked.
    asked(&[&[renderer::COMPLETIONS][..], &[renderer::TOKENIZE; 16]].concat());
    let texts = r#"{"model":"m","prompt":["abcdefgh, and","or"]}"#;
    assert_eq!(destinations_of(&picker, completion, texts).await, well);
    asked(&[renderer::TOKENIZE; 32]);
    let turns =
        r#"{"model":"m","messages":[{"role":"user","content":"abcd"},{"role":"user","content":"efgh"}]}"#;
    assert_eq!(destinations_of(&picker, chat, turns).await, well);
    asked(&[&[renderer::CHATS][..], &[renderer::TOKENIZE; 16]].concat());
    let count = |result: &str| {
        let labels = format!("plugin_name=\"token-producer\",result=\"{result}\"");
        picker.metric(&format!("usher_tokens_rendered_total{{{labels}}}"))
    };
    assert_eq!((count("rendered"), count("failed")), (Some(48.0), Some(0.0)));
    // What /tokenize leaves out is not guessed.
    let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"abcdefgh"},{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}]}"#;
    let effort =
        r#"{"model":"m","messages":[{"role":"user","content":"abcdefgh"}],"reasoning_effort":"low"}"#;
    for body in [image, effort] {
        assert_eq!(destinations_of(&picker, chat, body).await.len(), 2);
        asked(&[renderer::CHATS; 16]);
    }
    assert_eq!((count("rendered"), count("failed")), (Some(48.0), Some(32.0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_of_gpt_oss_are_not_tokenized_by_template() {
    let renderer = Renderer::of_gpt_oss();
    let mut b = Engine::at(B, 0).await;
    let tokens = format!(
        ", {{type: token-producer, parameters: {{modelName: m, vllm: {{url: '{}', timeout: 30s}}}}}}",
        renderer.url
    );
    let picker = picker(&format!("socketPort: {}", b.port), &tokens).await;
    connected(&picker, &mut b, "b").await;
    b.store(None, 97..105).await;
    wait(&picker, "blocks", "b", 2.0);
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"abcdefgh"}]}"#;
    assert_eq!(destinations_of(&picker, "/v1/chat/completions", chat).await.len(), 2);
    let text = r#"{"model":"m","prompt":"abcdefgh, and"}"#;
    assert_eq!(destinations_of(&picker, "/v1/completions", text).await, [format!("{B}:8000")]);
    let count = |result: &str| {
        let labels = format!("plugin_name=\"token-producer\",result=\"{result}\"");
        picker.metric(&format!("usher_tokens_rendered_total{{{labels}}}"))
    };
    assert_eq!((count("rendered"), count("failed")), (Some(16.0), Some(16.0)));
    let asked: Vec<String> = renderer.asked.lock().unwrap().iter().map(|(path, _)| path.clone()).collect();
    let chats = [renderer::CHATS, renderer::TOKENIZE];
    let completions = [&[renderer::COMPLETIONS][..], &[renderer::TOKENIZE; 16]].concat();
    assert_eq!(asked, [&chats[..], &completions].concat(), "once for chats");
    let found = agreement::finding(&picker, "kv-events-without-tokens").unwrap();
    assert!(found.contains("token-producer: 16 of 32 prompts have no tokens"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_tokenizer_server_delays_a_request_up_to_its_timeout() {
    let renderer = Renderer::silent();
    let port = Engine::at(A, 0).await.port;
    let more = format!(
        ", {{type: token-producer, parameters: {{vllm: {{url: '{}'}}}}}}, {{type: approx-prefix-cache-producer}}",
        renderer.url
    );
    let picker = picker(&format!("socketPort: {port}"), &more).await;
    let prompt = format!(r#"{{"model":"m","prompt":"{}"}}"#, "word".repeat(64));
    // As it went before: that is known at once for few blocks.
    assert_eq!(destinations_of(&picker, "/v1/completions", &prompt).await.len(), 1);
    let late = r#"usher_tokens_rendered_total{plugin_name="token-producer",result="late"}"#;
    assert_eq!(picker.metric(late), Some(16.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_may_connect_to_the_central_socket() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("tcp://127.0.0.1:{port}");
    // Where connections to it come from.
    let b_ip = "127.0.0.1";
    let picker = picker_with(&format!("zmqEndpoint: '{address}'"), "", b_ip).await;
    let mut b = Engine::connected_to(&address, &format!("kv@{b_ip}:8000@m")).await;
    connected(&picker, &mut b, "b").await;
    b.store(None, 0..8).await;
    wait(&picker, "blocks", "b", 2.0);
    assert_eq!(destinations(&picker, 0..8).await, [format!("{b_ip}:8000")]);
    // One that takes the name of another address.
    let mut other = Engine::connected_to(&address, &format!("kv@{A}:8000@m")).await;
    let unknown = r#"usher_kv_events_unknown_pods_total{plugin_name="precise-prefix-cache-producer"}"#;
    let end = Instant::now() + Duration::from_secs(30);
    while picker.metric(unknown).is_none_or(|count| count == 0.0) {
        assert!(Instant::now() < end, "nothing came");
        other.store(None, 0..8).await;
    }
    assert_eq!(number(&picker, "blocks", "a"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_may_connect_while_others_are_connected_to() {
    let mut a = Engine::at(A, 0).await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("tcp://127.0.0.1:{port}");
    let b_ip = "127.0.0.1";
    let events = format!("zmqEndpoint: '{address}', podDiscoveryConfig: {{socketPort: {}}}", a.port);
    let picker = picker_with(&events, "", b_ip).await;
    let mut b = Engine::connected_to(&address, &format!("kv@{b_ip}:8000@m")).await;
    connected(&picker, &mut a, "a").await;
    connected(&picker, &mut b, "b").await;
    a.store(None, 0..8).await;
    b.store(None, 100..108).await;
    wait(&picker, "blocks", "a", 2.0);
    wait(&picker, "blocks", "b", 2.0);
    assert_eq!(destinations(&picker, 0..8).await, [format!("{A}:8000")]);
    assert_eq!(destinations(&picker, 100..108).await, [format!("{b_ip}:8000")]);
    // Nothing listens at its port, as it need not.
    assert_eq!(number(&picker, "failed_connections_total", "b"), Some(0.0));
    drop(b);
    wait(&picker, "known", "b", 0.0);
    assert!(number(&picker, "failed_connections_total", "b") > Some(0.0));
    assert_eq!(number(&picker, "known", "a"), Some(2.0));
}
