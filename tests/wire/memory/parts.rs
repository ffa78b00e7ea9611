//! Messages that pass through, of which the last byte doesn't come.

use bytes::Bytes;
use prost::Message;
use tokio::net::TcpStream;

use super::*;

const STREAMS: usize = 32;

/// The largest message.
const MESSAGE: usize = 4 * MI;

/// 128 MiB come in parts of messages, and none of them is complete.
#[tokio::test]
async fn memory_stays_below_the_budget_for_relayed_messages() {
    let process = Process::start(medium_budget(), 1, &[]);
    let limit = process.limit();
    let message = headers(&[(":method", "GET"), (":path", "/v1/models")], true).encode_to_vec();
    let first = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let part = Bytes::from([&[0][..], &(MESSAGE as u32).to_be_bytes(), &vec![0; MESSAGE - 1]].concat());
    let socket = TcpStream::connect(process.extproc).await.unwrap();
    let (mut send, connection) = h2::client::Builder::new().handshake::<_, Bytes>(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let (response, mut body) = begin_call(&mut send, &first).await;
        body.send_data(part.clone(), false).unwrap();
        streams.push((response, body));
    }
    // A debug build takes 60 MiB itself, which leaves room for 22 at most.
    let refused = || process.metric("usher_memory_refused_total");
    settle(|| {
        refused() > 0.0 && process.held() + refused() * MESSAGE as f64 >= (STREAMS * (MESSAGE - 1)) as f64
    })
    .await;
    assert!(refused() >= 10.0, "{} refused", refused());
    assert_eq!(process.metric("usher_connections_evicted_total"), 0.0);
    drop((streams, send));
    connection.abort();
    stayed_within(&process, medium_budget(), limit).await;
}
