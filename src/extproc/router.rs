//! Which gRPC service a call is for.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service as TowerService};

use super::health::HealthService;

const EXTPROC_PREFIX: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/";
const HEALTH_PREFIX: &str = "/grpc.health.v1.Health/";

/// A gRPC service as tonic generates it: it answers, and never fails itself.
pub trait GrpcService:
    TowerService<Request<Incoming>, Response = Response<Body>, Error = Infallible>
{
}

impl<T> GrpcService for T where
    T: TowerService<Request<Incoming>, Response = Response<Body>, Error = Infallible>
{
}

/// Routes the calls of one port to the ext_proc service or to health. Any other call is
/// answered with UNIMPLEMENTED.
#[derive(Debug, Clone)]
pub struct Router<E> {
    extproc: E,
    health: HealthService,
}

impl<E> Router<E> {
    /// A router in front of both services.
    pub fn new(extproc: E, health: HealthService) -> Self {
        Self { extproc, health }
    }
}

impl<E: GrpcService + Clone> Service<Request<Incoming>> for Router<E> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<E::Future, Either<BoxFuture<Response<Body>, Infallible>, Answered>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // tonic's services are always ready, and cloning one counts a reference.
        let path = request.uri().path();
        if path.starts_with(EXTPROC_PREFIX) {
            Either::Left(self.extproc.clone().call(request))
        } else if path.starts_with(HEALTH_PREFIX) {
            Either::Right(Either::Left(self.health.clone().call(request)))
        } else {
            Either::Right(Either::Right(Unimplemented.call(request)))
        }
    }
}

/// An answer that is there at once.
type Answered = Ready<Result<Response<Body>, Infallible>>;

/// Answers every call with UNIMPLEMENTED.
#[derive(Debug, Clone, Copy)]
pub struct Unimplemented;

impl<B> TowerService<Request<B>> for Unimplemented {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<B>) -> Answered {
        let status = Status::unimplemented("no such service; this port serves ext_proc and health");
        ready(Ok(status.into_http()))
    }
}
