//! A small HTTP server for metrics and administration: fixed paths, GET only but for settings, over TLS and
//! only for those who may where it is so protected.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::access::{Access, Refusal};
use super::log_level::LogLevel;
use super::page::Page;
use super::query::Answering;
use super::tls::MetricsTls;
use crate::memory::{Budget, ConnectionSlots, Kind, Reservation, SmallPort, small};

/// Time for the handshake of TLS, and then to send the head of a request: half of what a request
/// has to be complete.
const HEAD_TIMEOUT: Duration = Duration::from_secs(small::COMPLETE.as_secs() / 2);

/// Time for a connection as a whole, until the last byte of the answer is taken. Slow
/// readers hold a page and a place for no longer.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the requests in progress when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept, such as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Largest value of a setting, in bytes.
const MAX_SETTING: usize = 256;

/// Memory that a request counts besides its connection, in bytes: what is written of its answer.
const REQUEST: u64 = 40 << 10;

/// The content type of the Prometheus text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

type Response = http::Response<Full<Bytes>>;

/// The paths of a server, each with what answers it.
#[derive(Clone, Default)]
pub struct Routes {
    routes: Vec<Route>,
}

#[derive(Clone)]
struct Route {
    path: &'static str,
    content_type: &'static str,
    content: Content,
}

#[derive(Clone)]
enum Content {
    /// Always the same.
    Fixed(Bytes),
    /// Rendered for those who ask.
    Page(Arc<Page>),
    /// Rendered for one who asks, by the query.
    Query(Answering),
    /// Shown to those who ask, and changed by PUT.
    Setting(Arc<LogLevel>),
}

impl Routes {
    /// No path at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more path, rendered for those who ask, as [`Page`] says. A path is
    /// matched as a whole; the first of two equal ones wins.
    #[must_use]
    pub fn with_page<B: Into<Bytes>>(
        self,
        path: &'static str,
        content_type: &'static str,
        render: impl Fn() -> B + Send + Sync + 'static,
    ) -> Self {
        self.with(path, content_type, Content::Page(Arc::new(Page::new(render))))
    }

    /// With a path whose answer depends on the query: `answer` gets it without the question mark, still encoded,
    /// and refuses one with a sentence, for 400.
    #[must_use]
    pub fn with_query(
        self,
        path: &'static str,
        content_type: &'static str,
        answer: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        self.with(path, content_type, Content::Query(Answering::new(answer)))
    }

    /// With `/metrics`, a page in the Prometheus text format.
    #[must_use]
    pub fn with_metrics<B: Into<Bytes>>(self, render: impl Fn() -> B + Send + Sync + 'static) -> Self {
        self.with_page("/metrics", PROMETHEUS_TEXT, render)
    }

    /// With `/log-level`, which shows the level of the log, and changes it by PUT.
    #[must_use]
    pub fn with_log_level(self, level: Arc<LogLevel>) -> Self {
        self.with("/log-level", PLAIN_TEXT, Content::Setting(level))
    }

    /// With `/`, which lists the other paths, and `/healthz`, which says that the process
    /// answers.
    #[must_use]
    pub fn with_index(self) -> Self {
        let routes = self.with("/healthz", PLAIN_TEXT, Content::Fixed("ok\n".into()));
        let index: String = routes.routes.iter().map(|route| format!("{}\n", route.path)).collect();
        routes.with("/", PLAIN_TEXT, Content::Fixed(index.into()))
    }

    fn with(mut self, path: &'static str, content_type: &'static str, content: Content) -> Self {
        self.routes.push(Route { path, content_type, content });
        self
    }

    /// The answer to a request of somebody who has shown this certificate.
    async fn answer<B: Body<Error: std::error::Error + Send + Sync + 'static> + Unpin>(
        &self,
        mut request: Request<B>,
        access: Option<&Access>,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Response {
        let path = request.uri().path();
        let Some(route) = self.routes.iter().find(|route| route.path == path) else {
            return text(StatusCode::NOT_FOUND, "no such path\n");
        };
        let is_setting = matches!(route.content, Content::Setting(_));
        let is_put = is_setting && request.method() == Method::PUT;
        if request.method() != Method::GET && request.method() != Method::HEAD && !is_put {
            let allowed = if is_setting { "GET, HEAD, PUT" } else { "GET, HEAD" };
            let said = format!("only {allowed} are answered here\n");
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, said);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return response;
        }
        if let Some(access) = access {
            let (headers, verb) = (request.headers(), request.method().as_str().to_ascii_lowercase());
            let certificate = certificate.map(AsRef::as_ref);
            if let Err(refusal) = access.check(headers, certificate, &verb, path).await {
                return refused(&refusal, path);
            }
        }
        let page = match &route.content {
            Content::Fixed(bytes) => Ok(bytes.clone()),
            Content::Page(page) => Arc::clone(page).get().await,
            Content::Query(answering) => match answering.answer(request.uri().query()).await {
                Ok(Ok(page)) => Ok(page),
                Ok(Err(sentence)) => return text(StatusCode::BAD_REQUEST, format!("{sentence}\n")),
                Err(error) => Err(error),
            },
            Content::Setting(level) if is_put => {
                let value = value(request.body_mut()).await;
                let set = value
                    .map_or_else(|| Err("the value is too large\n".to_owned()), |value| level.set(&value));
                return match set {
                    Ok(now) => text(StatusCode::OK, now),
                    Err(problem) => text(StatusCode::BAD_REQUEST, problem),
                };
            }
            Content::Setting(level) => Ok(level.page().into()),
        };
        match page {
            Ok(page) => respond(StatusCode::OK, route.content_type, page),
            Err(error) => {
                tracing::error!(path, %error, "page could not be rendered");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be rendered; see the log\n")
            }
        }
    }
}

/// Body of a PUT, if it is whole and no larger than any value.
async fn value<B>(body: &mut B) -> Option<Bytes>
where
    B: Body<Error: std::error::Error + Send + Sync + 'static> + Unpin,
{
    let body = Limited::new(body, MAX_SETTING);
    body.collect().await.ok().map(http_body_util::Collected::to_bytes)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    respond(status, PLAIN_TEXT, body.into())
}

/// The answer to somebody who may not read.
fn refused(refusal: &Refusal, path: &str) -> Response {
    let (mut response, header) = match refusal {
        Refusal::Unauthenticated => {
            let said = "a bearer token is needed that the Kubernetes API server knows\n";
            (text(StatusCode::UNAUTHORIZED, said), (WWW_AUTHENTICATE, "Bearer"))
        }
        Refusal::Denied(user) => {
            let said =
                format!("{user} may not get {path}; a ClusterRole for this nonResourceURL allows it\n");
            return text(StatusCode::FORBIDDEN, said);
        }
        Refusal::Unavailable => {
            let said = "the Kubernetes API server can't be asked who may read this; see the log\n";
            (text(StatusCode::SERVICE_UNAVAILABLE, said), (RETRY_AFTER, "5"))
        }
    };
    response.headers_mut().insert(header.0, HeaderValue::from_static(header.1));
    response
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Protection of a server. By default: not at all, but for [limits](small).
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// TLS, or plain text.
    pub tls: Option<Arc<MetricsTls>>,
    /// Access check of clients; `None`: everybody may read.
    pub access: Option<Arc<Access>>,
    /// Budget of the connections.
    pub budget: Arc<Budget>,
}

/// An HTTP/1.1 server that serves as long as it is kept.
#[derive(Debug)]
pub struct HttpServer {
    shutdown: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl HttpServer {
    /// Serves `routes` to everybody from now on, on this tokio runtime.
    ///
    /// # Errors
    /// When the socket can't be used by the runtime.
    pub fn start(listener: StdListener, routes: Routes) -> io::Result<Self> {
        Self::start_protected(listener, routes, Protection::default())
    }

    /// The same, so protected.
    ///
    /// # Errors
    /// When the socket can't be used by the runtime.
    pub fn start_protected(
        listener: StdListener,
        routes: Routes,
        protection: Protection,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(listener, ProtectedRoutes::new(routes, protection), shutdown.clone()));
        Ok(Self { shutdown, task: AbortOnDropHandle::new(task) })
    }

    /// Closes the socket and finishes the requests in progress, for at most five seconds.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // The task only fails when the runtime itself is shut down.
        let _ = self.task.await;
    }
}

/// Routes of a server, and how they are protected.
#[derive(Clone)]
struct ProtectedRoutes {
    routes: Routes,
    protection: Protection,
    port: SmallPort,
}

impl ProtectedRoutes {
    fn new(routes: Routes, protection: Protection) -> Self {
        let port = SmallPort::new(&protection.budget);
        Self { routes, protection, port }
    }
}

async fn serve(listener: TcpListener, protected: ProtectedRoutes, shutdown: CancellationToken) {
    let mut open = JoinSet::new();
    tokio::select! {
        () = accept(&listener, &protected, &mut open, &shutdown) => {}
        () = shutdown.cancelled() => {}
    }
    drop(listener);
    let finish = async { while open.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, finish).await.is_err() {
        tracing::debug!(connections = open.len(), "closing HTTP connections that don't end");
        open.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    protected: &ProtectedRoutes,
    open: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) {
    let mut slots = ConnectionSlots::new(small::max_connections(1, &protected.protection.budget));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
        };
        // Nothing is kept of those that have ended since.
        while open.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                let client = Client::default();
                let has_begun = Arc::clone(&client.has_begun);
                let serving =
                    open.spawn(serve_client(stream, peer, client, protected.clone(), shutdown.clone()));
                if let Some(closed) = slots.add(peer.ip(), has_begun, serving) {
                    tracing::debug!(%peer, %closed, "HTTP connection closed for another, as there are too many");
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept HTTP connections, trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A client from the accept of its connection on.
#[derive(Clone, Debug, Default)]
struct Client {
    /// The head of its request has come.
    has_begun: Arc<AtomicBool>,
    /// Cancelled when its request has to make room for others.
    end: CancellationToken,
}

/// Serves a connection until it ends, has to make room or has taken too long.
async fn serve_client(
    stream: TcpStream,
    peer: SocketAddr,
    client: Client,
    protected: ProtectedRoutes,
    shutdown: CancellationToken,
) {
    let mut held = Reservation::new(&protected.protection.budget, Kind::SmallPorts);
    held.set(small::CONNECTION);
    let end = client.end.clone();
    let served = tokio::time::timeout(TOTAL_TIMEOUT, shake_hands(stream, client, protected, shutdown));
    match end.run_until_cancelled(served).await {
        Some(Ok(())) => {}
        Some(Err(_)) => tracing::debug!(%peer, "HTTP connection took too long"),
        None => tracing::debug!(%peer, "HTTP request ended to make room for others"),
    }
}

/// Serves one request, after the handshake of TLS if there is to be one.
async fn shake_hands(
    stream: TcpStream,
    client: Client,
    protected: ProtectedRoutes,
    shutdown: CancellationToken,
) {
    let Some(tls) = &protected.protection.tls else {
        return serve_connection(stream, None, client, protected, shutdown).await;
    };
    let accepting = TlsAcceptor::from(tls.config()).accept(stream);
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(HEAD_TIMEOUT, accepting) => accepted,
        () = shutdown.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates();
            let certificate = chain.and_then(|chain| chain.first()).cloned().map(CertificateDer::into_owned);
            serve_connection(stream, certificate, client, protected, shutdown).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
}

/// Serves one request. Scrapers come every few seconds and reconnect; nobody keeps a
/// place in between.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    certificate: Option<CertificateDer<'static>>,
    client: Client,
    protected: ProtectedRoutes,
    shutdown: CancellationToken,
) {
    // Held until the last byte of the answer is taken. There is one request at most.
    let held = OnceLock::new();
    let service = service_fn(async |request: Request<Incoming>| {
        client.has_begun.store(true, Relaxed);
        held.get_or_init(|| protected.port.begin(REQUEST, client.end.clone()));
        let access = protected.protection.access.as_deref();
        let response = protected.routes.answer(request, access, certificate.as_ref()).await;
        Ok::<_, Infallible>(response)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    async fn ask(method: &str, path: &str) -> Response {
        let routes = Routes::new().with_metrics(|| "up 1\n".to_owned()).with_index();
        let request = Request::builder().method(method).uri(path);
        // Its body never comes.
        let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        routes.answer(request.body(body).unwrap(), None, None).await
    }

    #[tokio::test]
    async fn a_put_is_refused_before_its_body_has_come() {
        assert_eq!(ask("PUT", "/metrics").await.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask("PUT", "/nowhere").await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn paths_are_matched_as_a_whole() {
        for (path, status) in [("/metrics", 200), ("/metrics?x=1", 200), ("/healthz", 200), ("/", 200)] {
            assert_eq!(ask("GET", path).await.status(), status, "{path}");
        }
        for path in ["/metrics/", "/metric", "//metrics", "/healthz/x"] {
            assert_eq!(ask("GET", path).await.status(), 404, "{path}");
        }
    }

    #[tokio::test]
    async fn other_methods_are_told_which_ones_work() {
        for method in ["POST", "DELETE", "PUT", "OPTIONS"] {
            let response = ask(method, "/metrics").await;
            assert_eq!(response.status(), 405, "{method}");
            assert_eq!(response.headers()[ALLOW], "GET, HEAD");
        }
        assert_eq!(ask("HEAD", "/metrics").await.status(), 200);
        assert_eq!(ask("POST", "/nowhere").await.status(), 404);
    }

    #[tokio::test]
    async fn metrics_carry_the_type_that_scrapers_ask_for() {
        assert_eq!(ask("GET", "/metrics").await.headers()[CONTENT_TYPE], PROMETHEUS_TEXT);
    }
}
