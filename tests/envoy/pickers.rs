//! An Envoy in front of several pickers.

use std::net::SocketAddr;

use crate::ORIGINAL_DST;
use crate::support::envoy::{Edit, Envoy};

/// Starts an Envoy that spreads requests over pickers and finds out soon which are ready; a request that none takes fails.
pub(crate) async fn spread(pickers: &[SocketAddr], servers: &[SocketAddr], more: &[Edit<'_>]) -> Envoy {
    let endpoint = |picker: &SocketAddr| {
        format!(
            "        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
            picker.port()
        )
    };
    let (one, all) = (endpoint(&pickers[0]), pickers.iter().map(endpoint).collect::<String>());
    let edits = [
        ("failure_mode_allow: true", "failure_mode_allow: false"),
        (
            "      interval: 2s\n      no_traffic_interval: 2s\n",
            "      interval: 0.1s\n      no_traffic_interval: 0.1s\n",
        ),
        // A check that a loaded machine responds late doesn't fail.
        ("- timeout: 1s", "- timeout: 5s"),
        (one.trim_end(), all.trim_end()),
    ];
    let edits = [&edits[..], more].concat();
    let envoy = Envoy::start(ORIGINAL_DST, pickers[0], servers, &edits).await;
    envoy.has_pickers(pickers.len()).await;
    envoy
}
