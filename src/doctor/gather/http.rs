//! One HTTP request and its whole response, within a time and a size.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use usher_wire::client::connector;

/// A server, with what is said to it every time.
#[derive(Clone)]
pub struct HttpClient {
    scheme: Scheme,
    host: String,
    port: u16,
    /// Before each path; no slash at its end.
    prefix: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    limit: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// A response.
pub struct Response {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not its headers, which may be credentials.
        f.debug_struct("HttpClient").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl HttpClient {
    /// Reads `http://HOST[:PORT][/PREFIX]` or the same with `https`.
    ///
    /// # Errors
    /// A message about the mistake, without the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("no URL: {error}; write http://HOST:PORT"))?;
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::Http,
            Some("https") => Scheme::Https,
            _ => return Err("no http:// or https:// at its start; write http://HOST:PORT".to_owned()),
        };
        let authority = uri.authority().ok_or("no host in it; write http://HOST:PORT")?;
        if authority.as_str().contains('@') {
            return Err("a password does not belong in a URL; give it as a header".to_owned());
        }
        if uri.query().is_some() {
            return Err("a query in it; leave it out".to_owned());
        }
        let usual = if scheme == Scheme::Https { 443 } else { 80 };
        Ok(Self {
            scheme,
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(usual),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            headers: Vec::new(),
            limit: Duration::from_secs(5),
        })
    }

    /// Reads a URL as [`parse`](Self::parse) does, or `HOST:PORT`, which speaks plain HTTP.
    ///
    /// # Errors
    /// Same as [`parse`](Self::parse).
    pub fn parse_server(text: &str) -> Result<Self, String> {
        match text.contains("://") {
            true => Self::parse(text),
            false => Self::parse(&format!("http://{text}")),
        }
    }

    /// A port of this machine.
    pub(super) fn local(port: u16) -> Self {
        let (host, prefix) = ("127.0.0.1".to_owned(), String::new());
        Self { scheme: Scheme::Http, host, port, prefix, headers: Vec::new(), limit: Duration::from_secs(5) }
    }

    /// Another port of the same host, in plain HTTP.
    pub(super) fn with_port(&self, port: u16) -> Self {
        Self { scheme: Scheme::Http, port, prefix: String::new(), headers: Vec::new(), ..self.clone() }
    }

    /// With time for a response.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// With headers of each request.
    #[must_use]
    pub fn with_headers(mut self, headers: &[(HeaderName, HeaderValue)]) -> Self {
        self.headers = headers.to_vec();
        self
    }

    /// Port of the server.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns `true` if it is this machine.
    pub fn is_local(&self) -> bool {
        is_local(&self.host)
    }

    /// URL without a path.
    pub fn url(&self) -> String {
        let scheme = if self.scheme == Scheme::Https { "https" } else { "http" };
        format!("{scheme}://{}:{}{}", self.host, self.port, self.prefix)
    }

    /// The body of a page.
    ///
    /// # Errors
    /// A message unless the page arrives with status 200.
    pub(super) async fn page(&self, path: &str, most: usize) -> Result<Bytes, String> {
        let response = self.send(Method::GET, path, Bytes::new(), most).await?;
        match response.status {
            200 => Ok(response.body),
            status => Err(format!("{}{path} responds with {status}", self.url())),
        }
    }

    /// A page of JSON.
    ///
    /// # Errors
    /// A message if no page arrives, or it isn't JSON.
    pub async fn json(&self, path: &str, most: usize) -> Result<serde_json::Value, String> {
        let body = self.page(path, most).await?;
        serde_json::from_slice(&body).map_err(|_| format!("{}{path} is no JSON", self.url()))
    }

    /// Sends a request and reads its response to the end, which has at most `most` bytes.
    ///
    /// # Errors
    /// One line: the URL, and the failure.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<Response, String> {
        let exchange = self.exchange(method, path, body, most);
        let response = timeout(self.limit, exchange).await;
        let response = response.unwrap_or_else(|_| Err(format!("no whole response within {:?}", self.limit)));
        response.map_err(|reason| format!("{}{path}: {reason}", self.url()))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        most: usize,
    ) -> Result<Response, String> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await.map_err(|error| error.to_string())?;
        let request = self.request(method, path, body)?;
        if self.scheme == Scheme::Http {
            return over(stream, request, most).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let tls = connector(&[b"http/1.1"]).map_err(|error| error.to_string())?;
        over(tls.connect(name, stream).await.map_err(|error| format!("no TLS: {error}"))?, request, most)
            .await
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.prefix));
        let usual = if self.scheme == Scheme::Https { 443 } else { 80 };
        let host =
            if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) };
        request = request.header(http::header::HOST, host);
        request =
            request.header(http::header::USER_AGENT, concat!("usher-doctor/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let mut request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        for (name, value) in &self.headers {
            // What is given replaces what is said by itself, the host included.
            request.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }
}

async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    most: usize,
) -> Result<Response, String> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Ends with the connection, which is dropped when the response was read.
    let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, most).collect().await;
    let body = body.map_err(|_| format!("the response broke off or has more than {most} bytes"))?;
    drop(connection);
    Ok(Response { status: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes() })
}

/// Returns `true` if a host is this machine.
pub(super) fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let table = [
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081", true),
            ("http://gw/llama/", "http://gw:80/llama", false),
            ("https://[::1]", "https://[::1]:443", true),
        ];
        for (text, url, local) in table {
            let client = HttpClient::parse(text).unwrap();
            assert_eq!((client.url(), client.is_local()), (url.to_owned(), local), "{text}");
        }
    }

    #[test]
    fn invalid_address_is_refused_without_being_repeated() {
        for text in ["", "gateway:80", "ftp://x", "http://user:secret@gw", "http://gw/?key=secret", "http://"]
        {
            let error = HttpClient::parse(text).unwrap_err();
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }
}
