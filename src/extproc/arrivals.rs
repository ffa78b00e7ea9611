//! Counts the data that streams of a connection read.
//!
//! HTTP/2 keeps what streams haven't read, and says neither how much that is nor when it drops it.
//! So it is counted on both sides of it: [`Counted`](super::counted::Counted) sees what a client sends,
//! and [`RequestBody`] what streams take.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::call::CallSource;
use super::frames::{OVERHEAD, charge};
use crate::memory::{ConnectionRoom, OpenStream, StreamState, Unread, small};

/// Time that a client has to end its side of a stream which has ended on ours. HTTP/2 forgets a
/// stream that we reset, and counts small frames against the connection for ever that arrive
/// on it later; so the stream is read until the client has noticed.
const LINGER: Duration = Duration::from_secs(10);

/// Lingering streams of a connection at most, of those of [all](crate::memory::Budget::lingering). Further ones are
/// reset at once.
const MAX_LINGERING: usize = 256;

/// The body of a request, whose data is counted as it is read. When it is dropped before its end,
/// its stream lingers until the client ends it, unless the stream is reset.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` when it was handed on.
    body: Option<CountedBody>,
}

/// Remaining body of a [`RequestBody`].
#[derive(Debug)]
struct CountedBody {
    incoming: Incoming,
    streams: Arc<Streams>,
    /// `None` when the stream lingers: it keeps the memory of its task.
    stream_state: Option<Arc<StreamState>>,
    stream: Weak<StreamState>,
    has_ended: bool,
}

impl RequestBody {
    /// The body of a stream of a connection.
    pub fn new(incoming: Incoming, streams: &Arc<Streams>, stream_state: &Arc<StreamState>) -> Self {
        streams.unread.open();
        let (streams, stream) = (Arc::clone(streams), Arc::downgrade(stream_state));
        let stream_state = Some(Arc::clone(stream_state));
        Self { body: Some(CountedBody { incoming, streams, stream_state, stream, has_ended: false }) }
    }

    /// A place among the [small] calls of its connection, if there is one.
    #[must_use]
    pub fn small_place(&self) -> Option<OwnedSemaphorePermit> {
        let small = Arc::clone(&self.body.as_ref()?.streams.small);
        small.try_acquire_owned().ok()
    }

    /// Ends its stream when this says so. To be called by the service before it returns the future of
    /// its response.
    pub fn ends(&self, end: StreamEnd) {
        if let Some(body) = &self.body {
            body.streams.begun().end = Some(end);
        }
    }
}

impl CallSource for RequestBody {
    fn end_with(&self, end: CancellationToken) {
        self.ends(StreamEnd { cancelled: end, is_small: false });
    }

    fn stream_state(&self) -> Option<Arc<StreamState>> {
        self.body.as_ref()?.stream_state.clone()
    }
}

/// Ends a stream from outside.
#[derive(Debug)]
pub struct StreamEnd {
    /// Cancelled when it has to end.
    pub cancelled: CancellationToken,
    /// `true` if it doesn't count as open on its connection.
    pub is_small: bool,
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(mut body) = self.body.take()
            && body.drain(&mut Context::from_waker(Waker::noop())).is_pending()
            // The client of a stream that is reset learns of it once nobody reads it any more.
            && !body.stream_state.take().is_some_and(|stream_state| stream_state.is_reset())
        {
            let lingering = body.streams.lingering.clone();
            // The only error is that the connection ends: this resets the stream.
            let _ = lingering.send(body);
        }
    }
}

impl CountedBody {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    let bytes = data.len() as i64 + OVERHEAD;
                    self.streams.unread.read(bytes);
                    let charge = charge(bytes);
                    if charge != 0 {
                        self.streams.unread.add_small(-charge);
                    }
                    if let Some(stream_state) = &self.stream_state {
                        stream_state.read(bytes);
                    }
                } else {
                    self.streams.unread.trailers_read();
                }
            }
            Some(Err(_)) | None => self.has_ended = true,
        }
        Poll::Ready(frame)
    }

    /// Reads and drops what is there, and is ready after the last.
    fn drain(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.has_ended {
            let _ = ready!(self.poll_frame(context));
        }
        Poll::Ready(())
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.upgrade() {
            stream.discard_body();
        }
        self.streams.unread.close();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.body.as_mut().map_or(Poll::Ready(None), |body| body.poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|body| body.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, |body| body.incoming.size_hint())
    }
}

/// The replies of a stream, which say whether its client takes them.
#[derive(Debug)]
pub struct Replies<B> {
    body: B,
    stream_state: Arc<StreamState>,
}

impl<B> Replies<B> {
    /// The replies of this stream.
    pub fn new(body: B, stream_state: Arc<StreamState>) -> Self {
        Self { body, stream_state }
    }
}

impl<B: Body + Unpin> Body for Replies<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.stream_state.asked(frame.is_pending());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The streams of a connection.
#[derive(Debug)]
pub struct Streams {
    unread: Arc<Unread>,
    lingering: mpsc::UnboundedSender<CountedBody>,
    small: Arc<Semaphore>,
    // Guards the stream for which the service was just called, until it is run. Taken when a stream
    // begins, by the thread of the connection.
    begun: Mutex<Begun>,
}

/// A stream that is about to be run.
#[derive(Debug, Default)]
pub struct Begun {
    /// State of the replies that wait to be taken.
    pub stream_state: Option<Arc<StreamState>>,
    /// End that the service [asked for](RequestBody::ends).
    pub end: Option<StreamEnd>,
}

impl Streams {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream begins. To be called before the service is.
    pub fn begin(&self) -> Arc<StreamState> {
        let stream_state = self.unread.begin_stream();
        *self.begun() = Begun { stream_state: Some(Arc::clone(&stream_state)), end: None };
        stream_state
    }

    /// The stream for which the service was just called.
    pub fn take_begun(&self) -> Begun {
        std::mem::take(&mut *self.begun())
    }

    /// Counts a stream as open on the connection until the result is dropped.
    pub fn open(&self) -> OpenStream {
        OpenStream::new(&self.unread)
    }
}

/// Streams that have ended on our side, and not on the client's.
#[derive(Debug)]
pub struct HalfClosedStreams {
    streams: mpsc::UnboundedReceiver<CountedBody>,
    /// Places of those of all connections.
    places: Arc<Semaphore>,
}

/// The streams of a connection.
pub fn streams(room: &ConnectionRoom) -> (Arc<Streams>, HalfClosedStreams) {
    let (lingering, streams) = mpsc::unbounded_channel();
    let small = Arc::new(Semaphore::new(small::MAX_STREAMS as usize));
    let places = Arc::clone(room.budget().lingering());
    let unread = Arc::clone(room.unread());
    (
        Arc::new(Streams { unread, lingering, small, begun: Mutex::default() }),
        HalfClosedStreams { streams, places },
    )
}

impl HalfClosedStreams {
    /// Reads them until `drain` is cancelled, or for ever. They are reset then: no client is to wait
    /// for them.
    pub async fn read(mut self, drain: &CancellationToken) {
        let mut bodies = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(mut body) = self.streams.recv() => if bodies.len() < MAX_LINGERING
                    && let Ok(place) = Arc::clone(&self.places).try_acquire_owned()
                {
                    bodies.push(tokio::time::timeout(LINGER, async move {
                        poll_fn(|context| body.drain(context)).await;
                        drop(place);
                    }));
                },
                Some(_) = bodies.next() => {}
                () = drain.cancelled() => return,
            }
        }
    }
}
