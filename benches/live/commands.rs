//! The command lines of everything that runs.

use usher::replay::{Cell, Script};
use usher_lab::cli::demo::ports::{Ports, local};

use super::arguments::{Arguments, PolicyName};
use super::processes::picker_flags;

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
        format!("--speed={}", arguments.time_scale),
        format!("--stream-interval={}", arguments.stream_interval),
        format!("--count={}", place.ports.servers.len()),
        format!("--port={}", place.ports.servers.first().copied().unwrap_or_default()),
        format!("--write-endpoints={}", place.endpoints),
    ]
}

/// Usher with a policy.
pub fn usher(place: &Place, policy: PolicyName) -> Vec<String> {
    let mut words = vec![
        place.usher.clone(),
        "serve".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--admin-address={}", local(place.ports.admin)),
    ];
    words.extend(picker_flags(&place.ports));
    words.push(match policy.configuration() {
        Some(_) => format!("--config-file={}", place.config),
        None => format!("--endpoints-file={}", place.endpoints),
    });
    words
}
