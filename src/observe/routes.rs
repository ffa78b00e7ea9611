//! Paths of the HTTP servers for metrics and administration, and what answers them.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, RETRY_AFTER,
    VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Body, Frame};
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Refusal};
use super::browsers::{folder, is_foreign, is_local, wants_html};
use super::feed::Feed;
use super::log_level::LogLevel;
use super::page::Page;
use super::query::Renderer;
use crate::memory::small::COMPLETE;

/// Largest value of a setting, in bytes.
const MAX_SETTING: usize = 256;

/// The content type of the Prometheus text format.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

const HTML: &str = "text/html; charset=utf-8";

const EVENT_STREAM: &str = "text/event-stream";

/// Body of a response: whole, or frames as they come.
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

pub(super) type Response = http::Response<ResponseBody>;

/// Value of `content-security-policy` on the page: nothing but its own files.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Value of the same header on everything else.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Header that keeps pages of other sites from loading a response; `http` has no name for it.
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Header that keeps windows of other sites from holding the page's.
const CROSS_ORIGIN_OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Header that tells nginx and others not to hold a response back.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Query for one event instead of a stream, where something on the way holds streams back.
const ONCE: &str = "once";

/// The paths of a server, each with what answers it.
#[derive(Clone, Default)]
pub struct Routes {
    routes: Vec<Route>,
    /// Requests by names that others may give this machine are refused.
    is_local: bool,
}

#[derive(Clone)]
struct Route {
    path: &'static str,
    content_type: &'static str,
    content: Content,
}

/// A file of the page for browsers.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Path of the asset.
    pub path: &'static str,
    /// Content type of the asset.
    pub content_type: &'static str,
    /// Content of the asset.
    pub text: &'static str,
}

#[derive(Clone)]
enum Content {
    /// Always the same.
    Fixed(Bytes),
    /// A file of the page for browsers.
    Asset(&'static str),
    /// The page for browsers, and text for other clients.
    Index { page: &'static str, text: Bytes },
    /// Events, as long as the client is connected.
    Events(Arc<Feed>),
    /// Rendered for those who ask.
    Page(Arc<Page>),
    /// Rendered for one who asks, by the query.
    Query(Renderer),
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

    /// With a path whose response depends on the query: `render` gets it without the question mark, still encoded,
    /// and refuses one with a sentence, for 400.
    #[must_use]
    pub fn with_query(
        self,
        path: &'static str,
        content_type: &'static str,
        render: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        self.with(path, content_type, Content::Query(Renderer::new(render)))
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
    /// responds.
    #[must_use]
    pub fn with_index(self) -> Self {
        let routes = self.with("/healthz", PLAIN_TEXT, Content::Fixed("ok\n".into()));
        let index: String = routes.routes.iter().map(|route| format!("{}\n", route.path)).collect();
        routes.with("/", PLAIN_TEXT, Content::Fixed(index.into()))
    }

    /// For a port of loopback: refuses names that a stranger's DNS may point here, so that no page from elsewhere
    /// reads this one through the browser of somebody who may.
    #[must_use]
    pub fn only_by_local_names(mut self) -> Self {
        self.is_local = true;
        self
    }

    /// With the page for browsers: `index` at `/`, in front of the text for other clients, with its other files
    /// and the events that it shows. The text doesn't list these.
    #[must_use]
    pub fn with_page_for_browsers(
        mut self,
        index: &Asset,
        others: &[Asset],
        (events, feed): (&'static str, Arc<Feed>),
    ) -> Self {
        for route in self.routes.iter_mut().filter(|route| route.path == index.path) {
            if let Content::Fixed(text) = &route.content {
                route.content = Content::Index { page: index.text, text: text.clone() };
            }
        }
        let with_asset = |routes: Self, asset: &Asset| {
            routes.with(asset.path, asset.content_type, Content::Asset(asset.text))
        };
        let routes = others.iter().fold(self, with_asset);
        routes.with(events, EVENT_STREAM, Content::Events(feed))
    }

    fn with(mut self, path: &'static str, content_type: &'static str, content: Content) -> Self {
        self.routes.push(Route { path, content_type, content });
        self
    }

    /// The response to a request, which no other site may embed or show.
    pub(super) async fn respond<B: Body<Error: std::error::Error + Send + Sync + 'static> + Unpin>(
        &self,
        request: Request<B>,
        caller: Caller<'_>,
    ) -> Response {
        let mut response = self.respond_by_path(request, caller).await;
        let headers = response.headers_mut();
        for (name, value) in [
            // Names that clients chose are on some of them.
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
        response
    }

    async fn respond_by_path<B: Body<Error: std::error::Error + Send + Sync + 'static> + Unpin>(
        &self,
        mut request: Request<B>,
        caller: Caller<'_>,
    ) -> Response {
        if self.is_local && !is_local(request.headers()) {
            let said = "this port responds to an IP address, localhost or a name without a dot only; --admin-address opens it to others\n";
            return text(StatusCode::FORBIDDEN, said);
        }
        if self.is_local && is_foreign(request.headers()) {
            return text(StatusCode::FORBIDDEN, "pages of other sites are not answered\n");
        }
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
        if let Some(access) = caller.access {
            let (headers, verb) = (request.headers(), request.method().as_str().to_ascii_lowercase());
            let certificate = caller.certificate.map(AsRef::as_ref);
            if let Err(refusal) = access.check(headers, certificate, &verb, path).await {
                return refused(&refusal, path);
            }
        }
        let page = match &route.content {
            Content::Fixed(bytes) => Ok(bytes.clone()),
            Content::Asset(text) => return asset(route.content_type, text),
            Content::Index { page, text } => {
                let mut response = if !wants_html(request.headers()) {
                    respond(StatusCode::OK, route.content_type, text.clone())
                } else if let Some(folder) = folder(request.headers()) {
                    moved(folder)
                } else {
                    asset(HTML, page)
                };
                response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
                return response;
            }
            Content::Events(feed) => {
                let most = if request.uri().query() == Some(ONCE) { 1 } else { usize::MAX };
                return events(feed, most, request.method(), caller.shutdown);
            }
            Content::Page(page) => Arc::clone(page).get().await,
            Content::Query(renderer) => match renderer.render(request.uri().query()).await {
                Ok(Ok(page)) => Ok(page),
                Ok(Err(sentence)) => return text(StatusCode::BAD_REQUEST, format!("{sentence}\n")),
                Err(error) => Err(error),
            },
            Content::Setting(level) if is_put => {
                let Ok(value) = tokio::time::timeout(COMPLETE, value(request.body_mut())).await else {
                    return text(StatusCode::REQUEST_TIMEOUT, "the value did not come in time\n");
                };
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

/// Caller of the admin port or the metrics port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    /// Access check; `None`: no check.
    pub(super) access: Option<&'a Access>,
    /// Certificate that was shown.
    pub(super) certificate: Option<&'a CertificateDer<'static>>,
    /// Cancelled when the server stops.
    pub(super) shutdown: &'a CancellationToken,
}

/// A file of the page, which may load nothing from elsewhere.
fn asset(content_type: &'static str, text: &'static str) -> Response {
    let mut response = respond(StatusCode::OK, content_type, Bytes::from_static(text.as_bytes()));
    let headers = response.headers_mut();
    // Another version may serve the next request.
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (CROSS_ORIGIN_OPENER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The response to a browser that is to ask elsewhere.
fn moved(location: HeaderValue) -> Response {
    let mut response = text(StatusCode::TEMPORARY_REDIRECT, "");
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Responds with at most `most` events, until the listener leaves, its time is up or the server stops.
fn events(feed: &Arc<Feed>, most: usize, method: &Method, shutdown: &CancellationToken) -> Response {
    let body = if *method == Method::HEAD {
        Full::default().boxed_unsync()
    } else {
        let Some(frames) = feed.listen(most) else {
            let said = "too many listen to these events; try again later\n";
            let mut response = text(StatusCode::SERVICE_UNAVAILABLE, said);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
            return response;
        };
        let frames = frames.map(|frame| Ok(Frame::data(frame)));
        StreamBody::new(frames.take_until(shutdown.clone().cancelled_owned())).boxed_unsync()
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, EVENT_STREAM),
        // A proxy that compresses holds back what doesn't fill its buffer.
        (CACHE_CONTROL, "no-store, no-transform"),
        (X_ACCEL_BUFFERING, "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
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

/// The response to an unauthorized client.
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
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn ask(method: &str, path: &str) -> Response {
        let routes = Routes::new().with_metrics(|| "up 1\n".to_owned()).with_index();
        let request = Request::builder().method(method).uri(path);
        // Its body never comes.
        let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let caller = Caller { access: None, certificate: None, shutdown: &CancellationToken::new() };
        routes.respond(request.body(body).unwrap(), caller).await
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
    async fn other_methods_get_405_with_allow() {
        for method in ["POST", "DELETE", "PUT", "OPTIONS"] {
            let response = ask(method, "/metrics").await;
            assert_eq!(response.status(), 405, "{method}");
            assert_eq!(response.headers()[ALLOW], "GET, HEAD");
        }
        assert_eq!(ask("HEAD", "/metrics").await.status(), 200);
        assert_eq!(ask("POST", "/nowhere").await.status(), 404);
    }

    #[tokio::test]
    async fn metrics_content_type_follows_the_accept_header() {
        assert_eq!(ask("GET", "/metrics").await.headers()[CONTENT_TYPE], PROMETHEUS_TEXT);
    }
}
