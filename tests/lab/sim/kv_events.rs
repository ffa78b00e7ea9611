//! KV events, as another implementation of ZeroMQ receives them.

use std::net::{SocketAddr, TcpListener};

use bytes::Bytes;
use http::Request;
use rmpv::Value;
use serde_json::json;
use usher::sim::{EngineConfig, Form, KvEventsConfig, SimConfig, SimHandle, Target};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::sim::support::*;

/// Number behind the last message of a replay.
const END: u64 = u64::MAX;

/// A server of 8 blocks of 16 tokens, the port of its events, and that of replays.
async fn server(form: Form) -> (SimHandle, u16, u16) {
    // Both at once, so that they differ.
    let [events, replays] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [port, replay] = [&events, &replays].map(|listener| listener.local_addr().unwrap().port());
    drop((events, replays));
    let target = Target::Listen { port, replay_port: Some(replay), step: 1 };
    let engine = EngineConfig { num_blocks: 8, ..EngineConfig::instant() };
    let kv_events = Some(KvEventsConfig { form, target });
    (servers(SimConfig { engine, kv_events, ..SimConfig::default() }, 1).await, port, replay)
}

/// Has a prompt of these tokens computed.
async fn ask(at: SocketAddr, tokens: std::ops::Range<u32>) {
    let body = json!({"prompt": tokens.collect::<Vec<_>>(), "max_tokens": 1}).to_string();
    let request = Request::post("/v1/completions").body(full(body)).unwrap();
    assert_eq!(exchange(at, request, Http1).await.0.status, 200);
}

/// A subscriber that gets all from now on.
async fn subscriber(at: SocketAddr, port: u16) -> SubSocket {
    let before = until(at, |_| true).await["kv_events"]["subscribers"].as_u64().unwrap();
    let mut socket = SubSocket::new();
    socket.connect(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
    socket.subscribe("kv@").await.unwrap();
    until(at, |state| state["kv_events"]["subscribers"] == before + 1).await;
    socket
}

/// Number and payload of a message with this topic.
fn numbered(frames: &[Bytes], topic: &str) -> (u64, Bytes) {
    let [name, number, payload] = frames else { panic!("{frames:?}") };
    assert_eq!(name, topic);
    (u64::from_be_bytes(number[..].try_into().unwrap()), payload.clone())
}

/// Events of a payload, each as the values of its fields.
fn events(payload: &[u8], form: Form) -> Vec<Vec<Value>> {
    let fields = |value: Value| match (form, value) {
        (Form::Array, Value::Array(values)) => values,
        (Form::Map, Value::Map(fields)) => fields.into_iter().map(|(_, value)| value).collect(),
        (_, other) => panic!("{other}"),
    };
    let batch = fields(rmpv::decode::read_value(&mut &payload[..]).unwrap());
    let [Value::F64(_), Value::Array(events), Value::Nil] = &batch[..] else { panic!("{batch:?}") };
    events.iter().cloned().map(fields).collect()
}

fn topic(at: SocketAddr) -> String {
    format!("kv@{at}@{}", SimConfig::default().model)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_and_removed_blocks_are_published_and_replayable() {
    for form in [Form::Array, Form::Map] {
        let (group, port, replay) = server(form).await;
        let at = group.addresses()[0];
        let mut socket = subscriber(at, port).await;
        ask(at, 0..40).await;
        let (number, first) = numbered(&socket.recv().await.unwrap().into_vec(), &topic(at));
        let published = events(&first, form);
        let [stored] = &published[..] else { panic!("{published:?}") };
        let tokens = Value::Array((0..32u32).map(Value::from).collect());
        assert_eq!(
            (number, &stored[0], &stored[3], &stored[4]),
            (0, &"BlockStored".into(), &tokens, &16.into())
        );
        let hashes = stored[1].as_array().unwrap();
        assert_eq!((hashes.len(), &stored[2]), (2, &Value::Nil));
        // Blocks that are there already are not published; what follows has a parent.
        ask(at, 0..60).await;
        let (number, second) = numbered(&socket.recv().await.unwrap().into_vec(), &topic(at));
        let published = events(&second, form);
        assert_eq!((number, published.len(), &published[0][2]), (1, 1, &hashes[1]));
        // Seven blocks of others: the ends of the first go before their beginnings.
        ask(at, 1000..1100).await;
        let (_, third) = numbered(&socket.recv().await.unwrap().into_vec(), &topic(at));
        let published = events(&third, form);
        assert_eq!(published[0][0], "BlockRemoved".into());
        assert_eq!(published[0][1].as_array().unwrap()[1..], [hashes[1].clone()], "and the third before it");

        let mut dealer = DealerSocket::new();
        dealer.connect(&format!("tcp://127.0.0.1:{replay}")).await.unwrap();
        let from = Bytes::copy_from_slice(&1u64.to_be_bytes());
        dealer.send(ZmqMessage::try_from(vec![Bytes::new(), from]).unwrap()).await.unwrap();
        let mut replayed = Vec::new();
        loop {
            let frames = dealer.recv().await.unwrap().into_vec();
            assert!(frames[0].is_empty(), "the delimiter");
            match numbered(&frames[1..], &topic(at)) {
                (END, payload) => break assert!(payload.is_empty()),
                message => replayed.push(message),
            }
        }
        assert_eq!(replayed, [(1, second), (2, third)]);
        group.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_empties_the_cache_and_counts_from_zero() {
    let (group, port, _) = server(Form::Array).await;
    let at = group.addresses()[0];
    let mut socket = subscriber(at, port).await;
    ask(at, 0..40).await;
    assert_eq!(numbered(&socket.recv().await.unwrap().into_vec(), &topic(at)).0, 0);
    assert_eq!(set_fault(at, json!({"kv-events": "restart"})).await, 200);
    until(at, |state| state["kv_events"] == json!({"subscribers": 0, "batches": 0})).await;
    let mut socket = subscriber(at, port).await;
    ask(at, 0..40).await;
    let (number, payload) = numbered(&socket.recv().await.unwrap().into_vec(), &topic(at));
    assert_eq!(
        (number, events(&payload, Form::Array)[0][1].as_array().unwrap().len()),
        (0, 2),
        "all blocks again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_lost_and_mixed_up_on_request() {
    let (group, port, _) = server(Form::Array).await;
    let at = group.addresses()[0];
    let mut socket = subscriber(at, port).await;
    let mut number = 0;
    for (fault, expected) in [
        (json!("drop"), &[0, 2][..]),
        (json!("duplicate"), &[3, 3, 4, 4, 5, 5]),
        (json!("reorder"), &[7, 6, 8]),
        (json!("silence"), &[]),
        (json!(null), &[12, 13, 14]),
    ] {
        let what = json!({"kv-events": fault});
        assert_eq!(set_fault(at, what).await, 200);
        for _ in 0..3 {
            ask(at, number * 100..number * 100 + 20).await;
            number += 1;
        }
        if fault == "reorder" {
            // The last of three waits for a fourth, or the end of the fault.
            assert_eq!(set_fault(at, json!({})).await, 200);
        }
        for number in expected {
            assert_eq!(numbered(&socket.recv().await.unwrap().into_vec(), &topic(at)).0, *number, "{fault}");
        }
    }
}

/// Posts JSON. Returns status and body of the response.
async fn post(at: SocketAddr, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
    let request = Request::post(path).body(full(body.to_string())).unwrap();
    let (parts, body, _) = exchange(at, request, Http1).await;
    (parts.status.as_u16(), serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn servers_return_the_tokens_of_prompts() {
    let group = instant().await;
    let at = group.addresses()[0];
    let [first, second] = [u32::from_le_bytes(*b"abcd"), u32::from(b'e')];
    // Ends with the role of the response.
    let response = [u32::from_le_bytes(*b"assi"), u32::from_le_bytes(*b"stan"), u32::from(b't')];
    let tokenized =
        |tokens: &[u32]| json!({"count": tokens.len(), "max_model_len": 131_072, "tokens": tokens});
    for (path, body, expected) in [
        ("/v1/completions/render", json!({"prompt": "abcde"}), json!([{"token_ids": [first, second]}])),
        ("/v1/completions/render", json!({"prompt": [7, 8]}), json!([{"token_ids": [7, 8]}])),
        ("/v1/chat/completions/render", json!({"messages": []}), json!({"token_ids": response})),
        ("/tokenize", json!({"prompt": "abcde"}), tokenized(&[first, second])),
        ("/tokenize", json!({"messages": []}), tokenized(&response)),
    ] {
        assert_eq!(post(at, path, &body).await, (200, expected), "{path}");
    }
    for body in [json!({"prompt": ["abcde"]}), json!({"prompt": [7]}), json!({})] {
        assert_eq!(post(at, "/tokenize", &body).await.0, 400, "{body}");
    }
    assert_eq!(set_fault(at, json!({"kv-events": "drop"})).await, 400, "it publishes nothing");
}

#[tokio::test]
async fn servers_without_render_endpoints_tokenize() {
    let config = SimConfig { engine: EngineConfig::instant(), has_render: false, ..SimConfig::default() };
    let group = servers(config, 1).await;
    let at = group.addresses()[0];
    for (path, status) in [
        ("/v1/completions/render", 404),
        ("/v1/chat/completions/render", 404),
        ("/tokenize", 200),
        ("/v1/completions", 200),
    ] {
        assert_eq!(post(at, path, &json!({"prompt": "abcde", "max_tokens": 1})).await.0, status, "{path}");
    }
}
