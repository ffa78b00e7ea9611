//! Requests to a server for its pages.

use std::net::SocketAddr;

use super::config::ScrapeConfig;
use super::extraction::Extraction;

/// The requests for the pages of one endpoint.
#[derive(Debug)]
pub(super) struct Requests {
    plain: Vec<u8>,
    /// Only for the metrics in use, while the server seems to understand that.
    selecting: Option<Vec<u8>>,
}

impl Requests {
    pub(super) fn new(config: &ScrapeConfig, address: SocketAddr, extractions: &[Extraction<'_>]) -> Self {
        let encoding = if config.gzip { "accept-encoding: gzip\r\n" } else { "" };
        let get = |target: &str| {
            format!("GET {target} HTTP/1.1\r\nhost: {address}\r\nuser-agent: usher\r\n{encoding}\r\n")
                .into_bytes()
        };
        let path = config.path.as_str();
        let selecting = config.select_metrics.then(|| get(&selection(path, extractions)));
        Self { plain: get(path), selecting }
    }

    /// The request to send now.
    pub(super) fn next(&self) -> &[u8] {
        self.selecting.as_ref().unwrap_or(&self.plain)
    }

    /// Learns whether the response was a page with everything on it that should be there. If
    /// not, the whole page is asked for from now on. Returns whether that is new.
    pub(super) fn learn(&mut self, complete: bool) -> bool {
        !complete && self.selecting.take().is_some()
    }
}

/// The path for the metrics in use only, as servers with Python's prometheus_client take it.
fn selection(path: &str, extractions: &[Extraction<'_>]) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    // vLLM's own route of the same name ignores the query; the one below it doesn't.
    let mut target = format!("{}/?{query}", path.trim_end_matches('/'));
    for name in extractions.iter().flat_map(Extraction::metrics) {
        if !target.ends_with('?') {
            target.push('&');
        }
        // Names of metrics have no character that would need escaping.
        target += "name%5B%5D=";
        target += name;
    }
    target
}
