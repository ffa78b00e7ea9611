//! Servers that do nothing but respond with a page.

use std::io::{self, ErrorKind, Read, Write, stdin};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::page;

/// Pages that differ a little, as counters and gauges have more digits or fewer.
const VARIANTS: usize = 7;

struct Connection {
    stream: TcpStream,
    /// Index of the response that is being sent, and how many bytes of it have been.
    response: usize,
    sent: usize,
    /// `true` if it never responds.
    dead: bool,
}

/// Listens on `count` ports that respond and `dead` that don't, prints them and serves.
pub fn run(count: u16, dead: u16, apart: bool) {
    let mut responses: Vec<(Vec<u8>, usize)> =
        (0..VARIANTS).map(|variant| response(&page(variant))).collect();
    responses.push(response(&selected()));
    let mut poll = Poll::new().unwrap();
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut ports = Vec::new();
    for index in 0..count + dead {
        let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        ports.push(listener.local_addr().unwrap().port().to_string());
        // Two of five refuse the connection.
        if index >= count && index % 5 < 2 {
            continue;
        }
        poll.registry().register(&mut listener, Token(listeners.len()), Interest::READABLE).unwrap();
        listeners.push(listener);
    }
    println!("{}", ports.join(" "));
    let served = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&served);
    // Says how many responses there were, as often as it is asked.
    thread::spawn(move || {
        for _ in stdin().lines() {
            println!("{}", shown.load(Relaxed));
        }
    });
    let first = listeners.len();
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; 4096];
    let mut turn = 0;
    loop {
        served.store(turn as u64, Relaxed);
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled.unwrap(),
        }
        for event in &events {
            let Token(token) = event.token();
            if token < first {
                while let Ok((mut stream, _)) = listeners[token].accept() {
                    stream.set_nodelay(true).unwrap();
                    let place = connections.iter().position(Option::is_none).unwrap_or(connections.len());
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(first + place), interest).unwrap();
                    let dead = token >= usize::from(count);
                    let connection = Some(Connection { stream, response: 0, sent: usize::MAX, dead });
                    match connections.get_mut(place) {
                        Some(free) => *free = connection,
                        None => connections.push(connection),
                    }
                }
                continue;
            }
            let Some(connection) = &mut connections[token - first] else { continue };
            let served = serve(connection, event.is_readable(), &responses, &mut turn, &mut buffer, apart);
            if served.is_err() {
                connections[token - first] = None;
            }
        }
    }
}

fn serve(
    connection: &mut Connection,
    readable: bool,
    responses: &[(Vec<u8>, usize)],
    turn: &mut usize,
    buffer: &mut [u8],
    apart: bool,
) -> io::Result<()> {
    if readable {
        loop {
            match connection.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                // A request comes in one piece here.
                Ok(length) if !connection.dead => {
                    *turn += 1;
                    let selects = memchr::memmem::find(&buffer[..length], b"name%5B%5D").is_some();
                    (connection.response, connection.sent) =
                        (if selects { VARIANTS } else { *turn % VARIANTS }, 0);
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
    let (response, head) = &responses[connection.response];
    while connection.sent < response.len() {
        let end = if apart && connection.sent == 0 { *head } else { response.len() };
        match connection.stream.write(&response[connection.sent..end]) {
            Ok(sent) => connection.sent += sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A page with counts of another length.
fn page(variant: usize) -> String {
    let digits = &"60000"[..1 + variant % 5];
    page::page().replace("60000.0", &format!("{digits}.0"))
}

/// The part of a page that Python's prometheus_client sends when it is asked for the metrics in use.
fn selected() -> String {
    let used = ["num_requests_", "kv_cache_usage", "cache_config", "lora_requests"];
    let lines = page(0);
    let lines = lines.lines().filter(|line| used.iter().any(|name| line.contains(name)));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// A response as vLLM's server sends it, and how long its head is.
fn response(page: &str) -> (Vec<u8>, usize) {
    let head = format!(
        "HTTP/1.1 200 OK\r\ndate: Sat, 22 Aug 2026 08:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: {}\r\n\
         content-type: text/plain; version=0.0.4; charset=utf-8\r\n\r\n",
        page.len()
    );
    let length = head.len();
    ((head + page).into_bytes(), length)
}
