//! Services of small requests, which share [limits](crate::memory::small).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body as TonicBody;
use tonic::codegen::Service;

use super::arrivals::{RequestBody, StreamEnd};
use super::grpc::GrpcService;
use crate::memory::small::{CALL, COMPLETE};
use crate::memory::{Budget, SmallCall, SmallPort};

/// A service whose calls have to begin with their response in time, and count as requests of
/// [small](crate::memory::small) ports. They are answered also where no memory is left: health checks
/// are. The oldest are reset where there are too many.
#[derive(Clone, Debug)]
pub struct Small<S> {
    service: S,
    port: SmallPort,
}

impl<S> Small<S> {
    /// This service, whose calls count against `budget`, with a share for itself and its clones.
    pub fn new(service: S, budget: &Arc<Budget>) -> Self {
        Self { service, port: SmallPort::new(budget) }
    }
}

/// Called at once, and not when the stream is first run: it says how the stream ends.
impl<S> hyper::service::Service<Request<RequestBody>> for Small<S>
where
    S: GrpcService<Body = TonicBody, Future: Send + 'static> + Clone,
{
    type Response = Response<SmallBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<SmallBody>, Infallible>>;

    fn call(&self, request: Request<RequestBody>) -> Self::Future {
        // These services are always ready, and cloning one counts references.
        Service::call(&mut self.clone(), request)
    }
}

impl<S> Service<Request<RequestBody>> for Small<S>
where
    S: GrpcService<Body = TonicBody, Future: Send + 'static>,
{
    type Response = Response<SmallBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<SmallBody>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let end = CancellationToken::new();
        request.body().ends(StreamEnd { cancelled: end.clone(), is_small: true });
        let call = self.port.begin(CALL, end);
        let response = tokio::time::timeout(COMPLETE, self.service.call(request));
        response
            .map(|result| {
                let response = result.unwrap_or_else(|_| {
                    let status = Status::deadline_exceeded("the request was not complete in time");
                    Ok(status.into_http())
                });
                response
                    .map(|response| response.map(|body| SmallBody { body, _call: Some(call), _place: None }))
            })
            .boxed()
    }
}

/// The body of a small response, with what it holds until it ends.
#[derive(Debug)]
pub struct SmallBody {
    body: TonicBody,
    _call: Option<SmallCall>,
    _place: Option<OwnedSemaphorePermit>,
}

impl SmallBody {
    /// This body, holding a place among the small calls of its connection.
    #[must_use]
    pub fn with_place(self, place: OwnedSemaphorePermit) -> Self {
        Self { _place: Some(place), ..self }
    }
}

impl From<TonicBody> for SmallBody {
    fn from(body: TonicBody) -> Self {
        Self { body, _call: None, _place: None }
    }
}

impl Body for SmallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;
    use crate::extproc::conn::{Lifetime, open, serve};
    use crate::extproc::health::{HealthState, service};
    use crate::extproc::spread::Streams;
    use crate::memory::{ConnectionRoom, Kind, Windows};

    #[tokio::test(start_paused = true)]
    async fn incomplete_call_is_answered_at_its_timeout() {
        let budget = Arc::<Budget>::default();
        let (client, server) = duplex(64 << 10);
        let room = ConnectionRoom::new(&budget, Windows::SMALLEST);
        let counted = budget.used(Kind::SmallPorts);
        let small = Small::new(service(Arc::new(HealthState::new(false))), &budget);
        tokio::spawn(async move {
            let lifetime = Lifetime::new();
            let io = open(ready(Ok(server)), &lifetime).await.unwrap().unwrap();
            serve(io, small, &lifetime, room, Streams::here()).await
        });
        let (mut send, connection) = h2::client::handshake(client).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("http://x/grpc.health.v1.Health/Check")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let start = Instant::now();
        let (response, mut body) = send.send_request(request, false).unwrap();
        // The head of a message.
        body.send_data(Bytes::from_static(&[0, 0]), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "4");
        assert!((COMPLETE..COMPLETE + Duration::from_secs(1)).contains(&start.elapsed()));
        drop(response);
        while budget.used(Kind::SmallPorts) > counted {
            tokio::task::yield_now().await;
        }
    }
}
