//! A collector of traces: OpenTelemetry's own definitions behind a real gRPC server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// After this a test gives up waiting.
const PATIENCE: Duration = Duration::from_secs(60);

/// Received exports.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub spans: Vec<Span>,
    /// Attributes of the last sender.
    pub resource: BTreeMap<String, Value>,
    /// The header `authorization` of each export.
    pub authorization: Vec<Option<String>>,
}

impl Received {
    /// The spans with this name.
    pub fn named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name == name).collect()
    }
}

/// A running collector on a port of loopback.
pub struct Collector {
    pub address: SocketAddr,
    received: watch::Receiver<Received>,
    _server: AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

struct Service(watch::Sender<Received>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let authorization = request.metadata().get("authorization");
        let authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
        self.0.send_modify(|received| {
            received.authorization.push(authorization);
            for of_resource in request.into_inner().resource_spans {
                received.resource = attributes(&of_resource.resource.unwrap().attributes);
                received.spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        });
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = watch::channel(Received::default());
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Service(sender)))
            .serve_with_incoming(TcpIncoming::from(listener));
        Self { address, received, _server: AbortOnDropHandle::new(tokio::spawn(server)) }
    }

    /// Waits until so many requests have arrived with all their spans, which a picker sends together.
    pub async fn requests(&self, count: usize) -> Received {
        let mut received = self.received.clone();
        let arrived = received.wait_for(|received| received.named("gateway.request").len() >= count);
        tokio::time::timeout(PATIENCE, arrived).await.expect("spans are late").unwrap().clone()
    }
}

/// Attributes by their names, each of which must be there once.
pub fn attributes(list: &[KeyValue]) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for attribute in list {
        let value = attribute.value.clone().unwrap().value.unwrap();
        assert!(all.insert(attribute.key.clone(), value).is_none(), "{} is there twice", attribute.key);
    }
    all
}

/// A text as an attribute.
pub fn text(value: &str) -> Option<Value> {
    Some(Value::StringValue(value.to_owned()))
}
