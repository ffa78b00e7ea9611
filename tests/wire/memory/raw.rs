//! HTTP/2 frame by frame, as a client may send it that keeps to no habit of ours.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use prost::Message;
use socket2::{Domain, Socket, Type};

use crate::support::{body, headers};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;

pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Returns `true` if it ends its stream, in one way or the other.
    pub fn ends(&self, stream: u32) -> bool {
        let last = matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0;
        self.stream == stream && (last || self.kind == RST_STREAM)
    }
}

/// A connection.
pub struct Raw {
    socket: TcpStream,
    /// Bytes that are to be sent.
    out: Vec<u8>,
}

impl Raw {
    /// One that takes so many bytes of replies on each stream.
    pub fn connect(address: SocketAddr, window: u32) -> Self {
        Self::connect_from(Ipv4Addr::LOCALHOST, address, window)
    }

    /// One whose socket has room for few frames, and that gives up sending where it would wait for long.
    pub fn deaf(address: SocketAddr) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        socket.set_send_buffer_size(64 << 10).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        Self::over(socket, address, 1 << 16)
    }

    /// The same from this address.
    pub fn connect_from(source: Ipv4Addr, address: SocketAddr, window: u32) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        Self::over(socket, address, window)
    }

    fn over(socket: Socket, address: SocketAddr, window: u32) -> Self {
        socket.connect(&address.into()).unwrap();
        let mut raw = Self { socket: socket.into(), out: Vec::new() };
        raw.socket.set_nodelay(true).unwrap();
        raw.out.extend(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        raw.frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
        raw.frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes());
        raw
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend([kind, flags]);
        self.out.extend(stream.to_be_bytes());
        self.out.extend(payload);
    }

    /// Opens a stream of the ext_proc service.
    pub fn open(&mut self, stream: u32) {
        self.call(stream, "/envoy.service.ext_proc.v3.ExternalProcessor/Process");
    }

    /// Opens a call of any method.
    pub fn call(&mut self, stream: u32, path: &str) {
        let block = Self::head(path);
        self.frame(HEADERS, END_HEADERS, stream, &block);
    }

    /// Opens a call and ends it, with a length of its body that isn't so.
    pub fn broken(&mut self, stream: u32, path: &str) {
        let length = [&[0x0f, 0x0d, 1][..], b"5"].concat();
        let block = [Self::head(path), length].concat();
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, &block);
    }

    fn head(path: &str) -> Vec<u8> {
        let literal = |prefix: &[u8], text: &str| [prefix, &[text.len() as u8], text.as_bytes()].concat();
        // POST and http by their numbers in the static table, the rest as it is.
        [
            vec![0x83, 0x86],
            literal(&[0x04], path),
            literal(&[0x01], "x"),
            literal(&[0x0f, 0x10], "application/grpc"),
            literal(&[0x00, 2, b't', b'e'], "trailers"),
        ]
        .concat()
    }

    /// Sends a gRPC message in a frame of its own.
    pub fn message(&mut self, stream: u32, message: &impl Message) {
        let bytes = message.encode_to_vec();
        let framed = [&[0][..], &(bytes.len() as u32).to_be_bytes(), &bytes].concat();
        self.frame(DATA, 0, stream, &framed);
    }

    pub fn request(&mut self, stream: u32, pairs: &[(&str, &str)], end: bool) {
        self.message(stream, &headers(pairs, end));
    }

    pub fn body(&mut self, stream: u32, bytes: &[u8], end: bool) {
        self.message(stream, &body(bytes, end));
    }

    pub fn reset(&mut self, stream: u32) {
        self.frame(RST_STREAM, 0, stream, &8u32.to_be_bytes());
    }

    pub fn send(&mut self) {
        self.socket.write_all(&std::mem::take(&mut self.out)).unwrap();
    }

    /// Sends what there is, and says whether the connection took it.
    pub fn try_send(&mut self) -> bool {
        self.socket.write_all(&std::mem::take(&mut self.out)).is_ok()
    }

    /// The next frame; `None` at the end.
    pub fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        self.socket.read_exact(&mut payload).ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Sends what there is, and reads until everything sent before has been seen; false where the
    /// connection ends.
    pub fn is_alive(&mut self) -> bool {
        self.frame(PING, 0, 0, &[7; 8]);
        self.send();
        while let Some(frame) = self.next() {
            if (frame.kind, frame.flags) == (PING, ACK) {
                return true;
            }
            if frame.kind == GOAWAY {
                return false;
            }
        }
        false
    }

    /// Sends what there is, and returns the frames that come until everything sent before has been seen.
    pub fn frames(&mut self) -> Vec<Frame> {
        self.frame(PING, 0, 0, &[8; 8]);
        self.send();
        let mut frames = Vec::new();
        loop {
            let frame = self.next().expect("the connection ended");
            if (frame.kind, frame.flags) == (PING, ACK) && frame.payload == [8; 8] {
                return frames;
            }
            frames.push(frame);
        }
    }

    /// Sends what there is, and reads until a stream has ended.
    pub fn ended(&mut self, stream: u32) {
        self.send();
        while !self.next().expect("the connection ended").ends(stream) {}
    }
}
