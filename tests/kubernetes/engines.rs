//! Engines at the addresses of pods, at which nothing runs or waits.

use std::net::{Ipv4Addr, TcpListener};

use usher::sim::{SimConfig, SimHandle, start};

/// The port of all pods.
const PORT: u16 = 8000;

/// Engines at these addresses of loopback, until it is dropped.
pub(crate) async fn engines(addresses: impl Iterator<Item = Ipv4Addr>) -> SimHandle {
    let listeners = addresses.map(|address| TcpListener::bind((address, PORT)).unwrap()).collect();
    start(SimConfig::default(), listeners).await.unwrap()
}
