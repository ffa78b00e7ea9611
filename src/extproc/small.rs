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
use tonic::Status;
use tonic::body::Body as TonicBody;
use tonic::codegen::Service;

use super::arrivals::RequestBody;
use super::router::GrpcService;
use crate::memory::Budget;
use crate::memory::small::COMPLETE;

/// A service whose calls have to begin with their answer in time, and count as streams. They are
/// answered also where no memory is left: health checks are.
#[derive(Clone, Debug)]
pub struct Small<S> {
    service: S,
    budget: Arc<Budget>,
}

impl<S> Small<S> {
    /// This service, whose streams count against `budget`.
    pub fn new(service: S, budget: &Arc<Budget>) -> Self {
        Self { service, budget: Arc::clone(budget) }
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
        let stream = OpenStream::new(&self.budget);
        let answer = tokio::time::timeout(COMPLETE, self.service.call(request));
        answer
            .map(|answer| {
                let response = answer.unwrap_or_else(|_| {
                    let status = Status::deadline_exceeded("the request was not complete in time");
                    Ok(status.into_http())
                });
                response.map(|response| {
                    response.map(|body| SmallBody { body, _stream: Some(stream), _place: None })
                })
            })
            .boxed()
    }
}

/// Counts an open stream until it is dropped.
#[derive(Debug)]
struct OpenStream(Arc<Budget>);

impl OpenStream {
    fn new(budget: &Arc<Budget>) -> Self {
        budget.open_stream();
        Self(Arc::clone(budget))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.close_stream();
    }
}

/// The body of a small answer, with what it holds until it ends.
#[derive(Debug)]
pub struct SmallBody {
    body: TonicBody,
    _stream: Option<OpenStream>,
    _place: Option<OwnedSemaphorePermit>,
}

impl SmallBody {
    /// The same, which holds a place among the small calls of its connection.
    #[must_use]
    pub fn with_place(self, place: OwnedSemaphorePermit) -> Self {
        Self { _place: Some(place), ..self }
    }
}

impl From<TonicBody> for SmallBody {
    fn from(body: TonicBody) -> Self {
        Self { body, _stream: None, _place: None }
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
