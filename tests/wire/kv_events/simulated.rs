//! Simulated servers that lose and mix up their events.

use std::net::{SocketAddr, TcpListener};

use serde_json::json;
use usher::sim::{EngineConfig, Form, KvEventsConfig, SimConfig, Target, start};

use super::*;

/// Posts JSON, and waits for the end of the response.
fn post(at: SocketAddr, path: &str, body: &serde_json::Value) {
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_known_is_right_whatever_happens_to_messages() {
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
