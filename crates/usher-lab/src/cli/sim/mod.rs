//! `usher sim`: simulated vLLM servers in one process.

mod disagg;
mod kv_events;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use self::disagg::DisaggArgs;
use self::kv_events::KvEventsArgs;
use super::engine::EngineArgs;
use super::range::number;
use crate::sim::{ConfigError, Dialect, EngineConfig, SimConfig, SimHandle, start};
use usher_core::config::units::parse_duration;
use usher_core::endpoints::{PLACE_LABELS, ROLE_LABEL};
use usher_terminal::CliError;

/// Difference of the servers in where they listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Spread {
    /// One address, consecutive ports.
    Ports,
    /// One port, consecutive addresses.
    Addresses,
}

/// Arguments of `usher sim`.
#[derive(Debug, Clone, Args)]
pub struct SimArgs {
    /// Number of servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub count: u16,
    /// Port of the first server. 0: any free port for each.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Address of the first server.
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST)]
    pub address: Ipv4Addr,
    /// Numbering of the servers: consecutive ports or consecutive addresses.
    #[arg(long, value_enum, default_value_t = Spread::Ports)]
    pub spread: Spread,
    /// Prefix of the servers' names; a number follows.
    #[arg(long, default_value = "sim")]
    pub name: String,
    /// Write the servers to this endpoints file. Its format is that of the plugin file-discovery.
    #[arg(long, value_name = "FILE")]
    pub write_endpoints: Option<PathBuf>,
    /// Engine whose metric names the servers have. One of vllm, sglang, trtllm-serve, triton-tensorrt-llm
    /// and triton; everything else is vLLM's.
    #[arg(long, default_value = "vllm", value_name = "ENGINE")]
    pub metrics_of: Dialect,
    /// Name of the model.
    #[arg(long, default_value = "meta-llama/Llama-3.1-8B-Instruct")]
    pub model: String,
    /// Respond with 404 for any other model, as vLLM does.
    #[arg(long)]
    pub strict_models: bool,
    /// Respond with 404 to /v1/completions/render and /v1/chat/completions/render, as vLLM does unless it is
    /// told otherwise.
    #[arg(long)]
    pub no_render: bool,
    /// Names of LoRA adapters that are served, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub loras: Vec<String>,
    /// LoRA adapters that can be in the batch at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number(1usize, 1_000_000))]
    pub max_loras: usize,
    /// All costs zero: every request is answered at once.
    #[arg(long, conflicts_with_all = ["engine_model", "prefill_rate", "decode_step", "batch_factor", "jitter"])]
    pub instant: bool,
    /// Output tokens of a request that sets no limit.
    #[arg(long, default_value_t = 64, value_name = "TOKENS", value_parser = number(1, u32::MAX))]
    pub output_tokens: u32,
    /// Output tokens per event of a stream, as vLLM's --stream-interval; the first token always has its
    /// own event.
    #[arg(long, default_value_t = 1, value_name = "TOKENS", value_parser = number(1, u32::MAX))]
    pub stream_interval: u32,
    /// Startup time during which requests get status 503, such as 30s.
    #[arg(long, default_value = "0", value_parser = parse_duration, value_name = "TIME")]
    pub startup: Duration,
    /// Speed of the servers, as a multiple of real ones.
    #[arg(long, alias = "time-scale", value_name = "FACTOR", default_value_t = 1.0, value_parser = number(0.001, 1_000_000.0))]
    pub speed: f64,
    /// Seed of all randomness. The same seed and arrivals give the same tokens at the same times.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The engine.
    #[command(flatten, next_help_heading = "Engine")]
    pub engine: EngineArgs,
    /// Division of the work of requests among the servers.
    #[command(flatten, next_help_heading = "Roles and places")]
    pub disagg: DisaggArgs,
    /// KV events that the servers publish.
    #[command(flatten, next_help_heading = "KV events")]
    pub kv_events: KvEventsArgs,
}

impl SimArgs {
    /// The configuration of the servers.
    pub fn config(&self) -> SimConfig {
        let engine = EngineConfig { max_loras: self.max_loras, seed: self.seed, ..self.engine.config() };
        let instant = EngineConfig::instant();
        let engine = if self.instant {
            EngineConfig {
                prefill_tokens_per_second: instant.prefill_tokens_per_second,
                decode_step: instant.decode_step,
                batch_factor: instant.batch_factor,
                jitter: instant.jitter,
                ..engine
            }
        } else {
            engine
        };
        SimConfig {
            name_prefix: self.name.clone(),
            dialect: self.metrics_of,
            model: self.model.clone(),
            strict_models: self.strict_models,
            has_render: !self.no_render,
            loras: self.loras.clone(),
            default_output_tokens: self.output_tokens,
            stream_interval: self.stream_interval,
            startup: self.startup,
            time_scale: self.speed,
            engine,
            disagg: self.disagg.config(),
            kv_events: self.kv_events.config(if self.spread == Spread::Ports { 1 } else { 0 }),
            ..SimConfig::default()
        }
    }

    /// Binds the sockets of all servers, or none.
    ///
    /// # Errors
    /// Returns an error if an address is taken, or fewer ports are free.
    pub fn bind(&self) -> anyhow::Result<Vec<TcpListener>> {
        (0..self.count).map(|number| self.bind_one(number)).collect()
    }

    fn bind_one(&self, number: u16) -> anyhow::Result<TcpListener> {
        let (mut ip, mut port) = (self.address, self.port);
        match self.spread {
            Spread::Ports if port != 0 => {
                port = port.checked_add(number).context(format!(
                    "{} servers from port {} on need ports above 65535; choose a lower --port",
                    self.count, self.port
                ))?;
            }
            Spread::Ports => {}
            Spread::Addresses => {
                let next = ip.to_bits().checked_add(number.into());
                ip = Ipv4Addr::from_bits(
                    next.context(format!("there are not {} addresses from {ip} on", self.count))?,
                );
            }
        }
        let address = SocketAddrV4::new(ip, port);
        TcpListener::bind(address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                anyhow::anyhow!("port {port} on {ip} is in use; choose another with --port")
            }
            _ => anyhow::anyhow!("can't listen on {address}: {error}"),
        })
    }
}

/// Runs the servers until Ctrl-C.
///
/// # Errors
/// [`CliError::Usage`] for a setting out of range; [`CliError::Failed`] for a port that
/// is taken or a file that can't be written.
pub fn run(args: &SimArgs) -> Result<(), CliError> {
    serve(args).map_err(|error| {
        let text = format!("{error:#}");
        if error.is::<ConfigError>() { CliError::Usage(text) } else { CliError::Failed(text) }
    })
}

fn serve(args: &SimArgs) -> anyhow::Result<()> {
    let config = args.config();
    config.validate()?;
    let listeners = args.bind()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let servers = start(config, listeners).await?;
        if let Some(path) = &args.write_endpoints {
            write_endpoints(path, &servers)
                .with_context(|| format!("can't write the endpoints to {}", path.display()))?;
        }
        let addresses: Vec<String> = servers.addresses().iter().map(SocketAddr::to_string).collect();
        writeln!(io::stdout(), "simulated servers listen on {}", addresses.join(" "))?;
        tokio::signal::ctrl_c().await?;
        servers.shutdown().await;
        Ok(())
    })
}

/// Writes the servers as an endpoints file, in one go: a picker that watches the file
/// never sees half of it.
///
/// # Errors
/// `io::Error` if the file can't be written.
pub fn write_endpoints(path: &Path, servers: &SimHandle) -> io::Result<()> {
    let mut text = String::from("endpoints:\n");
    let whereabouts = servers.roles().iter().zip(servers.places());
    for ((name, address), (role, place)) in servers.names().iter().zip(servers.addresses()).zip(whereabouts) {
        let (name, ip, port) = (Value::from(name.as_str()), address.ip(), address.port());
        let places = PLACE_LABELS.into_iter().zip(place.names()).filter(|(_, name)| !name.is_empty());
        let labels = role.map(|role| (ROLE_LABEL, role.name())).into_iter().chain(places);
        let labels: Map<String, Value> =
            labels.map(|(label, value)| (label.to_owned(), Value::from(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!(", labels: {}", Value::from(labels)) };
        // Writing to a String can't fail. The port is a string in this format.
        let _ =
            writeln!(text, "- {{name: {name}, namespace: default, address: {ip}, port: \"{port}\"{labels}}}");
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}
