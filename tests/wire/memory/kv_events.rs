//! Large messages of engines.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::*;

/// Engines, at addresses from 127.0.0.1 on.
const ENGINES: usize = 20;
/// Bytes of the largest message that is read.
const LARGEST: usize = 16 << 20;
/// Bytes of a picker's greeting, its READY, and its subscription to `kv@`.
const SAYS: usize = 64 + (2 + 25) + (2 + 1 + 3);

fn greeting(socket: &str) -> Vec<u8> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    greeting.extend(b"NULL");
    greeting.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(socket.len() as u8);
    ready.extend(socket.as_bytes());
    greeting.extend([4, ready.len() as u8]);
    greeting.extend(ready);
    greeting
}

/// A message of the largest size: a batch with one event of a type that nobody knows.
fn largest(topic: &str, sequence: u64) -> Vec<u8> {
    let mut payload = b"\x92\xcb\x41\xcd\xcd\x65\0\0\0\0\x91\x92\xa1?\xc6".to_vec();
    let rest = LARGEST - topic.len() - 8 - payload.len() - 4;
    payload.extend((rest as u32).to_be_bytes());
    payload.resize(payload.len() + rest, 7);
    let mut message = vec![1, topic.len() as u8];
    message.extend(topic.as_bytes());
    message.extend([1, 8]);
    message.extend(sequence.to_be_bytes());
    message.push(2);
    message.extend((payload.len() as u64).to_be_bytes());
    message.extend(payload);
    message
}

/// Messages of an engine that were handled.
fn handled(process: &Process, engine: usize) -> f64 {
    let name = "llm_d_epp_kv_cache_events_messages_received_total";
    process.metric(&format!("{name}{{pod_identifier=\"default/pod-{engine}\"}}"))
}

fn config(sockets: &str) -> String {
    format!(
        "--config-text=plugins: [{{type: precise-prefix-cache-producer, parameters: {{kvEventsConfig: {{{sockets}}}}}}}, {{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: precise-prefix-cache-producer}}}}]"
    )
}

/// The subscriptions of the picker to all engines.
fn subscriptions(listeners: &[TcpListener]) -> Vec<TcpStream> {
    let accept = |listener: &TcpListener| {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&greeting("PUB")).unwrap();
        stream.read_exact(&mut [0; SAYS]).unwrap();
        stream
    };
    listeners.iter().map(accept).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_kv_events_stay_within_the_budget() {
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = first.local_addr().unwrap().port();
    let others = (2..=ENGINES).map(|index| TcpListener::bind(format!("127.0.0.{index}:{port}")).unwrap());
    let listeners: Vec<_> = std::iter::once(first).chain(others).collect();
    let ports = config(&format!("podDiscoveryConfig: {{socketPort: {port}}}"));
    let process = Process::start(small_budget(), ENGINES, &[&ports]);
    let limit = process.limit();
    let mut streams = subscriptions(&listeners);
    // One after another: none is kept.
    for (index, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&largest("kv@pod@m", 0)).unwrap();
        settle(|| handled(&process, index + 1) == 1.0).await;
    }
    settle(|| process.metric("usher_memory_prefix_index_bytes") < LARGEST as f64 / 2.0).await;
    assert!(process.peak() < small_budget() * MI, "{}", process.peak());
    // All at once.
    let sent: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::task::spawn_blocking(move || {
                // One that waits for a turn for too long is closed.
                let _ = stream.write_all(&largest("kv@pod@m", 1));
                stream
            })
        })
        .collect();
    for sent in sent {
        drop(is_served(&process.connect().await).await);
        sent.await.unwrap();
    }
    stayed_within(&process, small_budget(), limit).await;
}

/// Connections to the central socket from an address without an endpoint, and from one with some.
#[tokio::test]
async fn central_socket_bounds_connections_and_messages() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bind = config(&format!("zmqEndpoint: 'tcp://127.0.0.1:{port}'"));
    let process = Process::start(small_budget(), 1, &[&bind]);
    let limit = process.limit();
    let start = Instant::now();
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    };
    // Two for the endpoint at this address, and two beside.
    let mut engines: Vec<_> = (0..4).map(|_| connect()).collect();
    for engine in &mut engines {
        engine.write_all(&greeting("PUB")).unwrap();
        engine.read_exact(&mut [0; SAYS]).unwrap();
    }
    for (sequence, engine) in engines.iter_mut().enumerate() {
        engine.write_all(&largest("kv@127.0.0.1:1@m", sequence as u64)).unwrap();
        settle(|| handled(&process, 1) > sequence as f64).await;
    }
    for _ in 0..300 {
        // Closed without a word.
        assert!(matches!(connect().read(&mut [0]), Ok(0) | Err(_)));
    }
    engines[0].write_all(&largest("kv@127.0.0.1:1@m", 4)).unwrap();
    settle(|| handled(&process, 1) > 4.0).await;
    stayed_within(&process, small_budget(), limit).await;
}
