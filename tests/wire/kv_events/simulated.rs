//! Simulated servers that lose and mix up their events.

use std::net::{SocketAddr, TcpListener};

use serde_json::json;
use usher::sim::{EngineConfig, Form, KvEventsConfig, SimConfig, SimHandle, Target, start};

use super::*;

/// Posts JSON. Returns the body of the response.
pub fn post(at: SocketAddr, path: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn known_blocks_are_correct_despite_message_faults() {
    for form in [Form::Array, Form::Map] {
        let listeners = [(); 3].map(|()| TcpListener::bind((A, 0)).unwrap());
        let [at, port, replay] = [0, 1, 2].map(|number: usize| listeners[number].local_addr().unwrap());
        let [server, events, replays] = listeners;
        drop((events, replays));
        let target = Target::Listen { port: port.port(), replay_port: Some(replay.port()), step: 1 };
        let engine = EngineConfig { block_size: BLOCK, num_blocks: 8, ..EngineConfig::instant() };
        let kv_events = Some(KvEventsConfig { form, target });
        let config = SimConfig { model: "m".to_owned(), engine, kv_events, ..SimConfig::default() };
        let servers = start(config, vec![server]).await.unwrap();
        let ports = format!("socketPort: {}, replaySocketPort: {}", port.port(), replay.port());
        let picker = picker(&ports, "").await;
        let ask = |first: u32| {
            let prompt: Vec<u32> = (first..first + 10).collect();
            post(at, "/v1/completions", &json!({"model": "m", "prompt": prompt, "max_tokens": 1}));
        };
        for fault in ["drop", "duplicate", "reorder", "silence", "restart"] {
            post(at, "/admin/fault", &json!({"kv-events": fault}));
            (0..7).for_each(|number| ask(number * 100));
            post(at, "/admin/fault", &json!({}));
            // Shows what was lost before.
            ask(900);
            wait(&picker, "known", "a", 2.0);
            // The blocks of the first prompt had to go.
            let end = Instant::now() + Duration::from_secs(30);
            let well = [format!("{A}:8000")];
            while destinations(&picker, 900..910).await != well || destinations(&picker, 0..10).await == well
            {
                assert!(Instant::now() < end, "{form:?} {fault}");
                ask(900);
            }
        }
        servers.shutdown().await;
    }
}

/// A simulated server, and the port of its events.
pub async fn simulated() -> (SimHandle, SocketAddr, u16) {
    let listeners = [(); 2].map(|()| TcpListener::bind((A, 0)).unwrap());
    let [at, port] = [0, 1].map(|number: usize| listeners[number].local_addr().unwrap());
    let [server, events] = listeners;
    drop(events);
    let target = Target::Listen { port: port.port(), replay_port: None, step: 1 };
    let engine = EngineConfig { block_size: BLOCK, ..EngineConfig::instant() };
    let kv_events = Some(KvEventsConfig { form: Form::Array, target });
    let config = SimConfig { model: "m".to_owned(), engine, kv_events, ..SimConfig::default() };
    let servers = start(config, vec![server]).await.unwrap();
    (servers, at, port.port())
}

/// A simulated server and a picker that scrapes it and follows its events. Nothing announces what metrics say.
async fn scraped() -> (SimHandle, Picker, SocketAddr) {
    let (servers, at, port) = simulated().await;
    let ports = format!("podDiscoveryConfig: {{socketPort: {port}}}");
    let picker = Picker::start(&[("a", A, at.port()), ("b", B, 8000)], &[&config(&ports, "")]).await;
    heard(at);
    complete(at, 0);
    wait(&picker, "blocks", "a", 2.0);
    wait(&picker, "known", "a", 2.0);
    (servers, picker, at)
}

/// Waits until somebody listens to a server's events.
pub fn heard(at: SocketAddr) {
    let end = Instant::now() + Duration::from_secs(30);
    while state(at)["kv_events"]["subscribers"] != 1 {
        assert!(Instant::now() < end, "nobody listens");
    }
}

/// Lets a server complete a prompt of two blocks that begins with this token.
fn complete(at: SocketAddr, first: u32) {
    let prompt: Vec<u32> = (first..first + 10).collect();
    post(at, "/v1/completions", &json!({"model": "m", "prompt": prompt, "max_tokens": 1}));
}

fn state(at: SocketAddr) -> serde_json::Value {
    let text = Picker::get(at, "/admin/state");
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn blocks_of_a_restarted_process_are_dropped() {
    let (servers, picker, at) = scraped().await;
    post(at, "/admin/fault", &json!({"kv-events": "restart"}));
    wait(&picker, "restarts_total", "a", 1.0);
    wait(&picker, "blocks", "a", 0.0);
    assert_eq!(destinations(&picker, 0..10).await.len(), 2);
    // Then it publishes all that it holds.
    heard(at);
    complete(at, 100);
    wait(&picker, "known", "a", 2.0);
    wait(&picker, "blocks", "a", 2.0);
    assert_eq!(number(&picker, "restarts_total", "a"), Some(1.0));
    servers.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn blocks_of_a_sleeping_engine_are_dropped() {
    for level in [1, 2] {
        let (servers, picker, at) = scraped().await;
        let well = [format!("{A}:{}", at.port())];
        assert_eq!(destinations(&picker, 0..10).await, well);
        post(at, "/admin/fault", &json!({"sleep": level}));
        wait(&picker, "blocks", "a", 0.0);
        assert_eq!(destinations(&picker, 0..10).await.len(), 2);
        post(at, "/admin/fault", &json!({}));
        // Until the picker sees it awake, it takes what is published for old.
        let end = Instant::now() + Duration::from_secs(30);
        let mut first = 100;
        while destinations(&picker, first..first + 10).await != well {
            assert!(Instant::now() < end, "its blocks don't count");
            first += 10;
            complete(at, first);
        }
        servers.shutdown().await;
    }
}
