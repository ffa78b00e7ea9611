//! Flags of servers that publish KV events.

use clap::Args;

use crate::sim::{Form, KvEventsConfig, Target};

/// KV events over ZeroMQ, as vLLM publishes them: which blocks come and go. The topic is `kv@IP:port@model`.
#[derive(Debug, Clone, Args)]
pub struct KvEventsArgs {
    /// Publish KV events on this port of the first server, and on those that follow, or with --spread addresses on the
    /// same port of the others.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub kv_events_port: Option<u16>,
    /// Port of the first server for replays of KV events; the others follow as for --kv-events-port.
    #[arg(long, value_name = "PORT", requires = "kv_events_port", value_parser = clap::value_parser!(u16).range(1..))]
    pub kv_replay_port: Option<u16>,
    /// Publish KV events to a subscriber at this address, such as tcp://127.0.0.1:5557.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "kv_events_port", value_parser = host_and_port)]
    pub kv_events_to: Option<String>,
    /// Form of KV events: array or map.
    #[arg(long, value_name = "FORM", default_value = "array")]
    pub kv_events_form: Form,
}

impl KvEventsArgs {
    /// The configuration of servers whose ports are `step` apart.
    pub fn config(&self, step: u16) -> Option<KvEventsConfig> {
        let listen = || {
            self.kv_events_port.map(|port| Target::Listen { port, replay_port: self.kv_replay_port, step })
        };
        let target = self.kv_events_to.clone().map(Target::Connect).or_else(listen)?;
        Some(KvEventsConfig { form: self.kv_events_form, target })
    }
}

/// Parses the part after `tcp://`.
fn host_and_port(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    match address {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(format!("{host}:{port}"))
        }
        _ => Err("give tcp://HOST:PORT".to_owned()),
    }
}
