//! Handshakes of TLS that begin and don't go on.

use std::io::Write;
use std::net::TcpStream;

use super::process::TLS;
use super::*;

/// More than half of the budget, if each takes what is sent on it.
const SILENT: usize = 1000;

/// The longest message of a handshake that is taken, but for its end.
const BYTES: usize = 60 << 10;

#[tokio::test]
async fn memory_stays_below_the_budget_for_long_handshakes() {
    let process = Process::start(small_budget(), 1, &[TLS]);
    // A ClientHello of 65,535 bytes, in records of 16 KiB.
    let mut hello = Vec::new();
    for (index, part) in vec![0; BYTES].chunks(16 << 10).enumerate() {
        let head: &[u8] = if index == 0 { &[1, 0, 0xff, 0xff] } else { &[] };
        hello.extend([22, 3, 1]);
        hello.extend(((head.len() + part.len()) as u16).to_be_bytes());
        hello.extend(head.iter().chain(part));
    }
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        let mut socket = TcpStream::connect(process.extproc).unwrap();
        // The oldest are closed.
        let _ = socket.write_all(&hello);
        silent.push(socket);
    }
    let taken = || process.metric("usher_memory_connections_bytes");
    settle(|| taken() > 0.0).await;
    let accepted = || process.metric("usher_connections_accepted_total");
    settle(|| accepted() == SILENT as f64).await;
    // All together have 6 MiB, of some that are silent and 90 that aren't.
    settle(|| process.metric("usher_connections_refused_total") > 0.0).await;
    settle(|| taken() <= (6 * MI) as f64).await;
    let peak = process.peak();
    assert!(peak < small_budget() * MI, "{peak} bytes");
    // None is open after ten seconds.
    drop(silent);
    settle(|| taken() == 0.0).await;
}

/// Names that are none, of which the library for TLS warns each time.
#[tokio::test]
async fn names_of_handshakes_cannot_flood_the_log() {
    let process = Process::start(small_budget(), 1, &[TLS]);
    for _ in 0..20 {
        let mut socket = TcpStream::connect(process.extproc).unwrap();
        socket.write_all(&hello_to(b"secret name")).unwrap();
    }
    settle(|| process.metric("usher_connections_unopened_total") == 20.0).await;
    assert_eq!(process.logged("secret name"), 0, "{:#?}", process.warnings());
}

/// A ClientHello for a server of this name (RFC 8446, section 4.1.2, and RFC 6066, section 3).
fn hello_to(name: &[u8]) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = sized(&[&[0], &sized(name)[..]].concat());
    let extensions = sized(&[&[0, 0], &sized(&names)[..]].concat());
    let random = [7; 32];
    let hello = [&[3, 3], &random[..], &[0, 0, 2, 0x13, 1, 1, 0], &extensions].concat();
    let message = [&[1, 0], &sized(&hello)[..]].concat();
    [&[22, 3, 1], &sized(&message)[..]].concat()
}
