//! The least that scraping can cost: one thread, one buffer, raw sockets; it finds the end
//! of a page by its length and looks at the first bytes of every line.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use usher::endpoints::{Clock, Load};

use crate::ages;

const INTERVAL: Duration = Duration::from_millis(50);

/// Ticks into which the interval is divided.
const TICKS: usize = 10;

const NAMES: [&[u8]; 5] = [
    b"vllm:num_requests_waiting",
    b"vllm:num_requests_running",
    b"vllm:kv_cache_usage_perc",
    b"vllm:cache_config_info",
    b"vllm:lora_requests_info",
];

struct Connection {
    stream: TcpStream,
    load: Arc<Load>,
    /// Bytes of the page that have not arrived; `None` before its head has.
    left: Option<usize>,
    asked: bool,
}

/// Scrapes these ports for as long as standard input wants it.
pub fn run(ports: &[u16]) {
    let clock = Clock::start();
    let mut poll = Poll::new().unwrap();
    let mut connections = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        let mut stream = TcpStream::connect(address).unwrap();
        poll.registry().register(&mut stream, Token(index), Interest::READABLE).unwrap();
        connections.push(Connection { stream, load: Arc::default(), left: None, asked: false });
    }
    ages::watch(connections.iter().map(|connection| Arc::clone(&connection.load)).collect(), clock.clone());
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; 64 << 10];
    let mut next = Instant::now() + INTERVAL;
    let mut tick = 0;
    loop {
        if Instant::now() >= next {
            let request = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
            for connection in connections.iter_mut().skip(tick).step_by(TICKS).filter(|c| !c.asked) {
                connection.asked = connection.stream.write_all(request).is_ok();
            }
            tick = (tick + 1) % TICKS;
            next += INTERVAL / TICKS as u32;
        }
        let timeout = next.saturating_duration_since(Instant::now());
        match poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled.unwrap(),
        }
        for event in &events {
            read(&mut connections[event.token().0], &mut buffer, &clock);
        }
    }
}

fn read(connection: &mut Connection, buffer: &mut [u8], clock: &Clock) {
    loop {
        let Ok(count @ 1..) = connection.stream.read(buffer) else { return };
        let mut piece = &buffer[..count];
        let left = connection.left.unwrap_or_else(|| {
            let end = memchr::memmem::find(piece, b"\r\n\r\n").unwrap() + 4;
            let (head, body) = piece.split_at(end);
            let head = std::str::from_utf8(head).unwrap();
            piece = body;
            let (_, length) = head.split_once("content-length: ").unwrap();
            length.split_once('\r').unwrap().0.parse().unwrap()
        });
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', piece) {
            let line = &piece[start..end];
            if let Some(name) = NAMES.iter().position(|name| line.starts_with(name)) {
                connection.load.waiting.set(name as f64, clock.now_ms());
            }
            start = end + 1;
        }
        connection.left = Some(left - piece.len()).filter(|left| *left > 0);
        if connection.left.is_none() {
            connection.asked = false;
            return;
        }
    }
}
