//! A small HTTP server for metrics and administration: fixed paths, GET only.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Time to send the headers of a request, and to send none at all on a connection that
/// is kept open. Scrapers reconnect.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

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

/// An answer, whole.
pub type Response = http::Response<Full<Bytes>>;

/// Answers the requests of one path. Runs on the background runtime, so it may compute
/// but not wait.
pub type Handler = Arc<dyn Fn(&Parts) -> Response + Send + Sync>;

/// The paths of a server, each with what answers it.
#[derive(Clone, Default)]
pub struct Routes {
    routes: Vec<(&'static str, Handler)>,
}

impl Routes {
    /// No path at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more path. A path is matched as a whole; the first of two equal ones wins.
    #[must_use]
    pub fn with(mut self, path: &'static str, handler: Handler) -> Self {
        self.routes.push((path, handler));
        self
    }

    /// With `/metrics`, rendered anew for every request in the Prometheus text format.
    #[must_use]
    pub fn with_metrics<B: Into<Bytes>>(self, render: impl Fn() -> B + Send + Sync + 'static) -> Self {
        self.with("/metrics", Arc::new(move |_| respond(StatusCode::OK, PROMETHEUS_TEXT, render())))
    }

    /// With `/`, which lists the other paths, and `/healthz`, which says that the process
    /// answers.
    #[must_use]
    pub fn with_index(self) -> Self {
        let routes = self.with("/healthz", Arc::new(|_| text(StatusCode::OK, "ok\n")));
        let index: String = routes.routes.iter().map(|(path, _)| format!("{path}\n")).collect();
        routes.with("/", Arc::new(move |_| text(StatusCode::OK, index.clone())))
    }

    /// The answer to a request.
    fn answer(&self, request: &Parts) -> Response {
        let path = request.uri.path();
        let Some((_, handler)) = self.routes.iter().find(|(known, _)| *known == path) else {
            return text(StatusCode::NOT_FOUND, "no such path\n");
        };
        if request.method != Method::GET && request.method != Method::HEAD {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        handler(request)
    }
}

/// An answer in plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    respond(status, "text/plain; charset=utf-8", body)
}

/// An answer of any type.
pub fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
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
    let open = TaskTracker::new();
    tokio::select! {
        () = accept(&listener, &routes, &open, &shutdown) => {}
        () = shutdown.cancelled() => {}
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, open.wait()).await.is_err() {
        tracing::debug!(connections = open.len(), "HTTP connections left open");
    }
}

async fn accept(listener: &TcpListener, routes: &Routes, open: &TaskTracker, shutdown: &CancellationToken) {
    loop {
        match listener.accept().await {
            // Closes the connection: whoever holds the others open is answered first.
            Ok((_, peer)) if open.len() >= MAX_CONNECTIONS => {
                tracing::debug!(%peer, "HTTP connection refused");
            }
            Ok((stream, _)) => {
                open.spawn(serve_connection(stream, routes.clone(), shutdown.clone()));
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept HTTP connections, trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, routes: Routes, shutdown: CancellationToken) {
    let service = service_fn(|request: Request<Incoming>| {
        let (parts, _body) = request.into_parts();
        let response = routes.answer(&parts);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_HEAD)
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

    fn ask(method: &str, path: &str) -> Response {
        let routes = Routes::new().with_metrics(|| "up 1\n".to_owned()).with_index();
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        routes.answer(&request.into_parts().0)
    }

    #[test]
    fn paths_are_matched_as_a_whole() {
        for (path, status) in [("/metrics", 200), ("/metrics?x=1", 200), ("/healthz", 200), ("/", 200)] {
            assert_eq!(ask("GET", path).status(), status, "{path}");
        }
        for path in ["/metrics/", "/metric", "//metrics", "/healthz/x"] {
            assert_eq!(ask("GET", path).status(), 404, "{path}");
        }
    }

    #[test]
    fn other_methods_are_told_which_ones_work() {
        for method in ["POST", "DELETE", "PUT", "OPTIONS"] {
            let response = ask(method, "/metrics");
            assert_eq!(response.status(), 405, "{method}");
            assert_eq!(response.headers()[ALLOW], "GET, HEAD");
        }
        assert_eq!(ask("HEAD", "/metrics").status(), 200);
        assert_eq!(ask("POST", "/nowhere").status(), 404);
    }

    #[test]
    fn metrics_carry_the_type_that_scrapers_ask_for() {
        assert_eq!(ask("GET", "/metrics").headers()[CONTENT_TYPE], PROMETHEUS_TEXT);
    }
}
