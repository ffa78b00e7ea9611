//! A picker that is killed while a model server streams.

use http_body_util::BodyExt;
use serde_json::json;

use crate::support::client::{Client, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::{SERVERS, Servers};
use crate::support::usher::Usher;
use crate::traffic::{BOTH, chat, post_chat};
use crate::{ORIGINAL_DST, Stack, traffic};

/// About as many milliseconds.
const TOKENS: usize = 2000;

/// Kills the picker after the first event of a stream, and returns the events that its client gets.
async fn survives(envoy: &Envoy, usher: &mut Usher, protocol: Protocol) -> String {
    let mut body: serde_json::Value = serde_json::from_str(&chat(100)).unwrap();
    body["stream"] = true.into();
    body["max_tokens"] = json!(TOKENS);
    let mut client = Client::connect(envoy.address, protocol).await.unwrap();
    let mut response = client.begin(post_chat(body.to_string())).await.unwrap();
    assert_eq!(response.status(), 200);
    let first = response.frame().await.unwrap().unwrap().into_data().unwrap();
    usher.kill().await;
    let mut text = first.to_vec();
    while let Some(Ok(frame)) = response.frame().await {
        text.extend(frame.into_data().unwrap_or_default());
    }
    String::from_utf8(text).unwrap()
}

/// Processing mode of `docs/guide/gateways.md` in which Usher gets the headers of responses only.
const BODIES_PASS_BY: [(&str, &str); 2] = [
    ("response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: NONE"),
    ("response_trailer_mode: SEND", "response_trailer_mode: SKIP"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_aborts_no_bypassing_stream() {
    for allow in ["true", "false"] {
        let allow = format!("failure_mode_allow: {allow}");
        let edits = [&BODIES_PASS_BY[..], &[("failure_mode_allow: true", &*allow)]].concat();
        let mut stack = Stack::start(ORIGINAL_DST, &[], &edits).await;
        traffic::passes(&stack).await;
        for protocol in BOTH {
            let text = survives(&stack.envoy, &mut stack.usher, protocol).await;
            // The role, the tokens and the end.
            let events: Vec<_> = text.split_terminator("\n\n").collect();
            assert_eq!((events.len(), events.last()), (TOKENS + 2, Some(&"data: [DONE]")), "{protocol:?}");
            stack.usher = stack.usher.restart().await;
            stack.envoy.picker_is(true).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_aborts_streams_through_the_picker() {
    let servers = Servers::start().await;
    let mut usher = Usher::start(&servers.addresses, &[]).await;
    let envoy = Envoy::start(ORIGINAL_DST, usher.address, &servers.addresses[..SERVERS], &[]).await;
    let text = survives(&envoy, &mut usher, Protocol::Http1).await;
    assert!(text.starts_with("data: ") && !text.contains("[DONE]"), "{} bytes", text.len());
}
