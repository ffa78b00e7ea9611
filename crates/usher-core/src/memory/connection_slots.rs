//! Connections of which there are only so many: those of a small port, and those that are being opened.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// Handle that closes a connection.
pub trait Close {
    /// Returns `true` if the connection needs no place any more.
    fn is_over(&self) -> bool;

    /// Closes it.
    fn close(&self);
}

impl<C: Close> Close for Arc<C> {
    fn is_over(&self) -> bool {
        C::is_over(self)
    }

    fn close(&self) {
        C::close(self);
    }
}

impl Close for AbortHandle {
    fn is_over(&self) -> bool {
        self.is_finished()
    }

    fn close(&self) {
        self.abort();
    }
}

/// Cancelled by the side that ends first.
impl Close for CancellationToken {
    fn is_over(&self) -> bool {
        self.is_cancelled()
    }

    fn close(&self) {
        self.cancel();
    }
}

/// Open connections of a port, the oldest first. One more is always taken: those that have said
/// nothing make room first, of these the oldest of the address that has the most connections, and
/// then the oldest of that address.
#[derive(Debug)]
pub struct ConnectionSlots<C = AbortHandle> {
    open: VecDeque<Slot<C>>,
    most: usize,
}

#[derive(Debug)]
struct Slot<C> {
    peer: IpAddr,
    /// Set when it has said what it has to say first.
    has_begun: Arc<AtomicBool>,
    connection: C,
}

impl<C: Close> ConnectionSlots<C> {
    /// For so many connections, at least one.
    pub fn new(most: usize) -> Self {
        Self { open: VecDeque::new(), most }
    }

    /// Adds a connection from this address, and closes another where there are too many. Returns whose
    /// that was. `has_begun` is set by whoever serves it.
    pub fn add(&mut self, peer: IpAddr, has_begun: Arc<AtomicBool>, connection: C) -> Option<IpAddr> {
        if self.open.len() >= self.most {
            self.open.retain(|slot| !slot.connection.is_over());
        }
        let closed = if self.open.len() >= self.most { self.close_one() } else { None };
        self.open.push_back(Slot { peer: peer.to_canonical(), has_begun, connection });
        closed
    }

    /// Closes a connection, as if there were too many. Returns whose that was.
    pub fn close(&mut self) -> Option<IpAddr> {
        self.open.retain(|slot| !slot.connection.is_over());
        self.close_one()
    }

    fn close_one(&mut self) -> Option<IpAddr> {
        let open: Vec<_> = self.open.iter().map(|slot| (slot.peer, slot.has_begun.load(Relaxed))).collect();
        let slot = self.open.remove(choose(&open)?)?;
        slot.connection.close();
        Some(slot.peer)
    }
}

/// Chooses one of these connections, the oldest of which is the first: each with its address and
/// whether it has begun.
fn choose(open: &[(IpAddr, bool)]) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    open.iter().for_each(|(peer, _)| *counts.entry(*peer).or_default() += 1);
    let is_any_silent = open.iter().any(|(_, has_begun)| !has_begun);
    let mut most: Option<(usize, usize)> = None;
    for (slot, (peer, has_begun)) in open.iter().enumerate() {
        let count = counts.get(peer).copied().unwrap_or_default();
        if (!is_any_silent || !has_begun) && most.is_none_or(|(highest, _)| count > highest) {
            most = Some((count, slot));
        }
    }
    most.map(|(_, slot)| slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_then_most_connected_clients_are_closed_first() {
        // Connections by age: the address, in capitals where it has begun.
        for (open, chosen) in
            [("A", 0), ("aB", 0), ("Ab", 1), ("GNNN", 1), ("NGNGN", 0), ("GGNn", 3), ("gNnN", 2), ("GHI", 0)]
        {
            let open: Vec<_> = open
                .bytes()
                .map(|byte| (IpAddr::from([10, 0, 0, byte.to_ascii_uppercase()]), byte.is_ascii_uppercase()))
                .collect();
            assert_eq!(choose(&open), Some(chosen), "{open:?}");
        }
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn open_connections_free_their_opening_slots() {
        let mut slots = ConnectionSlots::new(2);
        let peer = |last| IpAddr::from([10, 0, 0, last]);
        let mut add = |last| {
            let token = CancellationToken::new();
            (slots.add(peer(last), Arc::default(), token.clone()), token)
        };
        let (first, opened) = (add(1), add(1));
        opened.1.cancel();
        let third = add(1);
        assert_eq!((opened.0, third.0), (None, None), "one is open");
        assert_eq!(add(2).0, Some(peer(1)));
        assert!(first.1.is_cancelled() && !third.1.is_cancelled());
    }

    #[tokio::test]
    async fn ended_connections_free_their_slots() {
        let (mut slots, begun) = (ConnectionSlots::new(2), Arc::new(AtomicBool::new(true)));
        let ended = tokio::spawn(async {});
        let handle = ended.abort_handle();
        ended.await.unwrap();
        let peer = |last| IpAddr::from([10, 0, 0, last]);
        let mut add = |last, task: AbortHandle| slots.add(peer(last), Arc::clone(&begun), task);
        let [first, second, third] = [(); 3].map(|()| tokio::spawn(std::future::pending::<()>()));
        assert_eq!(add(1, first.abort_handle()), None);
        assert_eq!(add(2, handle), None);
        assert_eq!(add(1, second.abort_handle()), None, "one has ended");
        assert_eq!(add(3, third.abort_handle()), Some(peer(1)));
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!second.is_finished() && !third.is_finished());
    }
}
