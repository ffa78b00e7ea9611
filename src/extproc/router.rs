//! Which gRPC service a call is for.

use std::convert::Infallible;
use std::future::{Ready, ready};

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
    type Future = Either<
        E::Future,
        Either<BoxFuture<Self::Response, Infallible>, Ready<Result<Self::Response, Infallible>>>,
    >;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        // tonic's services are always ready, and cloning one counts a reference.
        let path = request.uri().path();
        if path.starts_with(EXTPROC_PREFIX) {
            Either::Left(self.extproc.clone().call(request))
        } else if path.starts_with(HEALTH_PREFIX) {
            Either::Right(Either::Left(self.health.clone().call(request)))
        } else {
            let status = Status::unimplemented("no such service; this port serves ext_proc and health");
            Either::Right(Either::Right(ready(Ok(status.into_http()))))
        }
    }
}
