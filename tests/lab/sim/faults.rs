//! Servers that misbehave on request.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use std::io::ErrorKind;
use tokio::net::TcpStream;
use usher::sim::{EngineConfig, SimConfig};

use crate::sim::support::*;

#[tokio::test]
async fn request_header_injects_status_and_delay_faults() {
    let group = instant().await;
    let at = group.addresses()[0];
    for protocol in [Http1, Http2] {
        let (parts, body, _) = exchange(at, chat(&prompt(1), "slow=1ms, status=503"), protocol).await;
        assert_eq!(parts.status, 503);
        assert!(body.starts_with(br#"{"error":{"#));
        let request = Request::get("/health").header("x-sim-fault", "status=418").body(full("")).unwrap();
        assert_eq!(exchange(at, request, protocol).await.0.status, 418);
        assert_eq!(exchange(at, chat(&prompt(1), "explode"), protocol).await.0.status, 400);
    }
}

#[tokio::test]
async fn reset_and_drop_after_faults_break_the_connection() {
    let group = instant().await;
    let at = group.addresses()[0];
    for protocol in [Http1, Http2] {
        assert!(send(at, chat(&prompt(1), "reset"), protocol).await.is_err());
        let response = send(at, chat(&streaming(prompt(1), false), "drop-after=3"), protocol).await.unwrap();
        let mut body = response.into_body();
        let mut seen = Vec::new();
        let error = loop {
            match body.frame().await.unwrap() {
                Ok(frame) => seen.extend_from_slice(&frame.into_data().unwrap()),
                Err(error) => break error,
            }
        };
        assert!(!error.is_user());
        // The role and three tokens, all of them complete.
        assert_eq!(events(&seen).len(), 4, "{protocol:?}");
        let response = send(at, chat(&prompt(1), "drop-after=3"), protocol).await.unwrap();
        assert!(response.into_body().collect().await.is_err(), "half of the response, then the end");
    }
    let socket = {
        let socket = TcpStream::connect(at).await.unwrap();
        let request = b"GET /health HTTP/1.1\r\nhost: sim\r\nx-sim-fault: reset\r\n\r\n";
        socket.writable().await.unwrap();
        assert_eq!(socket.try_write(request).unwrap(), request.len());
        socket
    };
    socket.readable().await.unwrap();
    assert_eq!(socket.try_read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_hanging_request_is_never_answered() {
    let group = instant().await;
    let at = group.addresses()[0];
    for (protocol, requests) in [(Http1, 1), (Http2, 2)] {
        let hanging = tokio::spawn(send(at, chat(&prompt(1), "hang"), protocol));
        let state = until(at, |state| state["requests"] == requests).await;
        assert_eq!((&state["running"], &state["statuses"]), (&json!(0), &json!({})));
        assert!(!hanging.is_finished());
        hanging.abort();
    }
    group.shutdown().await;
}

#[tokio::test]
async fn one_server_can_be_broken_for_a_number_of_requests() {
    let config = SimConfig { engine: EngineConfig::instant(), ..SimConfig::default() };
    let group = servers(config, 2).await;
    let [broken, well] = [group.addresses()[0], group.addresses()[1]];
    assert_eq!(set_fault(broken, json!({"status": 500, "count": 2})).await, 200);
    let mut statuses = Vec::new();
    for at in [broken, broken, broken, well] {
        statuses.push(exchange(at, chat(&prompt(1), ""), Http1).await.0.status.as_u16());
    }
    assert_eq!(statuses, [500, 500, 200, 200]);
    assert_eq!(get_json(broken, "/admin/state").await["statuses"], json!({"200": 1, "500": 2}));
    assert_eq!(set_fault(broken, json!({"health": 503})).await, 200);
    assert_eq!((get(broken, "/health").await.0.as_u16(), get(well, "/health").await.0.as_u16()), (503, 200));
    assert_eq!(set_fault(broken, json!({"stats": 500})).await, 400);
    let heal = Request::delete("/admin/fault").body(full("")).unwrap();
    assert_eq!(exchange(broken, heal, Http1).await.0.status, 200);
    assert_eq!(get(broken, "/health").await.0, 200);
}

#[tokio::test]
async fn metrics_go_stale_break_vanish_and_fail() {
    let group = instant().await;
    let at = group.addresses()[0];
    set_fault(at, json!({"metrics": "stale"})).await;
    let before = get(at, "/metrics").await.1;
    ask(at, &prompt(10)).await;
    assert_eq!(get(at, "/metrics").await.1, before);
    set_fault(at, json!({"metrics": "broken"})).await;
    let broken = get(at, "/metrics").await;
    assert_eq!(broken.0, 200);
    assert!(std::str::from_utf8(&broken.1).is_err());
    set_fault(at, json!({"metrics": "empty"})).await;
    assert_eq!(get(at, "/metrics").await, (StatusCode::OK, Bytes::new()));
    set_fault(at, json!({"metrics": "error"})).await;
    assert_eq!(get(at, "/metrics").await.0, 500);
    set_fault(at, json!({"metrics": "hang"})).await;
    let request = Request::get("/metrics").body(full("")).unwrap();
    let hanging = tokio::spawn(send(at, request, Http1));
    ask(at, &prompt(10)).await;
    assert!(!hanging.is_finished());
    set_fault(at, json!({})).await;
    assert_eq!(metrics(&get(at, "/metrics").await.1)["vllm_prompt_tokens_total"], 28.0);
}
