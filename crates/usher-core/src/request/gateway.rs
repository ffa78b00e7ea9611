//! Properties of a request that a gateway sends and gets, beside bodies.

use std::sync::Arc;

use bytes::Bytes;

/// A header to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name, lower case.
    pub name: Arc<str>,
    /// Value of the header.
    pub value: Bytes,
}

/// A number for the gateway's dynamic metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Namespace of the metadata.
    pub namespace: Arc<str>,
    /// Key in the namespace.
    pub name: Arc<str>,
    /// The number.
    pub value: f64,
}

/// Endpoint that served a request, as the gateway says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Served {
    /// No metadata of the namespace arrived.
    #[default]
    Unknown,
    /// The namespace arrived without the key.
    Missing,
    /// Address of the server, as written.
    By(String),
}
