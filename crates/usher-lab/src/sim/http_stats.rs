//! Statistics of vLLM's HTTP layer on its responses.

use super::openai::Api;
use super::stats::Histogram;

/// Statistics of the HTTP layer, per API in the order of [`Api::ALL`].
#[derive(Debug)]
pub(crate) struct HttpStats {
    pub(crate) handlers: [HandlerStats; 2],
    /// Finer buckets, all handlers together.
    pub(crate) duration: Histogram,
    /// Grows with every response.
    pub(crate) changes: u64,
}

/// Statistics of the HTTP layer for one API.
#[derive(Debug)]
pub(crate) struct HandlerStats {
    /// 2xx, 4xx, 5xx.
    pub(crate) classes: [u64; 3],
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) duration: Histogram,
}

impl HttpStats {
    pub(crate) fn new() -> Self {
        let handler = || HandlerStats {
            classes: [0; 3],
            request_bytes: 0,
            response_bytes: 0,
            duration: Histogram::new(&[0.1, 0.5, 1.0]),
        };
        let fine = [
            0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5,
            10.0, 30.0, 60.0,
        ];
        Self { handlers: [handler(), handler()], duration: Histogram::new(&fine), changes: 0 }
    }

    /// Counts a response: sizes in bytes (0 if streamed), time until its headers in seconds.
    pub(crate) fn responded(&mut self, api: Api, status: u16, request: u64, response: u64, seconds: f64) {
        let handler = &mut self.handlers[api as usize];
        let class = match status {
            ..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        handler.classes[class] += 1;
        handler.request_bytes += request;
        handler.response_bytes += response;
        handler.duration.observe(seconds);
        self.duration.observe(seconds);
        self.changes += 1;
    }
}
