//! An engine's sockets, by the crate `zeromq`, and its events, as vLLM has them.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rmpv::Value;
use zeromq::{Endpoint, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::BLOCK;

const TOPIC: &str = "kv@engine@m";

/// Batches that can be replayed.
type Buffer = Arc<Mutex<Vec<(u64, Bytes)>>>;

pub struct Engine {
    socket: PubSocket,
    pub port: u16,
    address: String,
    topic: String,
    sequence: u64,
    buffer: Buffer,
}

impl Engine {
    /// Publishes at this address, on this port or any.
    pub async fn at(address: &str, port: u16) -> Self {
        let mut socket = PubSocket::new();
        let bound = socket.bind(&format!("tcp://{address}:{port}")).await.unwrap();
        let Endpoint::Tcp(_, port) = bound else { panic!("{bound:?}") };
        let (address, topic) = (address.to_owned(), TOPIC.to_owned());
        Self { socket, port, address, topic, sequence: 0, buffer: Buffer::default() }
    }

    /// Publishes with this topic to a socket that it connects to, when somebody is there.
    pub async fn connected_to(address: &str, topic: &str) -> Self {
        let mut socket = PubSocket::new();
        while socket.connect(address).await.is_err() {
            tokio::task::yield_now().await;
        }
        let (address, topic) = (address.to_owned(), topic.to_owned());
        Self { socket, port: 0, address, topic, sequence: 0, buffer: Buffer::default() }
    }

    /// Replays from a socket on the port above.
    pub async fn replays(&self) {
        let mut router = RouterSocket::new();
        router.bind(&format!("tcp://{}:{}", self.address, self.port + 1)).await.unwrap();
        let buffer = Arc::clone(&self.buffer);
        tokio::spawn(async move {
            while let Ok(request) = router.recv().await {
                let frames = request.into_vec();
                let [identity, delimiter, from] = &frames[..] else { panic!("{frames:?}") };
                assert!(delimiter.is_empty());
                let from = u64::from_be_bytes(from[..].try_into().unwrap());
                let kept = buffer.lock().unwrap().clone();
                let end = (u64::MAX, Bytes::new());
                for (sequence, payload) in kept.into_iter().filter(|(number, _)| *number >= from).chain([end])
                {
                    let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
                    let frames = [identity.clone(), Bytes::new(), TOPIC.into(), sequence, payload];
                    router.send(ZmqMessage::try_from(frames.to_vec()).unwrap()).await.unwrap();
                }
            }
        });
    }

    /// Holds the blocks of these tokens, behind the block that ends with the token `parent`.
    pub async fn store(&mut self, parent: Option<u32>, tokens: Range<u32>) {
        let event = stored(parent, tokens);
        self.publish(event, true).await;
    }

    /// Holds the full blocks of a prompt of these tokens.
    pub async fn hold(&mut self, ids: &[u32]) {
        let full = ids.chunks_exact(BLOCK as usize);
        let hashes = (1_u64..).zip(full).map(|(index, _)| Value::from(index << 41)).collect();
        let ids = ids.iter().take(ids.len() / BLOCK as usize * BLOCK as usize).map(|&id| id.into()).collect();
        let (hashes, ids) = (Value::Array(hashes), Value::Array(ids));
        let event =
            vec!["BlockStored".into(), hashes, Value::Nil, ids, BLOCK.into(), Value::Nil, "GPU".into()];
        self.publish(event, true).await;
    }

    /// The same in a message that is lost.
    pub async fn lose(&mut self, parent: Option<u32>, tokens: Range<u32>) {
        let event = stored(parent, tokens);
        self.publish(event, false).await;
    }

    /// Gives up the blocks of these tokens.
    pub async fn remove(&mut self, tokens: Range<u32>) {
        let event = vec!["BlockRemoved".into(), hashes(tokens), "GPU".into()];
        self.publish(event, true).await;
    }

    /// Holds a block in a KV cache group of this attention, and gives it up.
    pub async fn hold_in_group(&mut self, attention: &str) {
        let (group, hashes) = (Value::from(1), hashes(0..BLOCK));
        let mut event = stored(None, 0..BLOCK);
        event.extend([Value::Nil, Value::Nil, group.clone(), attention.into()]);
        self.publish(event, true).await;
        self.publish(vec!["BlockRemoved".into(), hashes, "GPU".into(), group], true).await;
    }

    /// Gives up everything.
    pub async fn clear(&mut self) {
        self.publish(vec!["AllBlocksCleared".into()], true).await;
    }

    async fn publish(&mut self, event: Vec<Value>, is_sent: bool) {
        let batch = Value::Array(vec![1e9.into(), Value::Array(vec![Value::Array(event)]), Value::Nil]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        let payload = Bytes::from(payload);
        self.buffer.lock().unwrap().push((self.sequence, payload.clone()));
        let sequence = Bytes::copy_from_slice(&self.sequence.to_be_bytes());
        self.sequence += 1;
        if is_sent {
            let frames = vec![Bytes::from(self.topic.clone()), sequence, payload];
            self.socket.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
        }
    }
}

fn stored(parent: Option<u32>, tokens: Range<u32>) -> Vec<Value> {
    let parent = parent.map_or(Value::Nil, hash);
    let ids = Value::Array(tokens.clone().map(Value::from).collect());
    vec!["BlockStored".into(), hashes(tokens), parent, ids, BLOCK.into(), Value::Nil, "GPU".into()]
}

fn hashes(tokens: Range<u32>) -> Value {
    let ends = tokens.skip(BLOCK as usize - 1).step_by(BLOCK as usize);
    Value::Array(ends.map(hash).collect())
}

/// Hash of the block that ends with this token.
fn hash(last: u32) -> Value {
    (u64::from(last) + (1 << 40)).into()
}
