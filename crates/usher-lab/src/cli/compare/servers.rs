//! Simulated servers that have nothing but metrics: vLLM's, with loads that change when
//! they are told to.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use usher_core::endpoints::ROLE_LABEL;
use usher_core::random::mix;

/// Largest head of a request.
const MOST_HEAD: usize = 16 << 10;

/// Between two looks at who was asked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Responses of each server until a picker knows them: what it got with the first it has read when it asks
/// again.
const RESPONSES: u64 = 2;

/// Waiting requests of the busiest server. Below what llm-d-router takes for a full one, or requests
/// would wait for metrics that never change.
const MOST_WAITING: usize = 4;

/// Load in a server's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Load {
    /// Requests that wait.
    pub(super) waiting: usize,
    /// Requests that run.
    pub(super) running: usize,
    /// Share of the KV cache in use, 0.05 to 0.75.
    pub(super) kv_cache: f64,
}

/// The servers.
pub(super) struct Servers {
    servers: Vec<Arc<Server>>,
    addresses: Vec<SocketAddr>,
    prefill: usize,
    seed: u64,
    /// Ends serving when dropped.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Server {
    /// The page, and how often it was asked for since it changed.
    page: Mutex<(Bytes, u64)>,
}

impl Servers {
    /// Starts them on free ports of loopback. The first `prefill` compute prompts.
    ///
    /// # Errors
    /// Returns an error if no port is free.
    pub(super) async fn start(count: u16, prefill: u16, seed: u64) -> anyhow::Result<Self> {
        let mut servers = Self {
            servers: Vec::new(),
            addresses: Vec::new(),
            prefill: usize::from(prefill),
            seed,
            _tasks: JoinSet::new(),
        };
        for _ in 0..count {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.context("cannot listen on 127.0.0.1")?;
            servers.addresses.push(listener.local_addr()?);
            let server = Arc::new(Server::default());
            servers._tasks.spawn(Arc::clone(&server).serve(listener));
            servers.servers.push(server);
        }
        Ok(servers)
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The servers as an endpoints file.
    pub(super) fn endpoints(&self) -> String {
        let entry = |(number, address): (usize, &SocketAddr)| {
            let role = if number < self.prefill { "prefill" } else { "decode" };
            let labels = if self.prefill == 0 { json!({}) } else { json!({ ROLE_LABEL: role }) };
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            json!({"name": name(number), "namespace": "default", "address": ip, "port": port, "labels": labels})
        };
        let entries: Vec<_> = self.addresses.iter().enumerate().map(entry).collect();
        format!("{:#}\n", json!({ "endpoints": entries }))
    }

    /// The servers' loads of a step. No two servers have the same KV cache in use, and none is the best
    /// in everything by design.
    pub(super) fn loads(&self, step: usize) -> Vec<Load> {
        let count = self.servers.len();
        let mut draw = mix(self.seed ^ mix(step as u64));
        let mut shuffled = || {
            let mut order: Vec<usize> = (0..count).collect();
            for at in (1..count).rev() {
                draw = mix(draw);
                order.swap(at, (draw % (at as u64 + 1)) as usize);
            }
            order
        };
        let (waiting, running, kv_cache) = (shuffled(), shuffled(), shuffled());
        (0..count)
            .map(|at| Load {
                waiting: waiting[at] % (MOST_WAITING + 1),
                running: running[at] * 3,
                kv_cache: 0.05 + 0.7 * kv_cache[at] as f64 / count as f64,
            })
            .collect()
    }

    /// Gives all servers the loads of a step.
    pub(super) fn set(&self, step: usize) {
        for (server, load) in self.servers.iter().zip(self.loads(step)) {
            *server.page.lock().unwrap_or_else(PoisonError::into_inner) = (page(load).into(), 0);
        }
    }

    /// Waits until a picker has read what all servers say now, or for this long. Whether it has.
    pub(super) async fn read_by_all(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let is_read =
            |server: &Arc<Server>| server.page.lock().unwrap_or_else(PoisonError::into_inner).1 >= RESPONSES;
        while !self.servers.iter().all(is_read) {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(POLL_INTERVAL).await;
        }
        true
    }
}

/// Name of a server.
pub(super) fn name(number: usize) -> String {
    format!("server-{number}")
}

impl Server {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            // Without a file to spare, the next look may find one.
            let Ok((stream, _)) = listener.accept().await else {
                sleep(POLL_INTERVAL).await;
                continue;
            };
            connections.spawn(Arc::clone(&self).respond(stream));
            while connections.try_join_next().is_some() {}
        }
    }

    /// Answers requests until one is none, or the connection ends.
    async fn respond(self: Arc<Self>, mut stream: TcpStream) {
        let mut head = Vec::new();
        loop {
            while let Some(end) = memchr::memmem::find(&head, b"\r\n\r\n") {
                let response = self.response_to(&head[..end]);
                head.drain(..end + 4);
                if stream.write_all(&response).await.is_err() {
                    return;
                }
            }
            let read = stream.read_buf(&mut head).await;
            if !matches!(read, Ok(1..)) || head.len() > MOST_HEAD {
                return;
            }
        }
    }

    fn response_to(&self, head: &[u8]) -> Vec<u8> {
        if !head.starts_with(b"GET /metrics") {
            return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
        }
        let mut current = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        current.1 += 1;
        let page = current.0.clone();
        let length = page.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {length}\r\n\r\n"
        );
        [head.as_bytes(), &page].concat()
    }
}

/// A page as vLLM has it, as far as pickers read it.
fn page(load: Load) -> String {
    let Load { waiting, running, kv_cache } = load;
    let gauges = [
        ("num_requests_waiting", "model_name=\"m\"", waiting as f64),
        ("num_requests_running", "model_name=\"m\"", running as f64),
        ("kv_cache_usage_perc", "model_name=\"m\"", kv_cache),
        ("cache_config_info", "block_size=\"16\",num_gpu_blocks=\"27000\"", 1.0),
        ("lora_requests_info", "max_lora=\"1\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"", 1.0),
    ];
    gauges.iter().fold(String::new(), |mut text, (name, labels, value)| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "# TYPE vllm:{name} gauge\nvllm:{name}{{{labels}}} {value}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn loads_follow_from_the_seed_and_differ() {
        let servers = Servers::start(7, 2, 3).await.unwrap();
        let loads = servers.loads(4);
        assert_eq!(loads, Servers::start(7, 2, 3).await.unwrap().loads(4));
        assert_ne!(loads, servers.loads(5));
        assert_ne!(loads, Servers::start(7, 2, 4).await.unwrap().loads(4));
        for (at, load) in loads.iter().enumerate() {
            assert!(loads[..at].iter().all(|other| other.kv_cache != load.kv_cache), "{loads:?}");
            assert!(load.waiting <= MOST_WAITING && load.kv_cache < 0.8, "{load:?}");
        }
        let endpoints: serde_json::Value = serde_json::from_str(&servers.endpoints()).unwrap();
        let roles: Vec<_> =
            (0..7).map(|at| endpoints["endpoints"][at]["labels"][ROLE_LABEL].as_str().unwrap()).collect();
        assert_eq!(roles, ["prefill", "prefill", "decode", "decode", "decode", "decode", "decode"]);
    }

    #[tokio::test]
    async fn scrapes_count_since_the_last_change() {
        let servers = Servers::start(1, 0, 0).await.unwrap();
        servers.set(0);
        let mut stream = TcpStream::connect(servers.addresses()[0]).await.unwrap();
        for asked in [false, true] {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
            let mut response = Vec::new();
            while !response.ends_with(b"waiting_lora_adapters=\"\"} 1\n") {
                assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0);
            }
            assert_eq!(servers.read_by_all(Duration::ZERO).await, asked);
        }
        servers.set(1);
        assert!(!servers.read_by_all(Duration::ZERO).await);
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut response = Vec::new();
        assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0);
        assert!(response.starts_with(b"HTTP/1.1 404"), "{response:?}");
    }
}
