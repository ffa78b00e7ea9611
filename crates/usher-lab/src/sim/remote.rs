//! Work that a server has another one do: compute a prompt, encode images.
//!
//! The other gets the request over HTTP/1.1 with the header `x-sim-stage`, which says what
//! is wanted of it, and nobody's routing headers: it asks no further server.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::{Value, json};

use super::link::Place;
use super::openai::Api;

/// Headers from the picker to a sidecar: the server that computes the prompt, those that encode images.
const PREFILLER: HeaderName = HeaderName::from_static("x-prefiller-host-port");
const ENCODERS: HeaderName = HeaderName::from_static("x-encoder-hosts-ports");

/// Wanted part of the request: `prefill` or `encode`. Without it: all of it.
const STAGE: HeaderName = HeaderName::from_static("x-sim-stage");
/// After how many tokens a response ends by itself, if its limit doesn't end it before.
const OUTPUT_TOKENS: HeaderName = HeaderName::from_static("x-sim-output-tokens");
/// Location of the server that computed a prompt: names from the host to the region, with
/// commas between them.
pub(crate) const PLACE: HeaderName = HeaderName::from_static("x-sim-place");
/// The name of the server that computed the prompt of this response.
pub(crate) const PREFILLED_BY: HeaderName = HeaderName::from_static("x-sim-prefilled-by");
/// The name of the server that responds.
pub(crate) const POD: HeaderName = HeaderName::from_static("x-inference-pod");

/// The longest response that is read of another server.
const MOST_RESPONSE: usize = 1 << 20;

/// Part of a request that a server is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// All work that no other server does.
    Whole,
    /// Work on the prompt.
    Prefill,
    /// Work on the images.
    Encode,
}

/// Division of a request's work between servers, in the words of its headers.
#[derive(Debug)]
pub(crate) struct Stages {
    pub(crate) own: Stage,
    /// Address of the server that is to compute the prompt.
    pub(crate) prefiller: Option<HeaderValue>,
    /// Addresses of the servers that are to encode the images, with commas between them.
    pub(crate) encoders: Option<HeaderValue>,
    /// After how many tokens the response ends by itself.
    pub(crate) output_tokens: Option<u32>,
}

impl Stages {
    /// Reads the headers.
    ///
    /// # Errors
    /// A message for an unknown stage, or an invalid number of tokens.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let own = match headers.get(STAGE).map(HeaderValue::as_bytes) {
            None => Stage::Whole,
            Some(b"prefill") => Stage::Prefill,
            Some(b"encode") => Stage::Encode,
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                return Err(format!("x-sim-stage: {other:?} is no stage; write prefill or encode"));
            }
        };
        let others = |name| headers.get(name).filter(|_| own == Stage::Whole).cloned();
        let output_tokens = match headers.get(OUTPUT_TOKENS) {
            None => None,
            Some(value) => {
                let tokens =
                    value.to_str().ok().and_then(|text| text.parse().ok()).filter(|tokens| *tokens > 0);
                Some(tokens.ok_or("x-sim-output-tokens must be a number of tokens, at least 1")?)
            }
        };
        Ok(Self { own, prefiller: others(PREFILLER), encoders: others(ENCODERS), output_tokens })
    }
}

/// Addresses that a header names, one after the other; `None` for a part that is no address.
pub(crate) fn addresses(value: &HeaderValue) -> impl Iterator<Item = Option<SocketAddr>> {
    value.as_bytes().split(|byte| *byte == b',').map(|part| str::from_utf8(part).ok()?.trim().parse().ok())
}

/// Counters since the start, of work by other servers and of images encoded here.
#[derive(Debug, Default)]
pub(crate) struct RemoteStats {
    /// Prompts that another server computed.
    pub(crate) prefills: u64,
    /// Prompts that another should have computed and did not.
    pub(crate) failed_prefills: u64,
    /// Images that other servers encoded.
    pub(crate) images: u64,
    /// Images that others should have encoded and did not.
    pub(crate) failed_images: u64,
    /// Images encoded here.
    pub(crate) own_images: u64,
    /// Addresses in headers that are none, or that may not be called.
    pub(crate) refused: u64,
}

impl RemoteStats {
    pub(crate) fn as_json(&self) -> Value {
        json!({
            "remote_prefills": self.prefills,
            "failed_prefills": self.failed_prefills,
            "remote_images": self.images,
            "failed_images": self.failed_images,
            "own_images": self.own_images,
            "refused_peers": self.refused,
        })
    }
}

/// Error of another server that did not do its part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("the header names no server that may be called")]
    Refused,
    #[error("the server responded with {0}")]
    Status(StatusCode),
    #[error("no response: {0}")]
    Lost(Box<dyn std::error::Error + Send + Sync>),
    #[error("no response in time")]
    Late,
}

/// A server that computed a prompt.
#[derive(Debug)]
pub(crate) struct Prefiller {
    pub(crate) place: Place,
    pub(crate) name: Option<HeaderValue>,
}

/// Calls other servers, over connections that it keeps.
#[derive(Debug)]
pub(crate) struct Remote {
    pool: Client<HttpConnector, Full<Bytes>>,
}

impl Remote {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { pool: Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector) }
    }

    /// Has a server compute the prompt of a request.
    ///
    /// # Errors
    /// `RemoteError` if it failed.
    pub(crate) async fn prefill(
        &self,
        at: SocketAddr,
        api: Api,
        body: Bytes,
    ) -> Result<Prefiller, RemoteError> {
        let headers = self.ask(at, api, HeaderValue::from_static("prefill"), body).await?;
        let place = headers.get(PLACE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut names = [""; 4];
        for (name, given) in names.iter_mut().zip(place.split(',')) {
            *name = given;
        }
        Ok(Prefiller { place: Place::new(names), name: headers.get(POD).cloned() })
    }

    /// Has a server encode so many images.
    ///
    /// # Errors
    /// `RemoteError` if it failed.
    pub(crate) async fn encode(&self, at: SocketAddr, images: u32) -> Result<(), RemoteError> {
        // What is in them costs nothing here, so it need not go over the wire again.
        let image = json!({"type": "image_url", "image_url": {"url": ""}});
        let content = vec![image; images as usize];
        let body = json!({"messages": [{"role": "user", "content": content}]}).to_string();
        self.ask(at, Api::Chat, HeaderValue::from_static("encode"), body.into()).await.map(drop)
    }

    // The response's headers, once it is complete.
    async fn ask(
        &self,
        at: SocketAddr,
        api: Api,
        stage: HeaderValue,
        body: Bytes,
    ) -> Result<HeaderMap, RemoteError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{at}{}", api.path()))
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(STAGE, stage)
            .body(Full::new(body))
            .map_err(|error| RemoteError::Lost(error.into()))?;
        let response: Response<Incoming> =
            self.pool.request(request).await.map_err(|error| RemoteError::Lost(error.into()))?;
        let (parts, body) = response.into_parts();
        // To its end, so that the connection serves again.
        Limited::new(body, MOST_RESPONSE).collect().await.map_err(RemoteError::Lost)?;
        if parts.status.is_success() { Ok(parts.headers) } else { Err(RemoteError::Status(parts.status)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (*name, *value));
        pairs.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn single_stage_request_calls_no_other_stage() {
        let named = [("x-prefiller-host-port", "127.0.0.1:1"), ("x-encoder-hosts-ports", "127.0.0.1:2")];
        let whole = Stages::of(&headers(&named)).unwrap();
        assert_eq!(whole.own, Stage::Whole);
        assert!(whole.prefiller.is_some() && whole.encoders.is_some());
        for (word, stage) in [("prefill", Stage::Prefill), ("encode", Stage::Encode)] {
            let with_stage = [named[0], named[1], ("x-sim-stage", word)];
            let stages = Stages::of(&headers(&with_stage)).unwrap();
            assert_eq!(stages.own, stage);
            assert!(stages.prefiller.is_none() && stages.encoders.is_none());
        }
        assert!(Stages::of(&headers(&[("x-sim-stage", "decode")])).unwrap_err().contains("decode"));
    }

    #[test]
    fn remote_addresses_must_be_numeric() {
        let table = [
            ("127.0.0.1:80", vec![Some("127.0.0.1:80")]),
            ("[::1]:80, 10.0.0.1:9", vec![Some("[::1]:80"), Some("10.0.0.1:9")]),
            ("localhost:80,127.0.0.1,:80,", vec![None; 4]),
            ("user@127.0.0.1:80,http://127.0.0.1:80,127.0.0.1:80/x", vec![None; 3]),
            ("127.0.0.1:99999,::1:80:", vec![None; 2]),
        ];
        for (text, want) in table {
            let want: Vec<_> = want.into_iter().map(|at| at.map(|at| at.parse().unwrap())).collect();
            assert_eq!(addresses(&HeaderValue::from_static(text)).collect::<Vec<_>>(), want, "{text}");
        }
    }
}
