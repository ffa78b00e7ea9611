//! A decision of an ext_proc server: one exchange, played to its end.

use std::collections::BTreeMap;
use std::future::poll_fn;

use bytes::Bytes;
use http::Request;
use serde::Serialize;

use super::exchange::{Replies, refused, send, send_chunk};
use super::failure::Failure;
use super::link::Link;
use super::prompt::Messages;
use usher_wire::client::reply::{self, Part, Reply};

/// Headers that say nothing of a decision: a body's length, who asked, whose trace it is, and a mark
/// that every picker leaves. The destination has a field of its own.
const OTHERS: [&str; 7] = [
    "content-length",
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
    "x-went-into-resp-headers",
    DESTINATION,
];

const DESTINATION: &str = "x-gateway-destination-endpoint";

/// A decision as a gateway sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// `routed`; `429` or another status that the server responded with; or what broke, such as
    /// `timeout`.
    pub status: String,
    /// The endpoints that were picked, in order, with commas between them; empty when it wasn't routed.
    pub destination: String,
    /// Headers that the server set or changed on the request, or of its own response, with names in
    /// lower case; without those that say nothing of the decision.
    pub headers: BTreeMap<String, String>,
    /// Headers that the server set or changed on the model server's response, with names in lower case.
    pub response_headers: BTreeMap<String, String>,
}

impl Decided {
    /// A request that broke.
    pub fn broken(failure: &Failure) -> Self {
        Self { status: failure.kind.to_string(), ..Self::default() }
    }
}

/// One exchange from its start to its end.
pub(super) async fn decide(
    link: &Link,
    call: &Request<()>,
    messages: &Messages,
    number: u64,
) -> Result<Decided, Failure> {
    let mut requests = link.ready().await?;
    let (response, mut stream) = requests.send_request(call.clone(), false)?;
    send(&mut stream, messages.head.with_id(number))?;
    for chunk in &messages.body {
        send_chunk(&mut stream, chunk)?;
    }
    let mut replies = Replies::new(response);
    let mut decided = Decided::default();
    let (mut headers, mut ended) = (false, false);
    while !(headers && ended) {
        match poll_fn(|context| replies.poll(context)).await? {
            Reply::RequestHeaders { destination, mutation, .. } => {
                decided.status = "routed".to_owned();
                decided.destination = String::from_utf8_lossy(&destination).into_owned();
                decided.headers = said(&mutation)?;
                headers = true;
            }
            Reply::RequestBody(Part { end, .. }) => ended |= end,
            Reply::Immediate { status, body, mutation } => return immediate(status, &body, &mutation),
            _ => {}
        }
    }
    send(&mut stream, messages.response.head.clone())?;
    for chunk in (0..messages.response.count()).filter_map(|at| messages.response.chunk(at)) {
        send_chunk(&mut stream, chunk)?;
    }
    let mut ended = false;
    while !ended {
        match poll_fn(|context| replies.poll(context)).await? {
            Reply::ResponseHeaders { mutation } => decided.response_headers = said(&mutation)?,
            Reply::ResponseBody(Part { end, .. }) => ended = end,
            Reply::Immediate { status, body, mutation } => return immediate(status, &body, &mutation),
            _ => {}
        }
    }
    stream.send_data(Bytes::new(), true)?;
    replies.end().await?;
    Ok(decided)
}

fn immediate(status: u64, body: &[u8], mutation: &[u8]) -> Result<Decided, Failure> {
    let refusal = refused(status, body);
    match refusal.kind.strip_prefix("http-") {
        Some(status) => {
            Ok(Decided { status: status.to_owned(), headers: said(mutation)?, ..Decided::default() })
        }
        None => Err(refusal),
    }
}

fn said(mutation: &[u8]) -> Result<BTreeMap<String, String>, Failure> {
    let headers = reply::headers(mutation).map_err(|_| Failure::protocol("a reply is malformed"))?;
    Ok(headers.into_iter().filter(|(name, _)| !OTHERS.contains(&name.as_str())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_response_is_a_decision() {
        // A header `x-a: b` that is set: fields 1 (option), 1 (header), 1 (key) and 3 (raw value).
        let mutation = b"\x0a\x0a\x0a\x08\x0a\x03x-a\x1a\x01b";
        let decided = immediate(429, b"full", mutation).unwrap();
        assert_eq!((decided.status.as_str(), decided.destination.as_str()), ("429", ""));
        assert_eq!(decided.headers, BTreeMap::from([("x-a".to_owned(), "b".to_owned())]));
        assert_eq!(immediate(7, b"", b"").unwrap_err().kind, "protocol");
        assert!(said(b"\x0a\xff").is_err());
        // What every picker sets says nothing.
        assert_eq!(said(b"\x0a\x13\x0a\x11\x0a\x0cx-request-id\x1a\x01b").unwrap(), BTreeMap::new());
    }
}
