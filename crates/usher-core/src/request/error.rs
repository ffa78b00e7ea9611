//! Errors of requests that can't be routed.

use thiserror::Error;

use super::headers::MAX_NAME;
use super::json::JsonError;

/// Error of a request that can't be routed. Every variant is answered with 400.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// No parser of the configuration claims the path, and none takes everything.
    #[error("no parser claims the path {0}; list one for it under requestHandler.parsers")]
    NoParser(String),
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    Json(#[from] JsonError),
    /// The body is not a gRPC message that can be read.
    #[error("invalid or unsupported gRPC payload: {0}")]
    Grpc(&'static str),
    /// The body is JSON, but not a request of its API.
    #[error("{0}")]
    Shape(&'static str),
    /// A name in the body is longer than [`MAX_NAME`].
    #[error("{0} has more than {MAX_NAME} bytes")]
    LongName(&'static str),
    /// Neither the body nor a header names a model.
    #[error("model not found in request body")]
    NoModel,
}
