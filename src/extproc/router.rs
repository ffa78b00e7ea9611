//! Routes calls to gRPC services.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Map};
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::service::Service;
use tonic::Status;
use tonic::body::Body as TonicBody;
use tower::BoxError;

use super::arrivals::RequestBody;
use super::grpc::{GrpcBody, GrpcService};
use super::health::HealthService;
use super::small::{Small, SmallBody};
use crate::memory::Budget;

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const HEALTH_PREFIX: &str = "/grpc.health.v1.Health/";

/// Routes the calls of one port to the ext_proc service or to health. Any other call is
/// answered with UNIMPLEMENTED.
#[derive(Debug, Clone)]
pub struct Router<E> {
    extproc: E,
    health: Small<HealthService>,
}

impl<E> Router<E> {
    /// A router in front of both services.
    pub fn new(extproc: E, health: HealthService, budget: &Arc<Budget>) -> Self {
        Self { extproc, health: Small::new(health, budget) }
    }
}

type RouterResult<B> = Result<Response<B>, Infallible>;

impl<E: GrpcService + Clone> Service<Request<RequestBody>> for Router<E> {
    type Response = Response<EitherBody<E::Body>>;
    type Error = Infallible;
    type Future = Either<
        Map<E::Future, fn(RouterResult<E::Body>) -> RouterResult<EitherBody<E::Body>>>,
        BoxFuture<'static, RouterResult<EitherBody<E::Body>>>,
    >;

    fn call(&self, request: Request<RequestBody>) -> Self::Future {
        let path = request.uri().path();
        if path == PROCESS {
            // These services are always ready, and cloning one counts references.
            let response = self.extproc.clone().call(request);
            return Either::Left(
                response.map(|result| result.map(|response| response.map(EitherBody::ExtProc))),
            );
        }
        let refuse = |status: Status| {
            let response = status.into_http::<TonicBody>().map(|body| EitherBody::Other(body.into()));
            Either::Right(ready(Ok(response)).boxed())
        };
        if !path.starts_with(HEALTH_PREFIX) {
            return refuse(Status::unimplemented("no such service; this port serves ext_proc and health"));
        }
        let Some(place) = request.body().small_place() else {
            return refuse(Status::resource_exhausted("too many health checks at once on this connection"));
        };
        let response = self.health.clone().call(request);
        Either::Right(
            response
                .map(|result| {
                    result.map(|response| response.map(|body| EitherBody::Other(body.with_place(place))))
                })
                .boxed(),
        )
    }
}

/// The body of a response of the ext_proc service, or of another.
#[derive(Debug)]
pub enum EitherBody<B> {
    /// Body of the ext_proc service.
    ExtProc(B),
    /// Body of any other service.
    Other(SmallBody),
}

impl<B: GrpcBody> Body for EitherBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        match self.get_mut() {
            Self::ExtProc(body) => {
                Pin::new(body).poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Other(body) => Pin::new(body).poll_frame(context).map(|frame| {
                frame.map(|frame| frame.map(|frame| frame.map_data(Into::into)).map_err(Into::into))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::ExtProc(body) => body.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }
}
