//! Record of a server's requests, for `/admin/state` and `/metrics`.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use http::{Method, request};
use serde_json::{Value, json};

use super::body::Received;
use super::http_stats::HttpStats;
use super::link::Layer;
use super::metrics::MetricsPage;
use super::model::Engine;
use super::openai::Api;
use super::remote::RemoteStats;

#[derive(Debug)]
struct Last {
    method: Method,
    path: String,
    headers: HeaderMap,
    body_bytes: u64,
    body_hash: u64,
    trailers: Option<HeaderMap>,
}

/// Counters around the engine, and the request that came last.
#[derive(Debug)]
pub(crate) struct Record {
    requests: u64,
    // Responses to requests for tokens.
    statuses: BTreeMap<u16, u64>,
    last: Option<Last>,
    pub(crate) http: HttpStats,
    pub(crate) remote: RemoteStats,
    pub(crate) page: MetricsPage,
    /// The page that the fault `stale` shows.
    pub(crate) stale: Option<Bytes>,
}

impl Record {
    pub(crate) fn new(page: MetricsPage) -> Self {
        Self {
            requests: 0,
            statuses: BTreeMap::new(),
            last: None,
            http: HttpStats::new(),
            remote: RemoteStats::default(),
            page,
            stale: None,
        }
    }

    /// Keeps a request as the last one. Takes its trailers.
    pub(crate) fn arrived(&mut self, parts: request::Parts, received: &mut Received) {
        self.requests += 1;
        self.last = Some(Last {
            path: parts.uri.path().to_owned(),
            method: parts.method,
            headers: parts.headers,
            body_bytes: received.bytes,
            body_hash: received.hash,
            trailers: received.trailers.take(),
        });
    }

    /// Counts the response to a request for tokens; see [`HttpStats::responded`].
    pub(crate) fn responded(&mut self, api: Api, status: u16, request: u64, response: u64, seconds: f64) {
        *self.statuses.entry(status).or_default() += 1;
        self.http.responded(api, status, request, response, seconds);
    }

    /// Content of `/admin/state`, except for the server's name.
    pub(crate) fn state(&self, engine: &Engine) -> Value {
        let (state, stats, kv) = (engine.state(), engine.stats(), engine.kv());
        let layers = Layer::ALL.into_iter().map(Layer::name);
        let mut disagg = self.remote.as_json();
        disagg["prefilled"] = json!(stats.prefilled);
        disagg["received"] = json!(stats.received);
        disagg["received_bytes"] = layers.zip(stats.received_bytes).collect();
        json!({
            "now_seconds": engine.now().as_secs_f64(),
            "running": state.running,
            "waiting": state.waiting,
            "receiving": state.receiving,
            "kv": {
                "usage": state.kv_usage,
                "total_blocks": kv.total(),
                "used_blocks": state.kv_used_blocks,
                "idle_blocks": state.kv_idle_blocks,
                "evictions": kv.evictions(),
            },
            "requests": self.requests,
            "statuses": self.statuses,
            "finished": stats.finished_stop + stats.finished_length,
            "aborted": stats.aborted,
            "rejected": stats.rejected,
            "preemptions": stats.preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.prefix_hits,
            "generation_tokens": stats.generation_tokens,
            "disaggregation": disagg,
            "last": self.last.as_ref().map(|last| json!({
                "method": last.method.as_str(),
                "path": last.path,
                "headers": as_json(&last.headers),
                "trailers": last.trailers.as_ref().map(as_json),
                "body_bytes": last.body_bytes,
                "body_xxh64": format!("{:016x}", last.body_hash),
            })),
        })
    }
}

/// A header's value, readable.
pub(crate) fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

// Names with the list of their values; credentials are not shown.
fn as_json(headers: &HeaderMap) -> Value {
    let mut shown: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        let value =
            if *name == AUTHORIZATION || *name == COOKIE { "(hidden)".to_owned() } else { text(value) };
        shown.entry(name.as_str()).or_default().push(value);
    }
    json!(shown)
}
