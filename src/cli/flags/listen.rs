//! Ports, message sizes, threads and the drain.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::time::Duration;

use clap::Args;

use super::pflag::{BOOL, at_most, given};
use crate::config::units::{parse_bool, parse_quantity};
use crate::memory::Budget;
use crate::settings::{ListenSettings, MemoryBudget, MemorySettings, MessageLimits};

/// Default of grpc-go.
const DEFAULT_RECV: &str = "4Mi";
const DEFAULT_SEND: &str = "2147483647";
const DEFAULT_ADMIN: &str = "127.0.0.1:9095";

/// More threads than this is a typing error.
const MAX_THREADS: u16 = 1024;

/// A smaller prefix index, 0 apart, is a size whose unit was forgotten.
const LEAST_INDEX: u64 = 1 << 20;

/// Ports, sizes, threads and the drain.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ListenFlags {
    /// Port for ext_proc calls. 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 9002)]
    pub grpc_port: u16,

    /// Port for gRPC health checks in plain text. Health is also served on the ext_proc port.
    #[arg(long, value_name = "PORT", default_value_t = 9003)]
    pub grpc_health_port: u16,

    /// Port for Prometheus metrics over HTTP.
    #[arg(long, value_name = "PORT", default_value_t = 9090)]
    pub metrics_port: u16,

    /// Address on which the ext_proc, health and metrics ports listen. By default every interface, IPv6 and
    /// IPv4.
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<IpAddr>,

    /// Address and port of the admin server, or "off". The default is skipped with a
    /// warning when it is taken. [default: 127.0.0.1:9095]
    #[arg(long, value_name = "IP:PORT")]
    pub admin_address: Option<String>,

    /// Time after SIGTERM during which new connections are still accepted. Health reports SERVING for
    /// the first third (10s at most), then NOT_SERVING. Open streams are then finished. At most 24h.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = at_most("24h"))]
    pub drain_timeout: Duration,

    /// Largest gRPC message that is read.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_RECV, value_parser = recv_size)]
    pub grpc_max_recv_msg_size: usize,

    /// Largest gRPC message that is sent.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_SEND, value_parser = send_size)]
    pub grpc_max_send_msg_size: usize,

    /// Largest HTTP request body; larger ones are answered with 413.
    #[arg(long, value_name = "SIZE", default_value = "32Mi", value_parser = body_size)]
    pub max_request_body_bytes: usize,

    /// Time without progress after which an incomplete request body is rejected with 408; at most
    /// 24h, 0s: never.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = at_most("24h"))]
    pub body_idle_timeout: Duration,

    /// Memory budget of the process, like 512Mi or 2Gi; "auto": the memory limit of the container, if
    /// it has one; "off": no limit. Requests beyond it are rejected with 429.
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = memory_budget)]
    pub memory_budget: MemoryBudget,

    /// Part of the memory budget for the prefix index: at least 1Mi, at most half of what request
    /// bodies and the index share; 0 turns it off. By default a third of that, and 512Mi without a
    /// budget.
    #[arg(long, value_name = "SIZE", value_parser = index_size)]
    pub prefix_index_bytes: Option<u64>,

    /// Threads that serve connections. By default one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_THREADS)))]
    pub worker_threads: Option<u16>,

    /// Accepted for compatibility: health is always served on the ext_proc port.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = clap::ArgAction::Set)]
    pub health_checking: bool,
}

impl ListenFlags {
    pub(super) fn addresses(&self, keda: Option<SocketAddr>) -> Result<ListenSettings, String> {
        let admin_text = given(&self.admin_address);
        let admin = match admin_text.unwrap_or(DEFAULT_ADMIN) {
            "off" => None,
            text => Some(text.parse::<SocketAddr>().map_err(|_| {
                format!("--admin-address: {text:?} is no address with a port; write for example 127.0.0.1:9095, [::1]:9095 or off")
            })?),
        };
        let ports = [
            ("--grpc-port", self.grpc_port),
            ("--grpc-health-port", self.grpc_health_port),
            ("--metrics-port", self.metrics_port),
        ];
        for (index, (first, port)) in ports.iter().enumerate() {
            for (second, other) in &ports[index + 1..] {
                if port == other && *port != 0 {
                    return Err(format!("{first} and {second} are both {port}; give each its own port"));
                }
            }
        }
        Ok(ListenSettings {
            bind: self.bind_address,
            grpc_port: self.grpc_port,
            health_port: self.grpc_health_port,
            metrics_port: self.metrics_port,
            admin,
            admin_given: admin_text.is_some(),
            keda,
        })
    }

    pub(super) fn limits(&self) -> MessageLimits {
        MessageLimits {
            max_recv_message: self.grpc_max_recv_msg_size,
            max_send_message: self.grpc_max_send_msg_size,
            max_request_body: self.max_request_body_bytes,
            body_idle_timeout: Some(self.body_idle_timeout).filter(|timeout| !timeout.is_zero()),
        }
    }

    pub(super) fn memory(&self) -> Result<MemorySettings, String> {
        if let (MemoryBudget::Bytes(budget), Some(index)) = (self.memory_budget, self.prefix_index_bytes) {
            let (counted, most) = (Budget::counted(budget), Budget::most_for_prefixes(budget));
            if index > most {
                return Err(format!(
                    "--prefix-index-bytes {index} is more than half of the {counted} bytes that --memory-budget {budget} has for requests and prefixes; write at most {most}"
                ));
            }
        }
        Ok(MemorySettings { budget: self.memory_budget, prefix_index: self.prefix_index_bytes })
    }

    pub(super) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        self.worker_threads.map_or_else(cores, usize::from)
    }
}

fn recv_size(text: &str) -> Result<usize, String> {
    message_size(if text.is_empty() { DEFAULT_RECV } else { text })
}

fn send_size(text: &str) -> Result<usize, String> {
    message_size(if text.is_empty() { DEFAULT_SEND } else { text })
}

/// A size in bytes as llm-d-router reads it: a quantity, with or without a `B` at its end.
fn message_size(text: &str) -> Result<usize, String> {
    let size = body_size(text.strip_suffix(['B', 'b']).unwrap_or(text))?;
    // The length of a gRPC message is a signed 32-bit number in llm-d-router.
    if size > i32::MAX as usize {
        return Err(format!("{text:?} is more than a gRPC message can have; the most is 2147483647"));
    }
    Ok(size)
}

/// Reads a memory budget: a size, `auto` or `off`.
pub(in crate::cli) fn memory_budget(text: &str) -> Result<MemoryBudget, String> {
    match text {
        "auto" | "" => Ok(MemoryBudget::Container),
        "off" => Ok(MemoryBudget::Off),
        _ => match parse_quantity(text).map_err(|error| format!("{error}, auto or off"))? {
            ..Budget::LEAST => {
                Err(format!("{text:?} is less than a picker needs; write at least 16Mi, auto or off"))
            }
            bytes => Ok(MemoryBudget::Bytes(bytes)),
        },
    }
}

fn index_size(text: &str) -> Result<u64, String> {
    match parse_quantity(text)? {
        1..LEAST_INDEX => Err("write 0, or a size from 1Mi, for example 256Mi".to_owned()),
        size => Ok(size),
    }
}

fn body_size(text: &str) -> Result<usize, String> {
    match usize::try_from(parse_quantity(text)?) {
        Ok(0) => Err("a limit of 0 lets nothing through; write for example 10Mi".to_owned()),
        Ok(size) => Ok(size),
        Err(_) => Err(format!("{text:?} is more than this machine can address")),
    }
}
