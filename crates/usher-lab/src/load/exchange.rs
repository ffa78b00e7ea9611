//! One HTTP request as an ext_proc server sees it: what a gateway sends it, and what
//! it replies.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::time::{Instant, Sleep};

use usher_wire::inbox::Inbox;

use super::failure::Failure;
use super::link::Carrier;
use super::prompt::Messages;
use super::record::{Numbers, Started};
use super::script::Script;
use usher_wire::client::message::Chunk;
use usher_wire::client::reply::{self, Part, Reply};

/// Chunks of a response that may be on their way, when there is no time between them. A
/// gateway has what a socket holds.
const AHEAD: usize = 64;

/// The highest of gRPC's status codes.
const LAST_CODE: u8 = 16;

/// An exchange whose request has been decided.
pub(super) struct Open<'a> {
    stream: SendStream<Bytes>,
    replies: Replies,
    numbers: &'a RefCell<Numbers>,
    started: Started,
    _link: Carrier,
}

/// Opens an exchange, sends the request and waits for its decision and its body.
///
/// # Errors
/// `Failure` if the server fails, refuses the request, or loses a part of it.
pub(super) async fn open<'a>(
    link: Carrier,
    call: &Request<()>,
    messages: &Messages,
    numbers: &'a RefCell<Numbers>,
    started: Started,
) -> Result<Open<'a>, Failure> {
    let mut requests = link.ready().await?;
    let (response, mut stream) = requests.send_request(call.clone(), false)?;
    send(&mut stream, messages.head.with_id(started.number))?;
    for chunk in &messages.body {
        send_chunk(&mut stream, chunk)?;
    }
    let mut in_flight = InFlight::new(numbers, messages.bytes);
    let mut replies = Replies::new(response);
    let (mut decided, mut ended) = (false, false);
    let (mut returned, mut expected) = (0, messages.bytes);
    while !(decided && ended) {
        match poll_fn(|context| replies.poll(context)).await? {
            Reply::RequestHeaders { destination, content_length, .. } => {
                if destination.is_empty() {
                    return Err(Failure::new("no-destination", "the reply names no endpoint"));
                }
                numbers.borrow_mut().decided(started, &destination, Instant::now());
                expected = content_length.unwrap_or(expected);
                decided = true;
            }
            Reply::RequestBody(Part { bytes, end }) => {
                in_flight.returned(bytes);
                returned += bytes;
                ended |= end;
            }
            Reply::Immediate { status, body, .. } => return Err(refused(status, &body)),
            Reply::Other => {}
            early => return Err(Failure::protocol(format!("{} came too early", early.name()))),
        }
    }
    if returned != expected {
        let detail = format!("{returned} bytes of a body of {expected} came back");
        return Err(Failure::new("body-mismatch", detail));
    }
    Ok(Open { stream, replies, numbers, started, _link: link })
}

impl Open<'_> {
    /// Plays the model server's response, waits for all of it, and ends the exchange.
    /// Between two chunks is `interval`.
    ///
    /// # Errors
    /// `Failure` if the server fails, or loses a part of the response.
    pub(super) async fn respond(mut self, script: &Script, interval: Duration) -> Result<(), Failure> {
        send(&mut self.stream, script.head.clone())?;
        let mut responding = Responding {
            script,
            next: 0,
            sent: VecDeque::with_capacity(4),
            headers: false,
            returned: 0,
            pacing: (!interval.is_zero()).then(|| Pacing {
                begin: Instant::now(),
                interval,
                sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            }),
        };
        poll_fn(|context| responding.poll(&mut self, context)).await?;
        if responding.returned != script.bytes {
            let detail = format!("{} bytes of a response of {} came back", responding.returned, script.bytes);
            return Err(Failure::new("response-mismatch", detail));
        }
        self.stream.send_data(Bytes::new(), true)?;
        self.replies.end().await
    }

    /// Checks that the server still has nothing to say about a request that waits.
    pub(super) fn is_waiting(&mut self) -> Result<(), Failure> {
        match poll_fn(|context| self.replies.poll(context)).now_or_never() {
            None => Ok(()),
            Some(Ok(_)) => Err(Failure::protocol("a reply came to an exchange that was idle")),
            Some(Err(failure)) => Err(failure),
        }
    }
}

/// State of a response.
struct Responding<'a> {
    script: &'a Script,
    /// The chunk that is sent next.
    next: usize,
    /// Due times of the chunks that are not back yet.
    sent: VecDeque<Instant>,
    /// `true` if the headers are back.
    headers: bool,
    /// Bytes that are back.
    returned: usize,
    pacing: Option<Pacing>,
}

/// Due times of chunks.
struct Pacing {
    begin: Instant,
    interval: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Responding<'_> {
    fn poll(&mut self, open: &mut Open<'_>, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            while let Poll::Ready(reply) = open.replies.poll(context)? {
                if self.replied(&reply, open)? {
                    return Poll::Ready(Ok(()));
                }
            }
            if self.send_due(open)? || self.wait(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Counts a reply. Whether it was the last.
    fn replied(&mut self, reply: &Reply, open: &Open<'_>) -> Result<bool, Failure> {
        match reply {
            Reply::ResponseHeaders { .. } => self.headers = true,
            Reply::ResponseBody(Part { bytes, end }) => {
                let now = Instant::now();
                let mut numbers = open.numbers.borrow_mut();
                if self.returned == 0 && *bytes > 0 {
                    numbers.first_byte(open.started, now);
                }
                self.returned += bytes;
                // A server may join chunks; then the end stands for the last of them.
                let back = if *end { self.sent.len() } else { 1 };
                for sent in self.sent.drain(..back.min(self.sent.len())) {
                    numbers.chunk_returned(sent, now);
                }
                if *end && !self.headers {
                    return Err(Failure::protocol("the response's body came back without its headers"));
                }
                return Ok(*end);
            }
            Reply::Immediate { status, body, .. } => return Err(refused(*status, body)),
            Reply::RequestHeaders { .. } | Reply::RequestBody(_) | Reply::Other => {}
        }
        Ok(false)
    }

    /// Sends what is due. Whether there is nothing to do until a reply comes.
    fn send_due(&mut self, open: &mut Open<'_>) -> Result<bool, Failure> {
        while let Some(chunk) = self.script.chunk(self.next) {
            // A chunk that is late waits from when it was due.
            let due = match &self.pacing {
                Some(pacing) => pacing.due(self.next),
                None if self.sent.len() >= AHEAD => return Ok(true),
                None => Instant::now(),
            };
            if due > Instant::now() {
                return Ok(false);
            }
            send_chunk(&mut open.stream, chunk)?;
            open.numbers.borrow_mut().chunk_sent();
            self.sent.push_back(due);
            self.next += 1;
        }
        Ok(true)
    }

    /// Waits until the next chunk is due.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(pacing) = &mut self.pacing else { return Poll::Pending };
        let due = pacing.due(self.next);
        if pacing.sleep.deadline() != due {
            pacing.sleep.as_mut().reset(due);
        }
        pacing.sleep.as_mut().poll(context)
    }
}

impl Pacing {
    fn due(&self, chunk: usize) -> Instant {
        self.begin + self.interval * u32::try_from(chunk).unwrap_or(u32::MAX)
    }
}

/// Body bytes that were sent and have not come back, counted until the exchange ends.
struct InFlight<'a> {
    numbers: &'a RefCell<Numbers>,
    bytes: usize,
}

impl<'a> InFlight<'a> {
    fn new(numbers: &'a RefCell<Numbers>, bytes: usize) -> Self {
        numbers.borrow_mut().body_sent(bytes);
        Self { numbers, bytes }
    }

    fn returned(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.numbers.borrow_mut().body_returned(bytes);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.numbers.borrow_mut().body_returned(self.bytes);
    }
}

/// Replies of the server within an exchange.
pub(super) struct Replies {
    source: Source,
    inbox: Inbox,
}

enum Source {
    Headers(ResponseFuture),
    Body(RecvStream),
}

impl Replies {
    /// Replies that come with this response.
    pub(super) fn new(response: ResponseFuture) -> Self {
        Self { source: Source::Headers(response), inbox: Inbox::new(reply::MOST) }
    }

    /// The next reply.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Reply, Failure>> {
        loop {
            let message = self.inbox.next_message().map_err(|status| Failure::protocol(status.message()))?;
            if let Some(message) = message {
                let reply = reply::read(message).map_err(|_| Failure::protocol("a reply is malformed"))?;
                return Poll::Ready(Ok(reply));
            }
            let body = match &mut self.source {
                Source::Headers(response) => {
                    let Poll::Ready(response) = response.poll_unpin(context) else { return Poll::Pending };
                    self.source = Source::Body(checked(response?)?);
                    continue;
                }
                Source::Body(body) => body,
            };
            match body.poll_data(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(data)) => {
                    let data = data?;
                    body.flow_control().release_capacity(data.len())?;
                    self.inbox.push(data);
                }
                Poll::Ready(None) => {
                    let Poll::Ready(trailers) = body.poll_trailers(context) else { return Poll::Pending };
                    let ended = match status_of(trailers?.as_ref()) {
                        Ok(()) => Failure::protocol("the server ended the exchange before its end"),
                        Err(failure) => failure,
                    };
                    return Poll::Ready(Err(ended));
                }
            }
        }
    }

    /// Waits for the end that the server gives when we have ended, and its status.
    pub(super) async fn end(self) -> Result<(), Failure> {
        let Source::Body(mut body) = self.source else {
            return Err(Failure::protocol("an end before the response began"));
        };
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
        }
        status_of(body.trailers().await?.as_ref())
    }
}

pub(super) fn send(stream: &mut SendStream<Bytes>, message: Bytes) -> Result<(), Failure> {
    // The library keeps what the server has no room for yet.
    Ok(stream.send_data(message, false)?)
}

pub(super) fn send_chunk(stream: &mut SendStream<Bytes>, chunk: &Chunk) -> Result<(), Failure> {
    chunk.frames.iter().try_for_each(|frame| send(stream, frame.clone()))
}

/// The start of a gRPC response.
pub(super) fn checked(response: Response<RecvStream>) -> Result<RecvStream, Failure> {
    let (head, body) = response.into_parts();
    if head.headers.contains_key("grpc-status") {
        status_of(Some(&head.headers))?;
    }
    let content_type = head.headers.get("content-type").map_or(&b""[..], |value| value.as_bytes());
    if head.status != 200 || !content_type.starts_with(b"application/grpc") {
        let text = format!("it responded with {} as {}", head.status, String::from_utf8_lossy(content_type));
        return Err(Failure::new("not-grpc", text));
    }
    Ok(body)
}

/// A gRPC status in trailers.
pub(super) fn status_of(trailers: Option<&HeaderMap>) -> Result<(), Failure> {
    let text = |name| trailers.and_then(|map| map.get(name)).and_then(|value| value.to_str().ok());
    match text("grpc-status") {
        Some("0") => Ok(()),
        // Few kinds, whatever a server makes up.
        Some(code) if code.parse().is_ok_and(|code: u8| code <= LAST_CODE) => {
            let message = text("grpc-message").map_or_else(|| "without a message".to_owned(), unescaped);
            Err(Failure::new(format!("grpc-{code}"), message))
        }
        Some(other) => Err(Failure::protocol(format!("{other:?} is no gRPC status"))),
        None => Err(Failure::protocol("the exchange ended without a gRPC status")),
    }
}

/// A message of gRPC, in which `%` and two digits stand for other bytes than letters.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| byte == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn refused(status: u64, body: &[u8]) -> Failure {
    if !(100..600).contains(&status) {
        return Failure::protocol(format!("an immediate response with status {status}"));
    }
    Failure::new(format!("http-{status}"), String::from_utf8_lossy(body))
}
