//! A server on free ports of loopback, clients for it, and a stand-in for the ext_proc
//! service.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use futures_util::{Stream, StreamExt};
use http::Uri;
use hyper_util::rt::TokioIo;
use pb::external_processor_client::ExternalProcessorClient;
use pb::external_processor_server::{ExternalProcessor, ExternalProcessorServer};
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use usher::extproc::health::HealthState;
use usher::extproc::server::{Ended, Server, ServerOptions};
use usher::extproc::stop::{StopSender, StopSignals};
use usher::settings::TlsSettings;

use crate::support::listener;

/// Answers every message with one of the same kind, and says in a header which thread
/// serves the stream.
#[derive(Clone, Copy)]
pub(crate) struct Echo;

pub(crate) type EchoServer = ExternalProcessorServer<Echo>;

pub(crate) fn echo() -> EchoServer {
    ExternalProcessorServer::new(Echo)
}

#[tonic::async_trait]
impl ExternalProcessor for Echo {
    type ProcessStream = Pin<Box<dyn Stream<Item = Result<pb::ProcessingResponse, Status>> + Send>>;

    async fn process(
        &self,
        request: Request<Streaming<pb::ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let replies = request.into_inner().map(|message| message.map(|_| pb::ProcessingResponse::default()));
        let mut response: Response<Self::ProcessStream> = Response::new(Box::pin(replies));
        let thread = std::thread::current().name().unwrap_or_default().parse().unwrap();
        response.metadata_mut().insert("thread", thread);
        Ok(response)
    }
}

/// One open ext_proc call.
pub(crate) struct Call {
    requests: mpsc::Sender<pb::ProcessingRequest>,
    replies: Streaming<pb::ProcessingResponse>,
    pub(crate) thread: String,
}

impl Call {
    pub(crate) async fn open(channel: &Channel) -> Self {
        let (requests, receiver) = mpsc::channel(1);
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|request| (request, receiver))
        });
        let response = ExternalProcessorClient::new(channel.clone()).process(stream).await.unwrap();
        let thread = response.metadata().get("thread").unwrap().to_str().unwrap().to_owned();
        Self { requests, replies: response.into_inner(), thread }
    }

    /// Sends one message and waits for its response.
    pub(crate) async fn exchange(&mut self) -> Result<(), Status> {
        self.requests.send(pb::ProcessingRequest::default()).await.expect("call has ended");
        self.replies.message().await?.ok_or_else(|| Status::cancelled("no response")).map(drop)
    }

    /// Ends our side and waits for the end of the other.
    pub(crate) async fn finish(mut self) -> Result<(), Status> {
        drop(self.requests);
        assert!(self.replies.message().await?.is_none());
        Ok(())
    }
}

/// A server that runs, its addresses, and the means to stop it.
pub(crate) struct Running {
    pub(crate) extproc: SocketAddr,
    pub health_port: SocketAddr,
    pub(crate) health: Arc<HealthState>,
    pub(crate) stopper: StopSender,
    pub(crate) ended: JoinHandle<Ended>,
}

impl Running {
    pub(crate) fn start(tls: Option<TlsSettings>, drain_timeout: Duration) -> Self {
        let (extproc, health_port) = (listener(), listener());
        let addresses = (extproc.local_addr().unwrap(), health_port.local_addr().unwrap());
        let health = Arc::new(HealthState::new(false));
        health.set_synced(true);
        let options = ServerOptions { threads: 2, tls, drain_timeout, budget: Default::default() };
        let server = Server::start(extproc, health_port, echo(), health.clone(), options).unwrap();
        let (stopper, mut stops) = StopSignals::channel();
        let ended = tokio::spawn(async move { server.run(&mut stops).await });
        Self { extproc: addresses.0, health_port: addresses.1, health, stopper, ended }
    }

    pub(crate) fn plain() -> Self {
        Self::start(None, Duration::ZERO)
    }
}

/// An HTTP/2 connection in plain text, for gRPC.
pub(crate) async fn plain(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// An HTTP/2 connection over TLS, for gRPC. Takes any certificate, as gateways do.
pub(crate) async fn secure(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect_with_connector(TlsDialer(address)).await.unwrap()
}

/// Connects over TLS, whatever address is asked for.
#[derive(Clone)]
struct TlsDialer(SocketAddr);

impl tonic::codegen::Service<Uri> for TlsDialer {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let address = self.0;
        Box::pin(async move {
            handshake(address, rustls::ALL_VERSIONS).await.map(|(stream, _)| TokioIo::new(stream))
        })
    }
}

/// A TLS handshake offering `versions`; also gives the certificate that was shown.
pub(crate) async fn handshake(
    address: SocketAddr,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<(TlsStream<TcpStream>, CertificateDer<'static>)> {
    let seen = Arc::new(AnyCertificate::default());
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(seen.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::from(address.ip());
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let certificate = seen.last.lock().unwrap().take().unwrap();
    Ok((stream, certificate))
}

/// Takes every certificate and remembers it.
#[derive(Debug, Default)]
struct AnyCertificate {
    last: Mutex<Option<CertificateDer<'static>>>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.last.lock().unwrap() = Some(end_entity.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
