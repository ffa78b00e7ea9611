//! The command lines of everything that runs.

use usher::cli::demo::ports::{Ports, local};
use usher::replay::{Cell, Script};

use crate::arguments::{Arguments, PolicyName};

/// Servers are called this and their number.
pub const NAME: &str = "server";

/// Paths of programs and files.
#[derive(Debug, Clone)]
pub struct Place {
    /// The program `usher`.
    pub usher: String,
    /// Envoy.
    pub envoy: String,
    /// Configuration of Usher.
    pub config: String,
    /// Endpoints file.
    pub endpoints: String,
    /// Configuration of Envoy.
    pub envoy_config: String,
    /// Ports of all processes.
    pub ports: Ports,
}

/// The simulated servers: those of the replay, but for the speed of their time.
pub fn servers(place: &Place, arguments: &Arguments, cell: &Cell) -> Vec<String> {
    let seed = cell.engine_seed();
    vec![
        place.usher.clone(),
        "sim".to_owned(),
        format!("--name={NAME}"),
        format!("--model={}", Script::MODEL),
        format!("--engine-model={}", cell.engine),
        format!("--engine-seed={seed}"),
        format!("--seed={seed}"),
        format!("--time-scale={}", arguments.time_scale),
        format!("--stream-interval={}", arguments.stream_interval),
        format!("--count={}", place.ports.servers.len()),
        format!("--port={}", place.ports.servers.first().copied().unwrap_or_default()),
        format!("--write-endpoints={}", place.endpoints),
    ]
}

/// Usher with a policy.
pub fn usher(place: &Place, policy: PolicyName) -> Vec<String> {
    let ports = &place.ports;
    let mut words = vec![
        place.usher.clone(),
        "serve".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--grpc-port={}", ports.extproc),
        format!("--grpc-health-port={}", ports.health),
        format!("--metrics-port={}", ports.metrics),
        format!("--admin-address={}", local(ports.admin)),
        "--refresh-metrics-interval=50ms".to_owned(),
        "--secure-serving=false".to_owned(),
        // Envoy asks on the ext_proc port.
        "--health-checking=true".to_owned(),
        // Nothing here could answer a question about rights, or receives traces.
        "--metrics-endpoint-auth=false".to_owned(),
        "--tracing=false".to_owned(),
    ];
    words.push(match policy.configuration() {
        Some(_) => format!("--config-file={}", place.config),
        None => format!("--endpoints-file={}", place.endpoints),
    });
    words
}

/// Envoy, on one thread.
pub fn envoy(place: &Place) -> Vec<String> {
    [&place.envoy, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "-c"]
        .map(str::to_owned)
        .into_iter()
        .chain([place.envoy_config.clone()])
        .collect()
}
