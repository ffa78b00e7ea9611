//! Memory that a connection takes, and which one is closed where unread data takes too much.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use tokio_util::sync::CancellationToken;

use super::stream_state::StreamState;
use super::unread::{Idle, Unread};
use super::{Budget, Kind, Reservation, small};

/// Room of a connection in each direction; sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Data of all streams that a client may send before they have read it.
    pub connection: u32,
    /// Data of one stream.
    pub stream: u32,
    /// Replies of a stream that may wait to be sent.
    pub unsent: u32,
    /// Streams that a client is told it may open.
    pub streams: u32,
    /// Streams that may be open. More than it is told where a client is not to be refused those
    /// that it opened before it was told.
    pub most_streams: u32,
}

/// Buffers and state of a connection, which it has from its first byte on. Measured: 27 KiB, and 34
/// with TLS.
pub(super) const BUFFERS: u64 = 32 << 10;

/// Largest frame that the buffers of an idle connection hold, in bytes.
const SMALL_FRAME: usize = 4 << 10;

/// Share of unread data where no budget says so, in bytes.
const UNREAD_WITHOUT_BUDGET: u64 = 128 << 20;

/// Bytes that a connection may receive before its streams get a turn to read.
pub const TURN: u64 = 64 << 10;

impl Windows {
    /// For gateways. A prompt of 50k tokens arrives without waiting for the window of its stream, and
    /// those of one connection don't wait for that of the connection.
    ///
    /// The window of a connection must not depend on the memory budget: h2 charges `256 - length`
    /// of half of it for every unread DATA frame that is shorter than 256 bytes and doesn't end its
    /// stream, and ends the connection where that is used up. This is enough for 65,793 of one byte.
    ///
    /// Every HTTP request in progress holds a stream until its response ends. A gateway opens another
    /// connection where all that it has are full, and each has its thread, so a limit spreads its
    /// requests. 100 is the least that HTTP/2 recommends, and what clients begin with that wait for
    /// the limit. Envoy doesn't wait: it sends up to 1,024 streams before it knows better, and those
    /// above the limit would fail with their requests. They are served; those that follow open
    /// connections.
    pub const LARGEST: Self = Self {
        connection: 32 << 20,
        stream: 256 << 10,
        unsent: 256 << 10,
        streams: 100,
        most_streams: 16_384,
    };

    /// For [small] requests. HTTP/2 begins with these windows, and less can't be said before the
    /// first stream.
    pub const SMALLEST: Self = Self {
        connection: 64 << 10,
        stream: 64 << 10,
        unsent: 16 << 10,
        streams: small::MAX_STREAMS,
        most_streams: small::MAX_STREAMS,
    };

    /// For gateways, in a process that may take so many bytes.
    pub fn within(process: u64) -> Self {
        let unsent = u32::try_from(process / 1024).unwrap_or(u32::MAX);
        Self { unsent: unsent.clamp(Self::SMALLEST.unsent, Self::LARGEST.unsent), ..Self::LARGEST }
    }
}

/// Memory of an open connection, counted until this is dropped.
#[derive(Debug)]
pub struct ConnectionRoom {
    budget: Arc<Budget>,
    windows: Windows,
    unread: Arc<Unread>,
    /// Memory of its buffers, and of the data that arrives in one turn.
    own: Reservation,
    /// Memory of the [unread](Unread::kept) data.
    kept: Reservation,
}

impl ConnectionRoom {
    /// Memory of one more connection with these windows. It counts also where there is no room: a
    /// gateway that can't connect takes the server for a dead one, and requests find their response
    /// on the connection.
    pub fn new(budget: &Arc<Budget>, windows: Windows) -> Self {
        Self::of_peer(budget, windows, Ipv4Addr::UNSPECIFIED.into())
    }

    /// Memory of one more connection from this address. Where connections take too much, idle ones
    /// make room for it, those of the address with the most connections first.
    pub fn of_peer(budget: &Arc<Budget>, windows: Windows, peer: IpAddr) -> Self {
        // Small requests are no more than some hundred bytes each.
        let is_small = windows.connection <= Windows::SMALLEST.connection;
        let (kind, bytes) =
            if is_small { (Kind::SmallPorts, small::CONNECTION) } else { (Kind::Connections, BUFFERS) };
        let mut own = Reservation::new(budget, kind);
        own.set(bytes);
        // Those of small ports have places of their own.
        let counted = if is_small { 0 } else { bytes };
        budget.open_connections.fetch_add(u64::from(!is_small), Relaxed);
        let unread = Arc::new(Unread::new(Idle::new(&budget.opened, peer.to_canonical(), counted)));
        // Before it is among them: others make room for it.
        budget.retire_idle(counted);
        budget.connections.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&unread));
        let kept = Reservation::new(budget, Kind::Unread);
        Self { budget: Arc::clone(budget), windows, unread, own, kept }
    }

    /// Counts the data of a turn as well, when the first stream has come or `ahead` bytes of a frame
    /// are still to come that are more than an idle connection has room for.
    pub fn begin(&mut self, ahead: usize) {
        let is_idle = self.unread.idle.bytes() == BUFFERS;
        if is_idle && (ahead > SMALL_FRAME || self.unread.has_readers()) {
            self.own.set(BUFFERS + TURN);
            self.unread.idle.set_bytes(BUFFERS + TURN);
            self.budget.retire_idle(0);
        }
    }

    /// Windows of the connection.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The budget that it is counted in.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Unread data of the connection.
    pub fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    /// Cancelled when it has to be closed, as its unread data takes too much memory.
    pub fn evicted(&self) -> CancellationToken {
        self.unread.evicted.clone()
    }

    /// Returns `true` if unread data is counted, and should be [settled](Self::settle) when streams
    /// have read.
    pub fn is_unsettled(&self) -> bool {
        self.kept.bytes() > 0
    }

    /// Counts the data that streams have not read, except for the last `recent` bytes that have
    /// arrived: streams had no turn yet to read those. Counted in steps, so that little is written
    /// to numbers that all threads share.
    pub fn settle(&mut self, recent: u64) {
        let kept = self.unread.bytes().saturating_sub(recent).next_multiple_of(TURN);
        if kept == self.kept.bytes() {
            return;
        }
        self.unread.keep(kept);
        let grows = kept > self.kept.bytes();
        let is_full = self.kept.grow_to(kept, || None).is_err();
        self.kept.set(kept);
        if grows {
            self.budget.evict_unread(is_full);
        }
    }
}

impl Drop for ConnectionRoom {
    fn drop(&mut self) {
        self.budget.open_connections.fetch_sub(u64::from(self.unread.idle.bytes() > 0), Relaxed);
        let mut open = self.budget.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|unread| Arc::ptr_eq(unread, &self.unread)) {
            open.swap_remove(at);
        }
    }
}

impl Budget {
    /// Share of unread data in bytes: an eighth of the budget, or a 32nd where everything else has taken
    /// the rest.
    pub(super) fn unread_share(&self, is_full: bool) -> u64 {
        self.process().map_or(UNREAD_WITHOUT_BUDGET, |process| process / if is_full { 32 } else { 8 })
    }

    /// Bytes of unread data above so many times its [share](Self::unread_share). `None` if there are none.
    pub(super) fn excess_unread(&self, is_full: bool, times: u64) -> Option<u64> {
        let share = self.unread_share(is_full);
        self.used(Kind::Unread).checked_sub(times * share).filter(|excess| *excess > 0)
    }

    /// Closes the connection with the most unread data where that of all is more than twice its share,
    /// and no streams are left that stall. Those are reset from once its share on, a second later.
    fn evict_unread(&self, is_full: bool) {
        let Some(excess) = self.excess_unread(is_full, 2) else { return };
        let most = self.used(Kind::Unread).saturating_sub(excess);
        if self.end_stalled(&self.connections_with(|_| true), excess + most / 2, StreamState::unread)
            >= excess
        {
            return;
        }
        let open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let staying = || open.iter().filter(|unread| !unread.evicted.is_cancelled());
        let kept = |unread: &&Arc<Unread>| unread.kept();
        if staying().map(|unread| kept(&unread)).sum::<u64>() <= most {
            // Those that are about to go make room enough.
            return;
        }
        if let Some(largest) = staying().max_by_key(kept) {
            let (unread, connections) = (kept(&largest), open.len());
            if let Some(count) = self.evict(largest) {
                tracing::warn!(
                    count,
                    unread,
                    connections,
                    "connection closed to free memory: it held the most unread data"
                );
            }
        }
    }

    /// Closes a connection. Returns how many were closed this way, if that is worth a line of the log: for each power of
    /// two, as a flood must not flood the log.
    pub(super) fn evict(&self, connection: &Unread) -> Option<u64> {
        if connection.evicted.is_cancelled() {
            return None;
        }
        connection.evicted.cancel();
        self.evicted.fetch_add(1, Relaxed);
        let count = self.evicted_full.fetch_add(1, Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }

    /// The least that open connections are known to take of what they count, in bytes: three quarters
    /// of their buffers. The rest may still come.
    pub(super) fn taken_by_connections(&self) -> u64 {
        self.open_connections.load(Relaxed).saturating_mul(BUFFERS / 4 * 3)
    }

    /// Connections that were closed, as their unread data took too much memory, or as they were idle
    /// when connections did.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }
}
