//! A collector: one unary gRPC call per export, on a connection that is kept.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::proto::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use crate::scrape::{TlsClient, TlsError, TlsSettings};
use crate::settings::{OtlpEndpoint, OtlpSettings};

const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A response says how many spans were rejected.
const MOST_BYTES: usize = 64 << 10;

/// Longest text of a collector that is passed on.
const MOST_SAID: usize = 200;

/// Error of an export.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("can't connect: {0}")]
    Connect(#[source] io::Error),
    #[error("no TLS: {0}")]
    Tls(#[source] io::Error),
    #[error("the connection broke: {0}")]
    Connection(#[source] hyper::Error),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("the collector responded with HTTP {0}; is this its port for gRPC?")]
    Http(StatusCode),
    #[error("the collector responded with gRPC status {code}: {message}")]
    Grpc { code: u32, message: String },
    #[error("the response can't be read")]
    Malformed,
}

impl ExportError {
    /// Returns `true` if the same export may succeed later, as OTLP has it.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Grpc { code, .. } => matches!(code, 1 | 4 | 8 | 10 | 11 | 14 | 15),
            Self::Http(status) => matches!(status.as_u16(), 429 | 502..=504),
            Self::Malformed => false,
            Self::Connect(_) | Self::Tls(_) | Self::Connection(_) | Self::Timeout(_) => true,
        }
    }
}

#[derive(Debug)]
pub(super) struct Collector {
    endpoint: OtlpEndpoint,
    uri: String,
    headers: HeaderMap,
    tls: Option<TlsClient>,
    timeout: Duration,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _task: AbortOnDropHandle<hyper::Result<()>>,
}

impl Collector {
    /// Reads the certificates; connects to nothing.
    pub(super) fn new(settings: &OtlpSettings) -> Result<Self, TlsError> {
        let OtlpSettings { endpoint, ca_file, client_cert, timeout, .. } = settings;
        let tls = endpoint.tls.then(|| {
            let (ca_cert, client_cert) = (ca_file.clone(), client_cert.clone());
            TlsClient::load_for(&TlsSettings { insecure_skip_verify: false, ca_cert, client_cert }, b"h2")
        });
        let scheme = if endpoint.tls { "https" } else { "http" };
        let host = match &endpoint.host {
            host if host.contains(':') => format!("[{host}]"),
            host => host.clone(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            // They were checked when they were read.
            if let (Ok(name), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::try_from(&value.0)) {
                value.set_sensitive(true);
                headers.append(name, value);
            }
        }
        let ours = [
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", concat!("OTel-OTLP-Exporter-usher/", env!("CARGO_PKG_VERSION"))),
        ];
        for (name, value) in ours {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Ok(Self {
            uri: format!("{scheme}://{host}:{}{METHOD}", endpoint.port),
            endpoint: endpoint.clone(),
            headers,
            tls: tls.transpose()?,
            timeout: *timeout,
            connection: None,
        })
    }

    /// Sends spans. Returns how many of them the collector rejected.
    pub(super) async fn export(&mut self, request: &ExportTraceServiceRequest) -> Result<u64, ExportError> {
        let timeout = self.timeout;
        let exported = tokio::time::timeout(timeout, self.call(framed(request))).await;
        let exported = exported.unwrap_or(Err(ExportError::Timeout(timeout)));
        if exported.as_ref().is_err_and(|error| !matches!(error, ExportError::Grpc { .. })) {
            self.connection = None;
        }
        exported
    }

    async fn call(&mut self, message: Bytes) -> Result<u64, ExportError> {
        let usable = self.connection.take().filter(|connection| !connection.sender.is_closed());
        let connection = match usable {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let sender = &mut self.connection.insert(connection).sender;
        sender.ready().await.map_err(ExportError::Connection)?;
        let mut request = Request::post(&self.uri)
            .body(Full::new(message))
            .map_err(|error| ExportError::Connect(io::Error::other(error)))?;
        *request.headers_mut() = self.headers.clone();
        let response = sender.send_request(request).await.map_err(ExportError::Connection)?;
        if response.status() != StatusCode::OK {
            return Err(ExportError::Http(response.status()));
        }
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MOST_BYTES).collect().await;
        let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => ExportError::Connection(*error),
            Err(_) => ExportError::Malformed,
        })?;
        // Without a message the status is in the headers.
        let trailers = body.trailers().filter(|trailers| trailers.contains_key("grpc-status"));
        check(trailers.unwrap_or(&head.headers))?;
        let message = body.to_bytes();
        let response = message.get(5..).ok_or(ExportError::Malformed)?;
        let response = ExportTraceServiceResponse::decode(response).map_err(|_| ExportError::Malformed)?;
        let rejected = response.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }

    async fn connect(&self) -> Result<Connection, ExportError> {
        let address = (self.endpoint.host.as_str(), self.endpoint.port);
        let stream = TcpStream::connect(address).await.map_err(ExportError::Connect)?;
        let Some(tls) = &self.tls else { return over(stream).await };
        let name = ServerName::try_from(self.endpoint.host.clone())
            .map_err(|error| ExportError::Tls(io::Error::other(error)))?;
        over(tls.connect_to(name, stream).await.map_err(ExportError::Tls)?).await
    }
}

async fn over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, ExportError> {
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(ExportError::Connection)?;
    Ok(Connection { sender, _task: AbortOnDropHandle::new(tokio::spawn(connection)) })
}

/// A message of gRPC: not compressed, its length, itself.
fn framed(request: &ExportTraceServiceRequest) -> Bytes {
    let length = request.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    // Batches are bounded, far below 4 GiB.
    frame.put_u32(length as u32);
    // There is room.
    let _ = request.encode(&mut frame);
    frame.freeze()
}

fn check(status: &HeaderMap) -> Result<(), ExportError> {
    let text = |name| status.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status").and_then(|code| code.parse().ok()).ok_or(ExportError::Malformed)?;
    if code == 0 {
        return Ok(());
    }
    let message = text("grpc-message").unwrap_or_default().chars().take(MOST_SAID).collect();
    Err(ExportError::Grpc { code, message })
}
