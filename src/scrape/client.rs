//! One keep-alive connection to one model server.

use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// What one connection reads at a time, and what it holds while it is idle.
/// hyper's adaptive buffer would grow to the size of a page for every endpoint.
const READ_BYTES: usize = 32 << 10;

/// Why a scrape brought no page.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// No connection.
    #[error("can't connect ({0}); is the model server listening there?")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or what came isn't HTTP.
    #[error("the exchange failed: {}", with_source(.0))]
    Exchange(#[source] hyper::Error),
    /// The request couldn't be built from the path.
    #[error("no valid request: {0}; check the path of the metrics source")]
    Request(#[source] http::Error),
    /// The server answers, but not with a page.
    #[error("the server answered {0}; does it serve metrics under this path?")]
    Status(StatusCode),
    /// The page is compressed, which nobody asked for.
    #[error("the page is compressed, though the request doesn't accept that")]
    Encoded,
    /// The page is larger than allowed.
    #[error("the page is larger than {0} bytes; is this the metrics path of a model server?")]
    TooLarge(usize),
    /// No whole page within the timeout.
    #[error("no whole page within {0:?}")]
    Timeout(Duration),
}

/// hyper's message says what failed, its source says why.
fn with_source(error: &hyper::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Fetches pages from one address.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    host: String,
    uri: Uri,
    max_body_bytes: usize,
    /// Kept when the last exchange on it ended well.
    idle: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: Driver,
}

/// The side of a connection that reads and writes. It runs inside the
/// exchanges instead of in a task of its own: an idle connection has nothing to
/// do, and a scrape then wakes one task and not two.
#[derive(Debug)]
struct Driver {
    /// `None` when the connection has ended: only when it is dropped does
    /// whoever waits for it hear of that.
    running: Option<http1::Connection<TokioIo<TcpStream>, Empty<Bytes>>>,
}

impl Driver {
    /// Does some work that needs the connection to run.
    async fn run<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // The work hears how it ended, too, so the result says nothing new.
            if self.running.as_mut().is_some_and(|connection| Pin::new(connection).poll(cx).is_ready()) {
                self.running = None;
            }
            work.as_mut().poll(cx)
        })
        .await
    }
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self, ScrapeError> {
        let stream = TcpStream::connect(address).await.map_err(ScrapeError::Connect)?;
        stream.set_nodelay(true).map_err(ScrapeError::Connect)?;
        let (sender, connection) = http1::Builder::new()
            .read_buf_exact_size(Some(READ_BYTES))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ScrapeError::Exchange)?;
        Ok(Self { sender, driver: Driver { running: Some(connection) } })
    }

    /// Sends a request and waits for the head of the answer.
    async fn head(&mut self, request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, ScrapeError> {
        let Self { sender, driver } = self;
        let exchange = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        driver.run(exchange).await.map_err(ScrapeError::Exchange)
    }
}

impl Client {
    pub(super) fn new(address: SocketAddr, path: PathAndQuery, max_body_bytes: usize) -> Self {
        Self { address, host: address.to_string(), uri: Uri::from(path), max_body_bytes, idle: None }
    }

    /// Fetches a page and hands it over piece by piece. The pieces are a whole
    /// page only when the result is `Ok`. Dropping the future closes the connection.
    pub(super) async fn get(&mut self, piece: impl FnMut(&[u8])) -> Result<(), ScrapeError> {
        let (mut connection, response) = self.head().await?;
        if response.status() != StatusCode::OK {
            return Err(ScrapeError::Status(response.status()));
        }
        if response.headers().get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(ScrapeError::Encoded);
        }
        connection.driver.run(read(response.into_body(), self.max_body_bytes, piece)).await?;
        self.idle = Some(connection);
        Ok(())
    }

    /// The head of an answer, over the idle connection if there is one. A
    /// server may close that at any moment, also just as the request leaves;
    /// that is no failure, so a new connection then gets its chance.
    async fn head(&mut self) -> Result<(Connection, Response<Incoming>), ScrapeError> {
        if let Some(mut connection) = self.idle.take()
            && let Ok(response) = connection.head(self.request()?).await
        {
            return Ok((connection, response));
        }
        let mut connection = Connection::open(self.address).await?;
        let response = connection.head(self.request()?).await?;
        Ok((connection, response))
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, ScrapeError> {
        Request::get(self.uri.clone())
            .header(HOST, self.host.as_str())
            .header(USER_AGENT, "usher")
            .body(Empty::new())
            .map_err(ScrapeError::Request)
    }
}

async fn read(mut body: Incoming, limit: usize, mut piece: impl FnMut(&[u8])) -> Result<(), ScrapeError> {
    // A length in the head tells before anything is read.
    if body.size_hint().lower() > limit as u64 {
        return Err(ScrapeError::TooLarge(limit));
    }
    let mut left = limit;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ScrapeError::Exchange)?.into_data() else { continue };
        left = left.checked_sub(data.len()).ok_or(ScrapeError::TooLarge(limit))?;
        piece(&data);
    }
    Ok(())
}
