//! An ext_proc server that does what a test wants, made of Envoy's own definitions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Kind;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody, ImmediateResponse,
    ProcessingRequest, ProcessingResponse, StreamedBodyResponse, body_mutation,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use futures_util::StreamExt;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::support::{PATIENCE, listener};

/// Fault of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// A byte of the request's body is lost.
    LosesRequestByte,
    /// A byte of the response is lost.
    LosesResponseByte,
    /// No endpoint is named.
    NoDestination,
    /// The exchange ends with this status when the request's headers come.
    Ends(Code),
    /// Ends well when the request's headers come.
    EndsEarly,
    /// This status, and a text.
    Refuses(i32),
    /// After so many requests there are no replies.
    Hangs(usize),
}

/// A running server. Ends with all its connections when dropped.
pub(crate) struct Fake {
    runtime: Option<Runtime>,
    seen: UnboundedReceiver<ProcessingRequest>,
    /// Ends the listening, which ends the task.
    listening: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    pub(crate) address: SocketAddr,
}

impl Fake {
    pub(crate) fn start(fault: Fault) -> Self {
        let listener = listener();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = mpsc::unbounded_channel();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(async move {
            let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            let incoming = incoming.take_until(stopped);
            let service = Service { fault, seen: sender, begun: AtomicUsize::new(0) };
            let service = ExternalProcessorServer::new(service);
            Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        Self { runtime: Some(runtime), seen, listening: Some((stop, task)), address }
    }

    /// Ends at once: connections are refused, and after that the open ones break.
    pub(crate) async fn kill(mut self) {
        let (stop, task) = self.listening.take().unwrap();
        stop.send(()).unwrap();
        task.await.unwrap();
    }

    /// The next message that any request sent.
    pub(crate) async fn seen(&mut self) -> ProcessingRequest {
        tokio::time::timeout(PATIENCE, self.seen.recv()).await.unwrap().unwrap()
    }

    /// All messages so far.
    pub(crate) fn all_seen(&mut self) -> Vec<ProcessingRequest> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }

    /// Waits until so many requests have come.
    pub(crate) async fn requests(&mut self, mut count: usize) {
        while count > 0 {
            count -= usize::from(matches!(self.seen().await.request, Some(Kind::RequestHeaders(_))));
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Service {
    fault: Fault,
    seen: UnboundedSender<ProcessingRequest>,
    /// Requests so far.
    begun: AtomicUsize,
}

#[tonic::async_trait]
impl ExternalProcessor for Service {
    type ProcessStream = UnboundedReceiverStream<Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let (sender, replies) = mpsc::unbounded_channel();
        let (fault, seen, mut messages) = (self.fault, self.seen.clone(), request.into_inner());
        let Some(first) = messages.message().await? else {
            // What finds out whether this is an ext_proc server.
            return Ok(Response::new(UnboundedReceiverStream::new(replies)));
        };
        let number = self.begun.fetch_add(1, Relaxed);
        tokio::spawn(async move {
            let mut next = Some(first);
            while let Some(message) = next {
                // The test may be over.
                let _ = seen.send(message.clone());
                if matches!(fault, Fault::Hangs(after) if number >= after) {
                    return sender.closed().await;
                }
                match reply(fault, message.request.unwrap()) {
                    Some(reply) => drop(sender.send(reply)),
                    None => break,
                }
                next = messages.message().await.ok().flatten();
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(replies)))
    }
}

/// `None` ends the exchange.
fn reply(fault: Fault, message: Kind) -> Option<Result<ProcessingResponse, Status>> {
    let response = match (message, fault) {
        (Kind::RequestHeaders(_), Fault::Ends(code)) => return Some(Err(Status::new(code, "not today"))),
        (Kind::RequestHeaders(_), Fault::EndsEarly) => return None,
        (Kind::RequestHeaders(_), Fault::Refuses(code)) => Reply::ImmediateResponse(ImmediateResponse {
            status: Some(HttpStatus { code }),
            body: b"too much".to_vec(),
            ..ImmediateResponse::default()
        }),
        (Kind::RequestHeaders(_), _) => {
            let header = HeaderValue {
                key: "x-gateway-destination-endpoint".to_owned(),
                raw_value: b"10.0.0.1:8000,10.0.0.2:8000".to_vec(),
                ..HeaderValue::default()
            };
            let option = HeaderValueOption { header: Some(header), ..HeaderValueOption::default() };
            let set_headers = if fault == Fault::NoDestination { vec![] } else { vec![option] };
            let mutation = HeaderMutation { set_headers, ..HeaderMutation::default() };
            let response = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
            Reply::RequestHeaders(HeadersResponse { response: Some(response) })
        }
        (Kind::RequestBody(body), _) => Reply::RequestBody(echo(body, fault == Fault::LosesRequestByte)),
        (Kind::ResponseHeaders(_), _) => Reply::ResponseHeaders(HeadersResponse::default()),
        (Kind::ResponseBody(body), _) => Reply::ResponseBody(echo(body, fault == Fault::LosesResponseByte)),
        (other, _) => panic!("never sent: {other:?}"),
    };
    Some(Ok(ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }))
}

fn echo(mut body: HttpBody, loses: bool) -> BodyResponse {
    if loses && body.end_of_stream {
        body.body.pop();
    }
    let streamed = StreamedBodyResponse {
        body: body.body,
        end_of_stream: body.end_of_stream,
        ..StreamedBodyResponse::default()
    };
    let mutation = BodyMutation { mutation: Some(body_mutation::Mutation::StreamedResponse(streamed)) };
    BodyResponse {
        response: Some(CommonResponse { body_mutation: Some(mutation), ..CommonResponse::default() }),
    }
}
