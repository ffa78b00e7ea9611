//! Traits of a gRPC service, which responds, and never fails itself.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tonic::codegen::Service as TowerService;
use tower::BoxError;

use super::arrivals::RequestBody;

/// The body of a gRPC response.
pub trait GrpcBody: Body<Data: From<Bytes> + Send, Error: Into<BoxError>> + Unpin + Send + 'static {}

impl<B> GrpcBody for B where B: Body<Data: From<Bytes> + Send, Error: Into<BoxError>> + Unpin + Send + 'static {}

/// A gRPC service: it responds, and never fails itself.
pub trait GrpcService:
    TowerService<Request<RequestBody>, Response = Response<Self::Body>, Error = Infallible>
{
    /// Body of its responses.
    type Body: GrpcBody;
}

impl<T, B> GrpcService for T
where
    T: TowerService<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: GrpcBody,
{
    type Body = B;
}
