//! Connections that aren't open yet: their TLS handshake, and the first bytes of HTTP/2.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::connection_metrics::ConnectionMetrics;
use super::forward::forward_all_but_writes;
use crate::memory::{Budget, Close, ConnectionSlots, Kind, Reservation};

/// Memory of a connection that has said nothing, in bytes: its task, and the state of TLS.
const SILENT: u64 = 8 << 10;

/// Bytes that a client may send before its handshake is over. A handshake takes some KiB, with a
/// certificate of the client too, and the first requests may come with its end.
const MOST: u64 = 64 << 10;

/// Connections that may be opened at a time. Whoever connects and is silent holds a place until a timeout,
/// or until others need it.
const PLACES: usize = 1024;

/// All connections of a port that are being opened. Together they take a sixteenth of the memory budget,
/// however little of it is left: a gateway that can't connect takes the server for a dead one. Beyond
/// that, and beyond [`PLACES`], the oldest of those of the address that has the most are closed.
#[derive(Debug)]
pub struct Openings {
    budget: Arc<Budget>,
    metrics: Arc<ConnectionMetrics>,
    // Guards the places by age. Taken by the acceptor, and where all take too much memory.
    slots: Mutex<ConnectionSlots<Arc<Handshake>>>,
    /// Bytes of all that were not closed.
    used: Arc<AtomicI64>,
    /// Bytes of all, those among them that were closed and haven't ended.
    held: AtomicI64,
}

impl Openings {
    /// None yet.
    pub fn new(budget: &Arc<Budget>, metrics: &Arc<ConnectionMetrics>) -> Self {
        let slots = Mutex::new(ConnectionSlots::new(PLACES));
        let (used, held) = (Arc::default(), AtomicI64::new(0));
        Self { budget: Arc::clone(budget), metrics: Arc::clone(metrics), slots, used, held }
    }

    /// Takes a place for a connection from this address, where so many are open or being opened, of which
    /// there may be `most`. Where there are as many, one that is being opened makes room. `None` if none
    /// is, or if too many of those that were closed haven't ended.
    pub fn begin(self: &Arc<Self>, peer: IpAddr, open: usize, most: usize) -> Option<OpeningSlot> {
        let handshake = Arc::new(Handshake {
            bytes: AtomicI64::new(0),
            used: Arc::clone(&self.used),
            over: CancellationToken::new(),
        });
        {
            let mut slots = self.slots();
            if open >= most {
                if open >= most + PLACES.min(most / 8 + 1) {
                    return None;
                }
                self.closed(slots.close()?);
            }
            if let Some(closed) = slots.add(peer, Arc::default(), Arc::clone(&handshake)) {
                self.closed(closed);
            }
        }
        let place = OpeningSlot { all: Arc::clone(self), handshake };
        place.take(SILENT);
        Some(place)
    }

    fn slots(&self) -> MutexGuard<'_, ConnectionSlots<Arc<Handshake>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self, peer: IpAddr) {
        self.metrics.refuse(SocketAddr::new(peer, 0), "too many connections are being opened");
    }

    /// Most bytes of all.
    fn most(&self) -> i64 {
        self.budget.process().and_then(|process| i64::try_from(process / 16).ok()).unwrap_or(i64::MAX)
    }

    fn make_room(&self) {
        let is_full = || self.used.load(Relaxed) > self.most();
        if !is_full() {
            return;
        }
        let mut slots = self.slots();
        while is_full()
            && let Some(closed) = slots.close()
        {
            self.closed(closed);
        }
    }
}

/// A connection that is being opened.
#[derive(Debug)]
struct Handshake {
    bytes: AtomicI64,
    /// Bytes of all. Below zero for a moment where one is closed as it takes more.
    used: Arc<AtomicI64>,
    /// Cancelled when it is open, or closed.
    over: CancellationToken,
}

impl Handshake {
    fn take(&self, bytes: i64) {
        let before = self.bytes.swap(bytes, Relaxed);
        self.used.fetch_add(bytes - before, Relaxed);
    }
}

impl Close for Handshake {
    fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    fn close(&self) {
        self.over.cancel();
        self.take(0);
    }
}

/// Place of a connection that is being opened, until this is dropped.
#[derive(Debug)]
pub struct OpeningSlot {
    all: Arc<Openings>,
    handshake: Arc<Handshake>,
}

impl OpeningSlot {
    /// Cancelled when it has to make room for another.
    pub fn closed(&self) -> CancellationToken {
        self.handshake.over.clone()
    }

    /// The memory of this connection, counted until the result is dropped.
    fn memory(&self) -> Memory {
        let place = Self { all: Arc::clone(&self.all), handshake: Arc::clone(&self.handshake) };
        let held = Reservation::new(&self.all.budget, Kind::Connections);
        let mut memory = Memory { place, held, received: 0, is_in_handshake: true };
        memory.hold(SILENT);
        memory
    }

    /// Adds bytes to its memory. Others may be closed for it, or this one.
    fn take(&self, bytes: u64) {
        self.handshake.take(bytes as i64);
        if self.handshake.is_over() {
            self.handshake.take(0);
        } else {
            self.all.make_room();
        }
    }
}

impl Drop for OpeningSlot {
    fn drop(&mut self) {
        self.handshake.close();
    }
}

/// Memory of a connection that is being opened.
#[derive(Debug)]
struct Memory {
    place: OpeningSlot,
    held: Reservation,
    received: u64,
    is_in_handshake: bool,
}

impl Memory {
    fn hold(&mut self, bytes: u64) {
        self.place.all.held.fetch_add(bytes as i64 - self.held.bytes() as i64, Relaxed);
        self.held.set(bytes);
    }

    /// Returns `true` if others have to end first that were closed.
    fn has_to_wait(&self) -> bool {
        self.place.all.held.load(Relaxed) > self.place.all.most()
    }

    /// Counts received bytes.
    fn receive(&mut self, bytes: u64) -> io::Result<()> {
        self.received += bytes;
        if self.is_in_handshake && self.received > MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "handshake too long"));
        }
        // TLS keeps no more than two records of 16 KiB once the handshake is over.
        let bytes = SILENT + self.received.min(MOST);
        self.hold(bytes);
        self.place.take(bytes);
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// A connection whose bytes count until it is [open](Opening::opened), as TLS keeps them until a message
/// of the handshake is complete.
#[derive(Debug)]
pub struct Opening<I> {
    io: I,
    /// `None` when it is open.
    memory: Option<Memory>,
}

impl<I> Opening<I> {
    /// A connection that has said nothing, at this place.
    pub fn new(io: I, place: &OpeningSlot) -> Self {
        Self { io, memory: Some(place.memory()) }
    }

    /// Marks the end of the handshake. What comes before the preface of HTTP/2 counts as well, and may be as much
    /// as it likes: TLS doesn't read on before that is taken.
    pub fn handshake_done(&mut self) {
        if let Some(memory) = &mut self.memory {
            (memory.is_in_handshake, memory.received) = (false, 0);
        }
    }

    /// Ends counting once the connection is open.
    pub fn opened(&mut self) {
        self.memory = None;
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Opening<I> {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.memory.as_ref().is_some_and(Memory::has_to_wait) {
            // They have been woken for that, on this thread or another.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(context, buffer))?;
        if let Some(memory) = &mut this.memory {
            memory.receive((buffer.filled().len() - before) as u64)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opening<I> {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    forward_all_but_writes!();

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;
    use std::time::{Duration, Instant};

    use futures_util::poll;
    use tokio::io::{AsyncReadExt, Repeat, repeat};

    use super::*;

    const KI: u64 = 1 << 10;
    const MI: u64 = 1 << 20;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn openings(budget: &Arc<Budget>) -> Arc<Openings> {
        Arc::new(Openings::new(budget, &Arc::default()))
    }

    fn begin(openings: &Arc<Openings>, last: u8) -> (Opening<Repeat>, OpeningSlot) {
        let place = openings.begin(peer(last), 0, usize::MAX - PLACES).unwrap();
        (Opening::new(repeat(1), &place), place)
    }

    async fn read(opening: &mut Opening<Repeat>, bytes: u64) -> Result<(), io::ErrorKind> {
        let mut buffer = vec![0; bytes as usize];
        opening.read_exact(&mut buffer).await.map(drop).map_err(|error| error.kind())
    }

    #[tokio::test]
    async fn handshake_bytes_are_counted_and_limited() {
        let budget = Arc::new(Budget::default());
        let openings = openings(&budget);
        let (mut opening, place) = begin(&openings, 1);
        let used = || (budget.used(Kind::Connections), openings.used.load(Relaxed) as u64);
        assert_eq!(used(), (SILENT, SILENT));
        for sum in [4 * KI, 32 * KI, MOST] {
            let bytes = SILENT + sum - used().0;
            assert_eq!(read(&mut opening, bytes).await, Ok(()));
            assert_eq!(used(), (SILENT + sum, SILENT + sum));
        }
        assert_eq!(read(&mut opening, 1).await, Err(io::ErrorKind::InvalidData));
        let (mut open, next) = begin(&openings, 1);
        drop((opening, place));
        read(&mut open, 10 * KI).await.unwrap();
        open.handshake_done();
        assert_eq!(read(&mut open, 100 * KI).await, Ok(()), "requests follow");
        assert_eq!(used(), (SILENT + MOST, SILENT + MOST));
        drop(next);
        open.opened();
        assert_eq!((read(&mut open, 100 * KI).await, used()), (Ok(()), (0, 0)));
    }

    #[tokio::test]
    async fn handshakes_use_a_sixteenth_of_the_budget_apart_from_bodies() {
        let budget = Arc::new(Budget::of_process(64 * MI, None));
        let mut held = Reservation::new(&budget, Kind::Bodies);
        held.set(2 * budget.limit().unwrap());
        let body = budget.begin_upload(MI, 0, Waker::noop());
        let start = Instant::now();
        (0..5).for_each(|second| {
            body.received(MI + second);
            budget.check_uploads(start + Duration::from_secs(second), None);
        });
        let openings = openings(&budget);
        let (mut gateway, gateways) = begin(&openings, 1);
        let mut others = Vec::new();
        let end_closed = |others: &mut [(Option<Opening<Repeat>>, OpeningSlot)]| {
            let closed = others.iter_mut().filter(|(_, place)| place.closed().is_cancelled());
            closed.map(|(opening, _)| *opening = None).count()
        };
        for _ in 0..100 {
            let (mut opening, place) = begin(&openings, 2);
            assert_eq!(read(&mut opening, MOST).await, Ok(()));
            others.push((Some(opening), place));
            end_closed(&mut others);
        }
        // A chain of three certificates, with an RSA key each.
        assert_eq!(read(&mut gateway, 8 * KI).await, Ok(()));
        // 4 MiB are 56 of 72 KiB, and the gateway's.
        assert_eq!((end_closed(&mut others), openings.metrics.refused.load(Relaxed)), (44, 44));
        assert!(others[..44].iter().all(|(opening, _)| opening.is_none()), "the oldest");
        // It reads on when one that is closed has ended.
        let (mut next, place) = begin(&openings, 2);
        assert_eq!(read(&mut next, MOST).await, Ok(()));
        {
            let mut read = pin!(read(&mut gateway, 1));
            assert!(poll!(read.as_mut()).is_pending());
            assert_eq!(end_closed(&mut others), 45);
            assert_eq!(read.await, Ok(()));
        }
        assert!(!gateways.closed().is_cancelled());
        assert_eq!(body.abort_reason(), None);
        drop((others, next, place, gateway, gateways));
        assert_eq!((budget.used(Kind::Connections), openings.used.load(Relaxed)), (0, 0));
    }

    #[test]
    fn oldest_handshakes_close_at_the_connection_limit() {
        let openings = openings(&Arc::default());
        let begin = |last, open| openings.begin(peer(last), open, 10);
        let [first, second, other] = [(1, 0), (1, 8), (2, 9)].map(|(last, open)| begin(last, open).unwrap());
        let gateway = begin(3, 10).unwrap();
        assert!(first.closed().is_cancelled() && !second.closed().is_cancelled());
        drop((second, other));
        assert!(begin(3, 10).is_some_and(|next| !next.closed().is_cancelled()));
        assert!(gateway.closed().is_cancelled());
        assert!(begin(3, 10).is_none(), "all are open");
        let _opening = begin(1, 0);
        assert!(begin(3, 10 + PLACES).is_none(), "those that were closed haven't ended");
    }
}
