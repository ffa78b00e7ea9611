//! Gateways that send and don't read: what they send stays unread.

use bytes::Bytes;
use http::Request;
use prost::Message;
use tokio::net::TcpStream;

use super::*;

const CONNECTIONS: usize = 16;
const STREAMS: usize = 20;
const EACH: usize = 256 << 10;

/// 80 MiB are sent on streams that can't be answered, so that nobody reads them, to a process
/// that may take 96. Half of that is the resident part of a debug build's file alone.
#[tokio::test]
async fn the_process_stays_below_its_budget_whatever_nobody_reads() {
    let process = Process::start(96, 1, &[]);
    let limit = process.limit();
    let mut connections = Vec::new();
    let message = headers(&[(":method", "GET"), (":path", "/v1/models")], true).encode_to_vec();
    let first = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    for _ in 0..CONNECTIONS {
        let socket = TcpStream::connect(process.extproc).await.unwrap();
        let (mut send, mut connection) = h2::client::Builder::new()
            // No room for any reply.
            .initial_window_size(0)
            .handshake::<_, Bytes>(socket)
            .await
            .unwrap();
        let mut pings = connection.ping_pong().unwrap();
        let task = tokio::spawn(connection);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let request = Request::post("http://x/envoy.service.ext_proc.v3.ExternalProcessor/Process")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .unwrap();
            send = send.ready().await.unwrap();
            let (response, mut body) = send.send_request(request, false).unwrap();
            body.send_data(first.clone().into(), false).unwrap();
            let response = response.await.unwrap();
            body.send_data(vec![0; EACH].into(), false).unwrap();
            streams.push((response, body));
        }
        // What the windows let through is there when it has answered some times.
        for _ in 0..20 {
            pings.ping(h2::Ping::opaque()).await.unwrap();
        }
        connections.push((send, streams, task));
    }
    let peak = process.peak();
    assert!(peak < 96 * MI, "{peak} bytes");
    connections.iter().for_each(|(.., task)| task.abort());
    drop(connections);
    // The one that asks for metrics counts.
    settle(|| process.metric("usher_memory_connections_bytes") <= 65536.0).await;
    stayed_within(&process, 96, limit).await;
}
