//! Prometheus server.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::response::{ResponseError, complaint, number};
use crate::cluster::encode;
use crate::scrape::{TlsClient, TlsError, TlsSettings};
use crate::settings::PrometheusSettings;

/// Timeout of a response. Slower queries are too expensive for every few seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest response: it is one number, and a larger one has thousands of series.
const MOST_BYTES: usize = 1 << 20;

/// Largest token.
const MOST_TOKEN_BYTES: u64 = 64 << 10;

/// Error of a query without a response. Contains neither the query nor the credentials.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The token can't be read.
    #[error("the token can't be used: {0}; check --prometheus-token-file")]
    Token(String),
    /// Connection failed.
    #[error("can't connect ({0}); check --prometheus-address")]
    Connect(#[source] io::Error),
    /// TLS handshake failed.
    #[error("no TLS ({0}); check --prometheus-ca-file and the server's certificate")]
    Tls(#[source] io::Error),
    /// The connection broke, or the response isn't HTTP.
    #[error("the connection broke: {0}")]
    Connection(#[source] hyper::Error),
    /// Timeout.
    #[error("no whole response within {TIMEOUT:?}")]
    Timeout,
    /// Error status.
    #[error("the server responded with {status}{}", said(.complaint))]
    Status {
        /// With which status.
        status: StatusCode,
        /// Error of the Prometheus API in the response, if any.
        complaint: Option<String>,
    },
    /// Too large for one number.
    #[error("the response has more than {MOST_BYTES} bytes; sum() or max() makes one number of many")]
    TooLarge,
    /// Response without a single number.
    #[error(transparent)]
    Response(#[from] ResponseError),
}

fn said(complaint: &Option<String>) -> String {
    complaint.as_ref().map_or_else(String::new, |complaint| format!(": {complaint}"))
}

impl QueryError {
    /// Kind of the error, for metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Connection(_) => "connection",
            Self::Timeout => "timeout",
            Self::Status { .. } => "status",
            Self::TooLarge => "too_large",
            Self::Response(ResponseError::Malformed(_)) => "malformed",
            Self::Response(ResponseError::Refused(_)) => "refused",
            Self::Response(ResponseError::NoSample) => "no_sample",
            Self::Response(ResponseError::Several(_)) => "several",
            Self::Response(ResponseError::NoNumber(_) | ResponseError::NotFinite(_)) => "no_number",
        }
    }

    /// Returns `true` if the server responded as it should, so no backoff is needed.
    pub(super) fn is_response(&self) -> bool {
        use ResponseError::{NoNumber, NoSample, NotFinite, Several};
        matches!(self, Self::Response(NoSample | Several(_) | NoNumber(_) | NotFinite(_)))
    }
}

/// A server with the Prometheus query API.
#[derive(Debug)]
pub struct Server {
    settings: PrometheusSettings,
    tls: Option<TlsClient>,
    /// Value of the `Host` header.
    host: String,
}

impl Server {
    /// Reads the certificates. Nothing is sent yet.
    ///
    /// # Errors
    /// `TlsError` if a file can't be used.
    pub fn new(settings: PrometheusSettings) -> Result<Self, TlsError> {
        let tls = settings.tls.then(|| {
            let ca_cert = settings.ca_file.clone();
            TlsClient::load(&TlsSettings { insecure_skip_verify: false, ca_cert, client_cert: None })
        });
        let host = match &settings.host {
            host if host.contains(':') => format!("[{host}]:{}", settings.port),
            host => format!("{host}:{}", settings.port),
        };
        Ok(Self { tls: tls.transpose()?, settings, host })
    }

    /// Returns `true` if a token would be sent without encryption.
    pub fn shows_token_to_all(&self) -> bool {
        self.settings.token_file.is_some() && self.tls.is_none()
    }

    /// Runs an instant query.
    ///
    /// # Errors
    /// `QueryError` if the server can't be reached, times out, or returns anything but one number.
    pub async fn ask(&self, query: &str) -> Result<f64, QueryError> {
        timeout(TIMEOUT, self.exchange(query)).await.unwrap_or(Err(QueryError::Timeout))
    }

    async fn exchange(&self, query: &str) -> Result<f64, QueryError> {
        let request = self.request(query).await?;
        let address = (self.settings.host.as_str(), self.settings.port);
        let stream = TcpStream::connect(address).await.map_err(QueryError::Connect)?;
        let (status, body) = match &self.tls {
            None => over(stream, request).await?,
            Some(tls) => {
                let name = ServerName::try_from(self.settings.host.clone())
                    .map_err(|error| QueryError::Tls(io::Error::other(error)))?;
                over(tls.connect_to(name, stream).await.map_err(QueryError::Tls)?, request).await?
            }
        };
        if status != StatusCode::OK {
            return Err(QueryError::Status { status, complaint: complaint(&body) });
        }
        Ok(number(&body)?)
    }

    async fn request(&self, query: &str) -> Result<Request<Empty<Bytes>>, QueryError> {
        let mut target = format!("{}/api/v1/query?query=", self.settings.prefix);
        encode(query, &mut target);
        let request = Request::get(target)
            .header(HOST, &self.host)
            .header(USER_AGENT, concat!("usher/", env!("CARGO_PKG_VERSION")));
        let request = match &self.settings.token_file {
            None => request,
            Some(file) => request.header(AUTHORIZATION, bearer(file).await.map_err(QueryError::Token)?),
        };
        // A prefix that is part of a URL, and bytes that are escaped: there is nothing to go wrong.
        request.body(Empty::new()).map_err(|error| QueryError::Connect(io::Error::other(error)))
    }
}

/// `Authorization` header with the token of a file.
async fn bearer(file: &Path) -> Result<HeaderValue, String> {
    let name = file.display();
    let said = |error: io::Error| format!("{name}: {error}");
    let length = tokio::fs::metadata(file).await.map_err(said)?.len();
    if length > MOST_TOKEN_BYTES {
        return Err(format!("{name}: {length} bytes are no token"));
    }
    let token = tokio::fs::read_to_string(file).await.map_err(said)?;
    let token = token.trim();
    if token.is_empty() {
        return Err(format!("{name}: it is empty"));
    }
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| format!("{name}: it has characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<(StatusCode, Bytes), QueryError> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(QueryError::Connection)?;
    // Ends with the connection, which is dropped when the response was read.
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(QueryError::Connection)?;
    let status = response.status();
    let body =
        Limited::new(response.into_body(), MOST_BYTES).collect().await.map_err(|error| match error
            .downcast::<hyper::Error>(
        ) {
            Ok(error) => QueryError::Connection(*error),
            Err(error) if error.is::<LengthLimitError>() => QueryError::TooLarge,
            Err(error) => QueryError::Connect(io::Error::other(error)),
        })?;
    Ok((status, body.to_bytes()))
}
