//! A small HTTP server for metrics and administration: fixed paths, GET only.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::page::Page;

/// Time to send the head of a request, from the connection on.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a connection as a whole, until the last byte of the answer is taken. Slow
/// readers hold a page and a place for no longer.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections of one server. Metrics have a few readers, administration has people.
const MAX_CONNECTIONS: usize = 64;

/// Time for the requests in progress when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed accept, such as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;

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

    /// With `/metrics`, a page in the Prometheus text format.
    #[must_use]
    pub fn with_metrics<B: Into<Bytes>>(self, render: impl Fn() -> B + Send + Sync + 'static) -> Self {
        self.with_page("/metrics", PROMETHEUS_TEXT, render)
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

    /// The answer to a request.
    async fn answer<B>(&self, request: &Request<B>) -> Response {
        let path = request.uri().path();
        let Some(route) = self.routes.iter().find(|route| route.path == path) else {
            return text(StatusCode::NOT_FOUND, "no such path\n");
        };
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let page = match &route.content {
            Content::Fixed(bytes) => Ok(bytes.clone()),
            Content::Page(page) => Arc::clone(page).get().await,
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

fn text(status: StatusCode, body: &'static str) -> Response {
    respond(status, PLAIN_TEXT, Bytes::from_static(body.as_bytes()))
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An HTTP/1.1 server that serves as long as it is kept.
#[derive(Debug)]
pub struct HttpServer {
    shutdown: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl HttpServer {
    /// Serves `routes` from now on, on this tokio runtime.
    ///
    /// # Errors
    /// When the socket can't be used by the runtime.
    pub fn start(listener: StdListener, routes: Routes) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(listener, routes, shutdown.clone()));
        Ok(Self { shutdown, task: AbortOnDropHandle::new(task) })
    }

    /// Closes the socket and finishes the requests in progress, for at most five seconds.
    pub async fn stop(self) {
        self.shutdown.cancel();
        // The task only fails when the runtime itself is shut down.
        let _ = self.task.await;
    }
}

async fn serve(listener: TcpListener, routes: Routes, shutdown: CancellationToken) {
    let mut open = JoinSet::new();
    tokio::select! {
        () = accept(&listener, &routes, &mut open, &shutdown) => {}
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
    routes: &Routes,
    open: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
        };
        // Those that have ended since count no longer.
        while open.try_join_next().is_some() {}
        match accepted {
            // Closes the connection: whoever holds the others open is answered first.
            Ok((_, peer)) if open.len() >= MAX_CONNECTIONS => {
                tracing::debug!(%peer, "HTTP connection refused");
            }
            Ok((stream, peer)) => {
                let served = serve_connection(stream, routes.clone(), shutdown.clone());
                open.spawn(async move {
                    if tokio::time::timeout(TOTAL_TIMEOUT, served).await.is_err() {
                        tracing::debug!(%peer, "HTTP connection took too long");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept HTTP connections, trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one request. Scrapers come every few seconds and reconnect; nobody keeps a
/// place in between.
async fn serve_connection(stream: TcpStream, routes: Routes, shutdown: CancellationToken) {
    let service = service_fn(async |request: Request<Incoming>| {
        let response = routes.answer(&request).await;
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
    use super::*;

    async fn ask(method: &str, path: &str) -> Response {
        let routes = Routes::new().with_metrics(|| "up 1\n".to_owned()).with_index();
        routes.answer(&Request::builder().method(method).uri(path).body(()).unwrap()).await
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
