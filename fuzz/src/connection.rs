//! A connection under any sequence of HTTP/2 frames.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::yield_now;
use usher::extproc::arrivals::RequestBody;
use usher::extproc::conn::{Lifetime, open, serve};
use usher::extproc::preface::PREFACE;
use usher::extproc::spread::Streams;
use usher::memory::{Budget, ConnectionRoom, Kind, TURN, Windows};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Frames of one input: more say nothing that fewer don't.
const MAX_FRAMES: usize = 300;

/// Budget of the process, in bytes: so small that a connection is closed whose unread data comes to
/// 512 KiB, or to 128 where there is no room at all. Some streams hold that.
const PROCESS: u64 = 4 << 20;

/// Trailers that a connection may have which no stream reads.
const TRAILERS: usize = 4;

/// Memory that an unread DATA frame takes besides its payload, in bytes.
const OVERHEAD: u64 = 256;

/// A frame for each line: a letter that says of what kind, and then the stream, a length and more, a
/// character each. `1` stands for 1, `a` for 49. What is no such letter is a frame of that kind whose
/// payload is the rest of the line.
///
/// - The connection ends when its client leaves, or earlier, and never with a panic.
/// - Memory of the connection, its streams and its unread data is given back then.
/// - It is closed for its unread data only where its client sent as much as that takes.
/// - Another whose client broke no rule answers a ping, and counts no data as unread once all streams
///   have ended.
pub fn connection(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    pass_over_known_panics();
    runtime.expect("a runtime").block_on(run(bytes));
}

/// Message of a debug assertion of h2, when a connection ends of which a stream still counts as open.
/// Known defect of h2 (hyperium/h2#880): the reset of a stream that nobody needs any more waits behind data
/// that the client has no window for, and its count stays where the client resets the stream instead.
const STILL_COUNTED: &str = "assertion failed: !self.has_streams()";

/// Lets that assertion fail: libFuzzer ends at any panic.
fn pass_over_known_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload_as_str() != Some(STILL_COUNTED) {
                hook(info);
            }
        }));
    });
}

async fn run(bytes: &[u8]) {
    let budget = Arc::new(Budget::of_process(PROCESS, None));
    let room = ConnectionRoom::new(&budget, Windows::LARGEST);
    let (client, server) = duplex(1 << 20);
    let served = tokio::spawn(async move {
        let lifetime = Lifetime::new();
        let Ok(Some(io)) = open(std::future::ready(Ok(server)), &lifetime).await else { return };
        let _ = serve(io, service_fn(respond), &lifetime, room, Streams::here()).await;
    });
    let mut client = Client::begin(client).await;
    for line in bytes.split(|byte| *byte == b'\n').take(MAX_FRAMES) {
        client.step(line).await;
    }
    if client.flush().await && client.is_orderly {
        client.end_streams().await;
        let is_alive = client.is_alive().await;
        if budget.evicted() == 0 {
            assert!(is_alive, "a connection ended whose client broke no rule");
            assert_eq!(budget.used(Kind::Unread), 0, "data counts as unread that no stream holds");
        }
    }
    // Unread data counts in steps of a turn.
    let is_much = client.data + TURN > PROCESS / 32;
    assert!(budget.evicted() == 0 || is_much, "closed for {} bytes of data", client.data);
    drop(client);
    let ended = tokio::time::timeout(Duration::from_secs(300), served).await.expect("it ends");
    let panic = ended.err().map(|error| error.into_panic());
    let message = panic.as_ref().and_then(|panic| panic.downcast_ref::<&str>());
    assert!(panic.is_none() || message == Some(&STILL_COUNTED), "{message:?}");
    // Tasks of streams end after the connection's.
    for _ in 0..100 {
        yield_now().await;
    }
    for kind in [Kind::Connections, Kind::Streams, Kind::Unread] {
        assert_eq!(budget.used(kind), 0, "{kind:?}");
    }
}

/// Reads a body or doesn't, as its path says.
async fn respond(request: Request<RequestBody>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, mut body) = request.into_parts();
    match head.uri.path() {
        "/read" => while body.frame().await.is_some_and(|frame| frame.is_ok()) {},
        "/one" => drop(body.frame().await),
        "/hold" => {
            let _ = (body.size_hint(), std::future::pending::<()>().await);
        }
        "/large" => return Ok(Response::new(Full::from(vec![b'x'; 100_000]))),
        _ => {}
    }
    Ok(Response::new(Full::default()))
}

struct Client {
    io: DuplexStream,
    /// Frames that are to be sent.
    out: Vec<u8>,
    /// Streams that were opened, and not ended by either side.
    open: Vec<u32>,
    /// Streams that it ended on its side, and the server may not have.
    half_closed: Vec<u32>,
    next: u32,
    /// Memory that the data takes that it sent, in bytes.
    data: u64,
    /// Data that it sent on each stream, in bytes.
    data_of: HashMap<u32, usize>,
    /// Trailers that it sent.
    trailers: usize,
    /// Seconds for which it was silent.
    slept: usize,
    /// `true` if it sent nothing that a server has to refuse.
    is_orderly: bool,
}

impl Client {
    async fn begin(io: DuplexStream) -> Self {
        let mut client = Self {
            io,
            out: PREFACE.to_vec(),
            open: Vec::new(),
            half_closed: Vec::new(),
            next: 1,
            data: 0,
            data_of: HashMap::new(),
            trailers: 0,
            slept: 0,
            is_orderly: true,
        };
        client.frame(SETTINGS, 0, 0, &[]);
        client.flush().await;
        client
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend([kind, flags]);
        self.out.extend(stream.to_be_bytes());
        self.out.extend(payload);
        if kind == DATA {
            self.data += payload.len() as u64 + OVERHEAD;
            let of_stream = self.data_of.entry(stream).or_default();
            *of_stream += payload.len();
            // No more has room in the stream's window before it is read.
            self.is_orderly &= *of_stream <= Windows::LARGEST.stream as usize;
        }
    }

    /// A stream by a character, of those that are open.
    fn stream(&self, letter: u8) -> Option<u32> {
        let letter = usize::from(letter.wrapping_sub(b'1'));
        self.open.get(letter % self.open.len().max(1)).copied()
    }

    async fn step(&mut self, line: &[u8]) {
        let letter = |at: usize| line.get(at).copied().unwrap_or(b'1');
        let number = |at: usize| usize::from(letter(at).wrapping_sub(b'0'));
        let named = self.stream(letter(1));
        match (letter(0), named) {
            (b'o', _) => {
                let path = [&b"/read"[..], b"/one", b"/hold", b"/large", b"/none"][number(1) % 5];
                self.open_stream(path, letter(2) == b'c', letter(2) == b'e');
            }
            (b'd', Some(stream)) => self.frame(DATA, 0, stream, &vec![b'd'; number(2)]),
            (b'l', Some(stream)) => self.frame(DATA, 0, stream, &vec![b'l'; 100 * number(2)]),
            (b'p', Some(stream)) => {
                let padding = number(2) % 80;
                let payload = [&[padding as u8][..], b"data", &vec![0; padding]].concat();
                self.frame(DATA, PADDED, stream, &payload);
            }
            (b'e', Some(stream)) => {
                self.frame(DATA, END_STREAM, stream, &vec![b'e'; number(2)]);
                self.half_close(stream);
            }
            (b't', Some(stream)) => {
                // A literal that isn't indexed: `x: y`.
                self.frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0, 1, b'x', 1, b'y']);
                self.half_close(stream);
                self.trailers += 1;
                self.is_orderly &= self.trailers <= TRAILERS;
            }
            (b'r', Some(stream)) => {
                self.frame(RST_STREAM, 0, stream, &8u32.to_be_bytes());
                self.open.retain(|open| *open != stream);
            }
            (b'w', stream) => {
                let stream = stream.filter(|_| letter(1) != b'0').unwrap_or(0);
                self.frame(WINDOW_UPDATE, 0, stream, &(number(2) as u32 + 1).to_be_bytes());
            }
            (b's', _) => {
                // The window of a stream, from nothing to some KiB.
                let window = 256 * number(1) as u32;
                self.frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
            }
            (b'i', _) => self.frame(PING, 0, 0, &[letter(1); 8]),
            (b'q', Some(stream)) => {
                // A stream that depends on itself is reset.
                let is_own = letter(2) == b's';
                let dependency = if is_own { stream } else { 0 };
                self.frame(PRIORITY, 0, stream, &[&dependency.to_be_bytes()[..], &[letter(3)]].concat());
                if is_own {
                    self.half_close(stream);
                }
            }
            (b'.', _) => drop(self.flush().await),
            // Streams linger that have ended on the server's side.
            (b'z', _) => {
                self.flush().await;
                let seconds = number(1) % 10;
                tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
                self.slept += seconds;
            }
            (b'd' | b'l' | b'p' | b'e' | b't' | b'r' | b'q', None) => {}
            (kind, stream) => {
                self.is_orderly = false;
                let flags = letter(2);
                self.frame(kind % 12, flags, stream.unwrap_or(0), line.get(3..).unwrap_or_default());
            }
        }
        // Empty frames, and many small ones that nobody reads, end a connection by intent.
        let is_empty = matches!(letter(0), b'd' | b'l') && number(2) == 0;
        // A client that answers no ping for long is taken for gone.
        self.is_orderly &= self.slept < 40;
        self.is_orderly &= !is_empty && !matches!((letter(0), number(2)), (b'w', 60..));
    }

    fn open_stream(&mut self, path: &[u8], continued: bool, ends: bool) {
        let stream = self.next;
        self.next += 2;
        // POST and http by their numbers in the static table, the rest as it is.
        let block = [&[0x83, 0x86, 0x04, path.len() as u8], path, &[0x01, 1, b'x']].concat();
        let flags = if ends { END_STREAM } else { 0 };
        if continued {
            let (first, rest) = block.split_at(block.len() / 2);
            self.frame(HEADERS, flags, stream, first);
            self.frame(CONTINUATION, END_HEADERS, stream, rest);
        } else {
            self.frame(HEADERS, END_HEADERS | flags, stream, &block);
        }
        let streams = if ends { &mut self.half_closed } else { &mut self.open };
        streams.push(stream);
    }

    /// Nothing follows on a stream but its reset.
    fn half_close(&mut self, stream: u32) {
        self.open.retain(|open| *open != stream);
        self.half_closed.push(stream);
    }

    /// Sends what there is, and lets the server run. Returns whether it still reads.
    async fn flush(&mut self) -> bool {
        let out = std::mem::take(&mut self.out);
        let is_sent = self.io.write_all(&out).await.is_ok();
        for _ in 0..20 {
            yield_now().await;
        }
        is_sent
    }

    /// Ends the streams that either side has open, and waits for those that linger.
    async fn end_streams(&mut self) {
        let half_closed = std::mem::take(&mut self.half_closed);
        for stream in std::mem::take(&mut self.open).into_iter().chain(half_closed) {
            self.frame(RST_STREAM, 0, stream, &8u32.to_be_bytes());
        }
        self.flush().await;
        tokio::time::sleep(Duration::from_secs(11)).await;
    }

    /// Returns `true` if a ping is answered.
    async fn is_alive(&mut self) -> bool {
        self.frame(PING, 0, 0, b"theend!!");
        if !self.flush().await {
            return false;
        }
        let mut head = [0; 9];
        while self.io.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            if self.io.read_exact(&mut payload).await.is_err() || head[3] == GOAWAY {
                return false;
            }
            if head[3] == PING && head[4] & ACK != 0 && payload == b"theend!!" {
                return true;
            }
        }
        false
    }
}
