//! The publisher of a server: between its cache and its sockets.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::Form;
use super::contents::Contents;
use super::encode::{Event, batch};
use super::journal::{Journal, Numbered};
use crate::sim::faults::KvEventsFault;
use crate::sim::kv::{BYTES_PER_TOKEN, KvChange};

/// Messages that a subscriber may be behind; further ones are lost, as ZeroMQ's are.
const BEHIND: usize = 1024;

#[derive(Debug, Default)]
struct Inner {
    contents: Contents,
    journal: Journal,
    // Counted anew with each restart, which ends their connections.
    subscribers: Arc<AtomicUsize>,
}

/// The publisher of a server.
#[derive(Debug)]
pub(crate) struct Publisher {
    form: Form,
    topic: String,
    block_size: u32,
    // Held for single steps, inside the engine's lock or without it.
    inner: Mutex<Inner>,
    messages: broadcast::Sender<Numbered>,
    restarts: watch::Sender<u64>,
}

impl Publisher {
    /// The publisher of the server of a model at an address.
    pub(crate) fn new(form: Form, at: SocketAddr, model: &str, block_size: u32) -> Self {
        Self {
            form,
            topic: format!("kv@{at}@{model}"),
            block_size,
            inner: Mutex::default(),
            messages: broadcast::Sender::new(BEHIND),
            restarts: watch::Sender::new(0),
        }
    }

    /// A request comes with these blocks of a text.
    pub(crate) fn expect(
        self: &Arc<Self>,
        blocks: &[u64],
        text: &[u8],
        adapter: Option<&Arc<str>>,
    ) -> Expected {
        let bytes = self.block_size as usize * BYTES_PER_TOKEN;
        self.lock().contents.enter(blocks, text, bytes, adapter);
        Expected { publisher: Arc::clone(self), blocks: blocks.to_vec() }
    }

    /// Publishes changes of the cache.
    pub(crate) fn publish(&self, changes: &[KvChange]) {
        let mut inner = self.lock();
        let events = events(&inner.contents, changes);
        if events.is_empty() {
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let payload = batch(self.form, time, &events, self.block_size);
        let due = inner.journal.add(payload);
        self.send(due);
    }

    /// Changes how messages are lost.
    pub(crate) fn set_fault(&self, fault: Option<KvEventsFault>) {
        let mut inner = self.lock();
        let due = inner.journal.set_fault(fault);
        self.send(due);
    }

    /// Begins anew. The cache is empty.
    pub(crate) fn restart(&self) {
        let mut inner = self.lock();
        inner.journal.restart();
        inner.subscribers = Arc::default();
        self.restarts.send_modify(|count| *count += 1);
    }

    /// Counters for `/admin/state`.
    pub(crate) fn state(&self) -> Value {
        let inner = self.lock();
        let subscribers = inner.subscribers.load(Ordering::Relaxed);
        json!({"subscribers": subscribers, "batches": inner.journal.next()})
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn messages(&self) -> broadcast::Receiver<Numbered> {
        self.messages.subscribe()
    }

    pub(super) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }

    pub(super) fn replay(&self, from: u64) -> Option<Vec<Numbered>> {
        self.lock().journal.replay(from)
    }

    /// Counts a subscriber until the guard is dropped.
    pub(super) fn subscribed(&self) -> Subscribed {
        let subscribers = Arc::clone(&self.lock().subscribers);
        subscribers.fetch_add(1, Ordering::Relaxed);
        Subscribed(subscribers)
    }

    // In the order of their numbers, as the lock is held.
    fn send(&self, due: impl IntoIterator<Item = Numbered>) {
        for message in due {
            // Without subscribers it is lost.
            let _ = self.messages.send(message);
        }
    }

    // Nothing panics while it holds this lock.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The contents of a request's blocks, known until this is dropped.
#[derive(Debug)]
pub(crate) struct Expected {
    publisher: Arc<Publisher>,
    blocks: Vec<u64>,
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.publisher.lock().contents.leave(&self.blocks);
    }
}

/// A subscriber that counts.
#[derive(Debug)]
pub(super) struct Subscribed(Arc<AtomicUsize>);

impl Drop for Subscribed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Events of changes: blocks that follow each other are in one.
fn events(contents: &Contents, changes: &[KvChange]) -> Vec<Event> {
    let mut events = Vec::new();
    for change in changes {
        match *change {
            KvChange::Removed(hash) => match events.last_mut() {
                Some(Event::Removed { hashes }) => hashes.push(hash),
                _ => events.push(Event::Removed { hashes: vec![hash] }),
            },
            KvChange::Stored(hash) => {
                // Requests leave only when their blocks are there.
                let Some(content) = contents.get(hash) else { continue };
                match events.last_mut() {
                    Some(Event::Stored { hashes, tokens, .. })
                        if hashes.last().copied() == content.parent =>
                    {
                        hashes.push(hash);
                        tokens.extend_from_slice(&content.tokens);
                    }
                    _ => events.push(Event::Stored {
                        hashes: vec![hash],
                        parent: content.parent,
                        tokens: content.tokens.to_vec(),
                        adapter: content.adapter.clone(),
                    }),
                }
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_blocks_are_one_event() {
        let mut contents = Contents::default();
        contents.enter(&[1, 2, 3], b"abcdefghijklmn", 4, None);
        contents.enter(&[1, 5], b"abcdxxxx", 4, None);
        let [stored, removed]: [fn(u64) -> KvChange; 2] = [KvChange::Stored, KvChange::Removed];
        let changes = [stored(1), stored(2), stored(5), removed(8), removed(9), stored(4)];
        let token = |text: &[u8; 4]| u32::from_le_bytes(*text);
        let expected = [
            Event::Stored {
                hashes: vec![1, 2],
                parent: None,
                tokens: vec![token(b"abcd"), token(b"efgh")],
                adapter: None,
            },
            Event::Stored { hashes: vec![5], parent: Some(1), tokens: vec![token(b"xxxx")], adapter: None },
            Event::Removed { hashes: vec![8, 9] },
        ];
        assert_eq!(events(&contents, &changes), expected, "nobody has block 4");
        contents.leave(&[1, 2, 3]);
        assert!(contents.get(1).is_some() && contents.get(2).is_none());
        contents.leave(&[1, 5]);
        assert!(contents.get(1).is_none());
    }
}
