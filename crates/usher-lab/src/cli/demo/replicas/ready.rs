//! Replicas that are ready: Envoy finds them well, and the store connects them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::time::sleep;

use super::page::is_connected;
use crate::cli::demo::client::Client;
use crate::cli::demo::ports::{Ports, local};

/// Time for replicas to find the store, and for Envoy to find them.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until Envoy sends requests to all replicas and, if they do, these share.
///
/// # Errors
/// Names the replica that takes too long.
pub(super) async fn wait(client: &Client, ports: &Ports, sharing: bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for (number, usher) in (1..).zip(ports.ushers()) {
        while !gets_requests(client, ports.envoy_admin, usher.extproc).await? {
            let seconds = PATIENCE.as_secs();
            ensure!(
                Instant::now() < deadline,
                "Envoy did not find replica {number} ready within {seconds} s"
            );
            sleep(POLL_INTERVAL).await;
        }
        while sharing && !is_connected(&metrics(client, local(usher.metrics)).await?) {
            let seconds = PATIENCE.as_secs();
            ensure!(Instant::now() < deadline, "replica {number} did not reach the store within {seconds} s");
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Returns `true` if Envoy finds the replica at this port well.
pub(super) async fn gets_requests(client: &Client, envoy_admin: u16, extproc: u16) -> anyhow::Result<bool> {
    let line = format!("usher::{}::health_flags::healthy", local(extproc));
    Ok(client.text(local(envoy_admin), "/clusters").await?.lines().any(|found| found == line))
}

/// A replica's page of metrics.
pub(super) async fn metrics(client: &Client, at: SocketAddr) -> anyhow::Result<String> {
    client.text(at, "/metrics").await
}
