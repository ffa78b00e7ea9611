//! One keep-alive connection to one server.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::page::{PageError, PageReader};
use super::response::ResponseError;
use super::tls::TlsClient;

/// Bytes of one read: a page in one go, or nearly, as most of the cost of a read is the call of
/// the kernel.
const READ_BYTES: usize = 64 << 10;

/// Error of a scrape that brought no page.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// No connection.
    #[error("can't connect ({0}); is the model server listening there?")]
    Connect(#[source] io::Error),
    /// Connected, but TLS fails.
    #[error("no TLS ({0}); check scheme, caCertPath and the server's certificate")]
    Tls(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Connection(#[source] io::Error),
    /// The response holds no page that can be used.
    #[error(transparent)]
    Page(#[from] PageError),
    /// No whole page in time.
    #[error("no {what} within {after:?}")]
    Timeout {
        /// The time.
        after: Duration,
        /// The missing part: a connection, a response or a whole page.
        what: &'static str,
    },
}

/// Kind of failure of an error, for metrics and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Connect,
    Tls,
    Connection,
    Timeout,
    Status,
    TooLarge,
    Encoding,
    Malformed,
}

impl Reason {
    /// Every reason, in the order of their numbers, with its name in metrics.
    pub(super) const ALL: [(Self, &'static str); 8] = [
        (Self::Connect, "connect"),
        (Self::Tls, "tls"),
        (Self::Connection, "connection"),
        (Self::Timeout, "timeout"),
        (Self::Status, "status"),
        (Self::TooLarge, "too_large"),
        (Self::Encoding, "encoding"),
        (Self::Malformed, "malformed"),
    ];
}

impl ScrapeError {
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Connect(_) => Reason::Connect,
            Self::Tls(_) => Reason::Tls,
            Self::Connection(_) => Reason::Connection,
            Self::Timeout { .. } => Reason::Timeout,
            Self::Page(PageError::Status(_)) => Reason::Status,
            Self::Page(PageError::TooLarge(_)) => Reason::TooLarge,
            Self::Page(PageError::Encoding | PageError::Damaged(_)) => Reason::Encoding,
            Self::Page(PageError::Response(ResponseError::Closed | ResponseError::Cut)) => Reason::Connection,
            Self::Page(PageError::Response(_)) => Reason::Malformed,
        }
    }

    /// Returns `true` if there was a connection, and no TLS on it.
    pub(super) fn is_of_tls(&self) -> bool {
        self.reason() == Reason::Tls
    }

    /// Returns `true` if it is about the server's health: the connection failed, or
    /// no response came, or one with a 5xx. Pages that are missing or can't be read are a matter
    /// of configuration.
    pub(super) fn is_of_the_server(&self) -> bool {
        match self.reason() {
            Reason::Connect | Reason::Connection | Reason::Timeout => true,
            Reason::Status => matches!(self, Self::Page(PageError::Status(500..600))),
            Reason::Tls | Reason::TooLarge | Reason::Encoding | Reason::Malformed => false,
        }
    }

    /// Returns `true` if the port refuses connections.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Returns `true` if the server said that it doesn't have the page, or doesn't understand.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Page(PageError::Status(400..500)))
    }
}

/// A buffer that the connections of a source share: what arrives is read into it and looked
/// at before anything else happens.
#[derive(Debug)]
pub(super) struct Buffer {
    // Guards the bytes while one read is looked at; the scrapes of a source run on one
    // thread, so nobody ever waits for it.
    bytes: Mutex<Vec<u8>>,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { bytes: Mutex::new(vec![0; READ_BYTES]) }
    }
}

/// Fetches pages from one address.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    tls: Option<TlsClient>,
    page: PageReader,
    /// Kept when the last exchange on it ended well.
    idle: Option<Stream>,
    stage: Stage,
}

/// Progress of the scrape under way, or of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Waiting,
    Reading,
}

impl Client {
    pub(super) fn new(address: SocketAddr, tls: Option<TlsClient>, max_body_bytes: usize) -> Self {
        let page = PageReader::new(max_body_bytes);
        Self { address, tls, page, idle: None, stage: Stage::Connecting }
    }

    /// Sends a request and hands the page over piece by piece. The pieces are a whole page
    /// only when the result is `Ok`. Dropping the future closes the connection.
    ///
    /// A server may close an idle connection at any moment, also just as the request
    /// leaves; that is no failure, so a new connection then gets its chance.
    pub(super) async fn get(
        &mut self,
        request: &[u8],
        buffer: &Buffer,
        piece: &mut impl FnMut(&[u8]),
    ) -> Result<(), ScrapeError> {
        if let Some(stream) = self.idle.take() {
            let result = self.exchange(stream, request, buffer, piece).await;
            let unanswered = self.stage == Stage::Waiting
                && matches!(
                    result,
                    Err(ScrapeError::Connection(_)
                        | ScrapeError::Page(PageError::Response(ResponseError::Closed)))
                );
            if !unanswered {
                return result;
            }
        }
        self.stage = Stage::Connecting;
        // On the heap, as it is rare and large: each endpoint has a task, which is as large as the
        // largest of what it may wait for.
        let stream = Box::pin(self.connect()).await?;
        self.exchange(stream, request, buffer, piece).await
    }

    /// Error of a scrape that takes too long: the future of [`get`](Self::get) was dropped.
    pub(super) fn timed_out(&self, after: Duration) -> ScrapeError {
        let what = match self.stage {
            Stage::Connecting => "connection",
            Stage::Waiting => "response",
            Stage::Reading => "whole page",
        };
        ScrapeError::Timeout { after, what }
    }

    /// Returns `true` if the last scrape came so far that there was a connection.
    pub(super) fn connected(&self) -> bool {
        self.stage != Stage::Connecting
    }

    async fn connect(&self) -> Result<Stream, ScrapeError> {
        let stream = TcpStream::connect(self.address).await.map_err(ScrapeError::Connect)?;
        stream.set_nodelay(true).map_err(ScrapeError::Connect)?;
        Ok(match &self.tls {
            None => Stream::Plain(stream),
            Some(tls) => {
                let stream = tls.connect(self.address, stream).await.map_err(ScrapeError::Tls)?;
                Stream::Tls(Box::new(stream))
            }
        })
    }

    async fn exchange(
        &mut self,
        mut stream: Stream,
        request: &[u8],
        buffer: &Buffer,
        piece: &mut impl FnMut(&[u8]),
    ) -> Result<(), ScrapeError> {
        self.stage = Stage::Waiting;
        self.page.restart();
        stream.send(request).await.map_err(ScrapeError::Connection)?;
        if poll_fn(|cx| self.receive(&mut stream, buffer, piece, cx)).await? {
            self.idle = Some(stream);
        }
        Ok(())
    }

    /// Reads until the page is whole. Whether the connection can take another request.
    fn receive(
        &mut self,
        stream: &mut Stream,
        buffer: &Buffer,
        piece: &mut impl FnMut(&[u8]),
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, ScrapeError>> {
        let mut bytes = buffer.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut space = ReadBuf::new(&mut bytes);
            ready!(stream.poll_read(cx, &mut space)).map_err(ScrapeError::Connection)?;
            if space.filled().is_empty() {
                self.page.closed(piece)?;
                return Poll::Ready(Ok(false));
            }
            self.stage = Stage::Reading;
            if let Some(reusable) = self.page.feed(space.filled(), piece)? {
                return Poll::Ready(Ok(reusable));
            }
        }
    }
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| match self {
                Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
                Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            })
            .await?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, space),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, space),
        }
    }
}
