//! A gateway as the target.

use std::cell::RefCell;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::{Client, request};
use super::error::LoadError;
use super::failure::Failure;
use super::record::{Numbers, Started};

/// A gateway, and what each request to it says.
pub(super) struct Gateway {
    client: Client,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Gateway {
    /// Checks that the gateway accepts connections. `url` is without the API's path.
    ///
    /// # Errors
    /// `LoadError` if the address doesn't accept connections, or a header can't be sent.
    pub(super) async fn connect(
        url: &str,
        path: &str,
        headers: &[(String, String)],
    ) -> Result<Self, LoadError> {
        let failed = |reason: String| LoadError::Unreachable { target: url.to_owned(), reason };
        let url = format!("{}{path}", url.trim_end_matches('/'));
        let parsed: http::Uri =
            url.parse().map_err(|error: http::uri::InvalidUri| failed(error.to_string()))?;
        let authority = parsed.authority().ok_or_else(|| failed("there is no host in it".to_owned()))?;
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(80));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        TcpStream::connect((host, port)).await.map_err(|error| failed(error.to_string()))?;
        let headers = headers.iter().map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
        let headers: Option<Vec<_>> = headers.collect();
        let headers = headers.ok_or_else(|| failed("a header can't be sent".to_owned()))?;
        Ok(Self { client: Client::default(), url, headers })
    }

    /// A whole request with its response.
    ///
    /// # Errors
    /// `Failure` unless a response with a status of 2xx arrives.
    pub(super) async fn exchange(
        &self,
        body: &Bytes,
        numbers: &RefCell<Numbers>,
        started: Started,
    ) -> Result<(), Failure> {
        let request = request(&self.url, Method::POST, body.clone());
        let mut request = request.map_err(|error| Failure::new("request", error.to_string()))?;
        request.headers_mut().extend(self.headers.iter().cloned());
        let response = self.client.send(request).await?;
        if !(200..300).contains(&response.status) {
            return Err(Failure::new(format!("http-{}", response.status), response.reason));
        }
        let mut numbers = numbers.borrow_mut();
        if let Some(first) = response.first {
            numbers.first_byte(started, Instant::from_std(first));
        }
        numbers.served(started, response.pod.as_deref().unwrap_or("(unnamed)").as_bytes());
        numbers.tokens(started, response.usage);
        Ok(())
    }
}
