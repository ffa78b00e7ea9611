//! The picker's port: TLS or not, and an exchange as a gateway has it.

use std::time::Duration;

use bytes::Bytes;
use h2::client;
use http::{HeaderValue, Request};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::gateway::NO_MODEL;
use crate::doctor::seen::{Choice, Handshake, Picker};
use usher_wire::client::connector;
use usher_wire::client::message::Context;
use usher_wire::client::reply::{self, Reply};
use usher_wire::inbox::Inbox;

const PATH: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Requests a decision from the picker at `address`.
pub(super) async fn ask(address: &str, found: &str, limit: Duration) -> Picker {
    let mut seen = Picker {
        address: address.to_owned(),
        found: found.to_owned(),
        tls: Err(String::new()),
        unreachable: None,
        reply: Err("not asked".to_owned()),
    };
    let plain = match connect(address, limit).await {
        Ok(stream) => stream,
        Err(reason) => {
            seen.unreachable = Some(reason);
            return seen;
        }
    };
    let secure = async {
        let name = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
        let connector = connector(&[b"h2"]).map_err(|error| error.to_string())?;
        connector.connect(name, plain).await.map_err(|error| error.to_string())
    };
    // A server without TLS may also just wait for more.
    let secure = timeout(limit, secure).await.unwrap_or_else(|_| Err("no handshake in time".to_owned()));
    match secure {
        Ok(stream) => {
            let (_, session) = stream.get_ref();
            let chain =
                session.peer_certificates().unwrap_or_default().iter().map(|one| one.to_vec()).collect();
            seen.tls = Ok(Handshake { h2: session.alpn_protocol() == Some(b"h2"), chain });
            seen.reply = within(limit, exchange(stream, "https", address)).await;
        }
        Err(reason) => {
            seen.tls = Err(reason);
            seen.reply = match connect(address, limit).await {
                Ok(stream) => within(limit, exchange(stream, "http", address)).await,
                Err(reason) => Err(reason),
            };
        }
    }
    seen
}

async fn connect(address: &str, limit: Duration) -> Result<TcpStream, String> {
    let stream = timeout(limit, TcpStream::connect(address)).await;
    stream.map_err(|_| format!("no connection within {limit:?}"))?.map_err(|error| error.to_string())
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(format!("no reply within {limit:?}")))
}

/// A request up to its decision. The stream ends there, so nothing stays booked.
async fn exchange<S>(stream: S, scheme: &str, address: &str) -> Result<Choice, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let said = |error: h2::Error| error.to_string();
    let (mut requests, connection) = client::handshake(stream).await.map_err(said)?;
    let _driver = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        // How it ends comes with the stream.
        let _ = connection.await;
    }));
    let call = Request::post(format!("{scheme}://{address}{PATH}"))
        .header("te", HeaderValue::from_static("trailers"))
        .header("content-type", HeaderValue::from_static("application/grpc"));
    let call = call.body(()).map_err(|error| error.to_string())?;
    let (response, mut sender) = requests.send_request(call, false).map_err(said)?;
    let headers = [
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        (":authority", "usher-doctor"),
        (":scheme", "http"),
        ("content-type", "application/json"),
    ];
    let context = Context::default();
    let body = json!({"model": NO_MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "ping"}]});
    sender.send_data(context.request_headers(&headers).with_id(rand::random()), false).map_err(said)?;
    for frame in context.request_body(body.to_string().as_bytes()).into_iter().flat_map(|chunk| chunk.frames)
    {
        sender.send_data(frame, false).map_err(said)?;
    }
    let response = response.await.map_err(said)?;
    let kind = response.headers().get("content-type").map_or(&b""[..], |value| value.as_bytes());
    if response.status() != 200 || !kind.starts_with(b"application/grpc") {
        return Err(format!("it responds with {} and no gRPC", response.status()));
    }
    if let Some(status) = response.headers().get("grpc-status") {
        return Err(format!("it ends the call with the gRPC status {}", shown(status)));
    }
    let mut body = response.into_body();
    let mut inbox = Inbox::new(reply::MOST);
    while let Some(data) = body.data().await {
        let data: Bytes = data.map_err(said)?;
        body.flow_control().release_capacity(data.len()).map_err(said)?;
        inbox.push(data);
        while let Some(message) = inbox.next_message().map_err(|status| status.message().to_owned())? {
            match reply::read(message).map_err(|_| "a reply is malformed".to_owned())? {
                Reply::RequestHeaders { destination, .. } => {
                    return Ok(Choice::Destination(String::from_utf8_lossy(&destination).into_owned()));
                }
                Reply::Immediate { status, .. } => return Ok(Choice::Refused(status)),
                _ => {}
            }
        }
    }
    let trailers = body.trailers().await.map_err(said)?;
    let status = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status")).map(shown);
    Err(format!(
        "it ends the call without a reply, with the gRPC status {}",
        status.as_deref().unwrap_or("missing")
    ))
}

/// A status is a small number; anything else is not repeated.
fn shown(status: &HeaderValue) -> String {
    let number = status.to_str().ok().and_then(|text| text.parse::<u8>().ok());
    number.map_or_else(|| "that is none".to_owned(), |number| number.to_string())
}
