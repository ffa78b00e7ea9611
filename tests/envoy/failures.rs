//! Failures as a client sees them.

use http::Request;

use crate::support::client::{self, Body, HttpResponse, Protocol};
use crate::support::nobody;
use crate::traffic::{ROUTING_HEADERS, chat, forge, post_chat};
use crate::{BODY_LIMIT, Stack};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

const REASON: &str = "x-llm-d-request-dropped-reason";

fn models() -> Request<Body> {
    Request::get("/v1/models").body(client::empty()).unwrap()
}

/// Refused by Usher: the responses never were a server's.
pub(crate) async fn requests_that_are_refused(stack: &Stack) {
    for protocol in BOTH {
        let rows = [
            ("{\"model\": \"base\",".to_owned(), 400, "inference error: BadRequest - "),
            ("{\"messages\": []}".to_owned(), 400, "inference error: BadRequest - "),
            (chat(BODY_LIMIT), 413, "inference error: "),
        ];
        for (body, status, says) in rows {
            let shown = body[..16].to_owned();
            let response = client::send(stack.envoy.address, protocol, post_chat(body)).await;
            assert_eq!(response.status, status, "{protocol:?} {shown}: {response:?}");
            assert!(response.text().starts_with(says), "{protocol:?} {shown}: {response:?}");
            assert_eq!((response.header(REASON), response.header("x-inference-pod")), ("", ""));
        }
    }
    stack.usher.set_endpoints(&[]).await;
    for (protocol, request) in BOTH.into_iter().flat_map(|p| [(p, post_chat(chat(50))), (p, models())]) {
        let response = client::send(stack.envoy.address, protocol, request).await;
        assert_eq!(response.status, 503, "{protocol:?}: {response:?}");
        assert_eq!(response.header(REASON), "rejected-no-endpoints", "{protocol:?}: {response:?}");
        assert!(response.text().starts_with("inference error: ServiceUnavailable - "), "{response:?}");
    }
    stack.usher.set_endpoints(&stack.servers.addresses).await;
}

/// Usher's first choice is the only one.
pub(crate) async fn a_server_that_is_down_responds_with_503(stack: &mut Stack) {
    stack.usher.set_endpoints(&[nobody()]).await;
    for (protocol, size) in BOTH.into_iter().flat_map(|p| [(p, 50), (p, 300_000)]) {
        let start = stack.envoy.access_end();
        let response = client::send(stack.envoy.address, protocol, post_chat(chat(size))).await;
        assert_eq!(response.status, 503, "{protocol:?} {size}: {response:?}");
        // Envoy's response, seen by Usher.
        assert_eq!(response.header("x-went-into-resp-headers"), "true", "{protocol:?} {size}: {response:?}");
        assert_eq!(response.header(REASON), "", "{protocol:?} {size}: {response:?}");
        let flags = stack.envoy.access(start, "the request", |line| Some(line.field("flags").to_owned()));
        assert_eq!(flags.await, "UF", "{protocol:?} {size}");
    }
    stack.usher.set_endpoints(&stack.servers.addresses).await;
}

/// Usher names several, and Envoy knows more.
pub(crate) async fn the_next_endpoint_serves_for_one_that_is_down(stack: &mut Stack) {
    stack.servers.kill(3).await;
    let (dead, alive) = (stack.servers.addresses[3], stack.servers.addresses[0]);

    // The order is Usher's, which here is by chance as long as it finds both idle.
    stack.usher.set_endpoints(&[dead, alive]).await;
    for (protocol, size) in BOTH.into_iter().flat_map(|p| [(p, 50), (p, 300_000), (p, 900_000)]) {
        let mut dead_first = false;
        for _ in 0..400 {
            let start = stack.envoy.access_end();
            let body = chat(size);
            let response = client::send(stack.envoy.address, protocol, post_chat(body.clone())).await;
            assert_eq!((response.status.as_u16(), response.header("x-inference-pod")), (200, "sim-0"));
            response.assert_received(body.as_bytes());
            let picked = stack
                .envoy
                .access(start, "the request", |line| {
                    assert_eq!(line.field("served"), alive.to_string());
                    Some((line.field("picked").to_owned(), line.field("attempts").to_owned()))
                })
                .await;
            dead_first = picked == (format!("{dead},{alive}"), "2".to_owned());
            if dead_first {
                break;
            }
            assert_eq!(picked, (format!("{alive},{dead}"), "1".to_owned()));
        }
        assert!(dead_first, "{protocol:?}: the server that is down was never picked");
    }

    // Nobody of the list can be reached: another server is better than none, and the one that
    // failed isn't tried again.
    stack.usher.set_endpoints(&[dead]).await;
    for protocol in BOTH.into_iter().cycle().take(80) {
        let start = stack.envoy.access_end();
        let response = client::send(stack.envoy.address, protocol, post_chat(chat(50))).await;
        assert_eq!(response.status, 200, "{response:?}");
        let server = stack.servers.addresses[response.server()].to_string();
        let logged = stack.envoy.access(start, "the request", |line| {
            Some((line.field("served").to_owned(), line.field("attempts").to_owned()))
        });
        assert_eq!(logged.await, (server, "2".to_owned()));
    }
    stack.usher.set_endpoints(&stack.servers.addresses).await;
}

/// Asks for one generation, with headers that no client may set.
async fn forged(stack: &Stack, protocol: Protocol, size: usize) -> HttpResponse {
    client::send(stack.envoy.address, protocol, forge(post_chat(chat(size)))).await
}

/// `failure_mode_allow: true`, as the configurations have it.
pub(crate) async fn without_usher_requests_go_on(mut stack: Stack) {
    stack.usher.kill().await;
    // Finding out that it is gone costs a request its body, but this one has none.
    let response = client::send(stack.envoy.address, Protocol::Http1, forge(models())).await;
    assert_eq!(
        (response.status.as_u16(), response.header("x-went-into-resp-headers")),
        (200, ""),
        "{response:?}"
    );
    stack.envoy.picker_is(false).await;
    for (protocol, size) in BOTH.into_iter().flat_map(|p| [(p, 50), (p, 300_000)]) {
        let response = forged(&stack, protocol, size).await;
        assert_eq!(response.status, 200, "{protocol:?} {size}: {response:?}");
        assert_eq!(response.header("x-went-into-resp-headers"), "", "Usher responded");
        response.assert_received(chat(size).as_bytes());
        let headers = stack.servers.last_headers(response.server()).await;
        assert!(ROUTING_HEADERS.iter().all(|name| headers[name].is_null()), "{headers}");
    }
    stack.usher = stack.usher.restart().await;
    stack.envoy.picker_is(true).await;
    let response = forged(&stack, Protocol::Http1, 50).await;
    assert_eq!((response.status.as_u16(), response.header("x-went-into-resp-headers")), (200, "true"));
}

/// `failure_mode_allow: false`.
pub(crate) async fn without_usher_requests_fail(mut stack: Stack) {
    let response = forged(&stack, Protocol::Http2, 50).await;
    assert_eq!((response.status.as_u16(), response.header("x-went-into-resp-headers")), (200, "true"));
    stack.usher.kill().await;
    for known in [false, true] {
        if known {
            stack.envoy.picker_is(false).await;
        }
        for (protocol, size) in BOTH.into_iter().flat_map(|p| [(p, 50), (p, 300_000)]) {
            let response = forged(&stack, protocol, size).await;
            assert_eq!(response.status, 503, "{protocol:?} {size}: {response:?}");
            assert_eq!(response.header("x-inference-pod"), "", "{response:?}");
        }
    }
}
