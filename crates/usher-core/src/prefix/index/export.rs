//! Exports of the blocks that this process learned of, for other processes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::holders::Holders;
use super::recent::OWN;

/// Blocks that an endpoint holds, for another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// [Identity](crate::endpoints::Endpoint::identity) of the endpoint. Slots mean nothing in
    /// another process, and a name may be that of a later pod.
    pub endpoint: Arc<str>,
    /// Block hashes, the blocks of a prompt in their order.
    pub hashes: Vec<u64>,
}

/// Progress of an export. Good for the index that gave it only: another one takes it as too
/// old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The mark as a number, to be sent.
    pub fn to_number(self) -> u64 {
        self.0
    }

    /// A mark that was sent as a number.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Blocks that were added since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Mark that the next export goes on from.
    pub mark: Mark,
    /// The blocks with their endpoints, the oldest first.
    pub held: Vec<Held>,
    /// The mark was too old or another index's, and what was added in between is not
    /// remembered. `held` is empty, and an export of [all](super::PrefixIndex::export_all) has
    /// everything.
    pub missed: bool,
}

/// The blocks that were added last.
#[derive(Debug)]
pub(super) struct Ring {
    // Taken once for every request that is added and has new blocks, and by exports.
    news: Mutex<News>,
    /// Blocks that are remembered.
    room: usize,
}

#[derive(Debug)]
struct News {
    hashes: VecDeque<u64>,
    /// Identities of the endpoints that got the blocks, each from a number on, up to the next one's.
    from: VecDeque<(u64, Arc<str>)>,
    /// Number of the next block. The first has a random one, so that a mark of another
    /// index is none of this one's.
    next: u64,
}

impl News {
    /// Number of the oldest block that is remembered.
    fn first(&self) -> u64 {
        self.next - self.hashes.len() as u64
    }

    fn push(&mut self, endpoint: &Arc<str>, hash: u64, room: usize) {
        if self.hashes.len() == room {
            self.hashes.pop_front();
            let first = self.first();
            if self.from.get(1).is_some_and(|(from, _)| *from <= first) {
                self.from.pop_front();
            }
        }
        grow(&mut self.hashes, room);
        grow(&mut self.from, room);
        if self.from.back().is_none_or(|(_, last)| last != endpoint) {
            self.from.push_back((self.next, Arc::clone(endpoint)));
        }
        self.hashes.push_back(hash);
        self.next += 1;
    }
}

/// Makes room for one more where there is none, and never for more than `most`.
fn grow<T>(ring: &mut VecDeque<T>, most: usize) {
    let len = ring.len();
    if len == ring.capacity() {
        ring.reserve_exact((len / 2).max(16).min(most.saturating_sub(len)));
    }
}

impl Ring {
    pub(super) fn new(room: usize) -> Self {
        let next = u64::from(rand::random::<u32>()) << 30;
        Self { news: Mutex::new(News { hashes: VecDeque::new(), from: VecDeque::new(), next }), room }
    }

    pub(super) fn record(&self, endpoint: &Arc<str>, hashes: &[u64]) {
        if self.room > 0 && !hashes.is_empty() {
            let mut news = self.lock();
            hashes.iter().for_each(|hash| news.push(endpoint, *hash, self.room));
        }
    }

    pub(super) fn is_used(&self) -> bool {
        self.room > 0
    }

    pub(super) fn bytes(&self) -> usize {
        let news = self.lock();
        news.hashes.capacity() * size_of::<u64>() + news.from.capacity() * size_of::<(u64, Arc<str>)>()
    }

    /// Mark of the next block to be added.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.lock().next)
    }

    /// Blocks that were added since a mark, but no more than `max_blocks`.
    pub(super) fn since(&self, mark: Mark, max_blocks: usize) -> Export {
        let news = self.lock();
        let Mark(mut next) = mark;
        if !(news.first()..=news.next).contains(&next) {
            return Export { mark: Mark(news.next), held: Vec::new(), missed: true };
        }
        let end = news.next.min(next.saturating_add(max_blocks as u64));
        let mut held = Vec::new();
        let mut ends = news.from.iter().skip(1).map(|(from, _)| *from).chain([news.next]);
        for (_, endpoint) in &news.from {
            let until = ends.next().unwrap_or(end).min(end);
            if next < until {
                let skipped = (next - news.first()) as usize;
                let hashes =
                    news.hashes.iter().skip(skipped).take((until - next) as usize).copied().collect();
                held.push(Held { endpoint: Arc::clone(endpoint), hashes });
                next = until;
            }
        }
        Export { mark: Mark(next), held, missed: false }
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows everything that this process added and that is still held, endpoint by endpoint, each from
/// its most recent block to its oldest.
pub(super) fn all(holders: &Holders, mut visit: impl FnMut(Held)) {
    for holder in holders.all() {
        let own = |(_, sources): &(_, u16)| sources & OWN != 0;
        let hashes: Vec<u64> =
            holder.lock().recent.recent_first().filter(own).map(|(key, _)| key.hash()).collect();
        if !hashes.is_empty() {
            visit(Held { endpoint: Arc::clone(&holder.identity), hashes });
        }
    }
}
