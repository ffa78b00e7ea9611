//! Simulated model servers that can go away one by one.

use std::net::SocketAddr;
use std::time::Duration;

use http::Request;
use serde_json::Value;
use usher::sim::{EngineConfig, Fault, SimConfig, SimHandle, start};

use super::client::{self, Protocol};
use super::listener;

/// As many as the Envoy configurations list.
pub(crate) const SERVERS: usize = 4;

/// Simulated model servers `sim-0`, `sim-1` ….
pub(crate) struct Servers {
    running: Vec<Option<SimHandle>>,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Servers {
    /// Starts servers that take no time for a prompt and 1 ms for a token.
    pub(crate) async fn start() -> Self {
        Self::start_many(SERVERS).await
    }

    /// The same, so many.
    pub(crate) async fn start_many(count: usize) -> Self {
        Self::start_with(vec![quick(); count]).await
    }

    /// Starts a server with each of these engines.
    pub(crate) async fn start_with(engines: Vec<EngineConfig>) -> Self {
        Self::start_all(configs(engines)).await
    }

    /// Starts a server with each of these configurations.
    pub(crate) async fn start_all(configs: Vec<SimConfig>) -> Self {
        let mut servers = Self { running: Vec::new(), addresses: Vec::new() };
        for config in configs {
            let server = start(config, vec![listener()]).await.unwrap();
            servers.addresses.push(server.addresses()[0]);
            servers.running.push(Some(server));
        }
        servers
    }

    /// Ends a server and its connections at once. Its port refuses connections after that.
    pub(crate) async fn kill(&mut self, index: usize) {
        self.running[index].take().unwrap().shutdown().await;
    }

    /// State of a server, as it reports it when asked directly.
    pub(crate) async fn state(&self, index: usize) -> Value {
        self.ask(index, Request::get("/admin/state").body(client::empty()).unwrap()).await
    }

    /// The request headers that a server saw last.
    pub(crate) async fn last_headers(&self, index: usize) -> Value {
        self.state(index).await["last"]["headers"].take()
    }

    /// Makes a server misbehave.
    pub(crate) async fn set_fault(&self, index: usize, fault: &Fault) {
        let body = client::full(serde_json::to_string(fault).unwrap());
        let set = self.ask(index, Request::post("/admin/fault").body(body).unwrap()).await;
        assert_eq!(serde_json::from_value::<Fault>(set).unwrap(), *fault);
    }

    /// Remaining part of a fault.
    pub(crate) async fn fault(&self, index: usize) -> Fault {
        let fault = self.ask(index, Request::get("/admin/fault").body(client::empty()).unwrap()).await;
        serde_json::from_value(fault).unwrap()
    }

    async fn ask(&self, index: usize, request: Request<client::Body>) -> Value {
        client::send(self.addresses[index], Protocol::Http1, request).await.json()
    }
}

/// An engine that takes no time for a prompt and 1 ms for a token.
pub(crate) fn quick() -> EngineConfig {
    EngineConfig {
        prefill_tokens_per_second: 0.0,
        decode_step: Duration::from_millis(1),
        batch_factor: 0.0,
        jitter: 0.0,
        // Room for a prompt of 5 MB.
        max_model_len: 4 << 20,
        num_blocks: 400_000,
        ..EngineConfig::default()
    }
}

/// Configurations of servers with these engines.
pub(crate) fn configs(engines: Vec<EngineConfig>) -> Vec<SimConfig> {
    let engines = engines.into_iter().enumerate();
    engines.map(|(first_index, engine)| SimConfig { first_index, engine, ..SimConfig::default() }).collect()
}
