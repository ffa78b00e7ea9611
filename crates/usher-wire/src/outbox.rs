//! Outgoing messages of a call: those of a stream, framed as gRPC asks for, gathered until the
//! connection takes them.
//!
//! Small parts are written one behind the other; large ones, which are pieces of bodies,
//! are kept as they are and go to the socket from where they arrived.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::task::Waker;

use bytes::{Buf, Bytes};
use tonic::Status;

use usher_core::memory::{Budget, BudgetFull, FREE_UNSENT, Kind, Reservation, StreamState, Unsent};

/// Smallest piece that is kept instead of copied: a write has a place for each, and
/// finding and releasing one costs as much as copying some hundred bytes.
const KEEP: usize = 1024;

/// First allocation: the replies to a small request, or to a chunk of a response.
const FIRST: usize = 512;

/// Length of a message's frame: no compression, and 32 bits of length.
const FRAME: usize = 5;

/// Messages to send.
#[derive(Debug)]
pub struct Outbox {
    written: Written,
    /// Largest message.
    limit: usize,
    /// Length of a message that is larger, and was left out.
    refused: Option<usize>,
    /// The stream that they are replies of.
    stream: Option<Arc<StreamState>>,
}

/// Bytes in the order in which they are sent: those of `small`, and between them the
/// pieces that were kept. They count as unsent until this is dropped.
#[derive(Debug, Default)]
pub struct Written {
    small: Vec<u8>,
    /// Number of bytes of `small` that are sent.
    sent: usize,
    /// Pieces, and where in `small` each belongs.
    pieces: VecDeque<(usize, Bytes)>,
    /// Bytes in the pieces.
    large: usize,
    unsent: Unsent,
}

impl Outbox {
    /// For messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { written: Written::default(), limit, refused: None, stream: None }
    }

    /// For replies of this stream, in messages of at most `limit` bytes.
    pub fn of_stream(limit: usize, stream: Option<Arc<StreamState>>) -> Self {
        Self { stream, ..Self::new(limit) }
    }

    /// Fails when a message was too large to be sent.
    ///
    /// # Errors
    /// `Status` to end the stream with.
    pub fn check(&self) -> Result<(), Status> {
        let Some(length) = self.refused else { return Ok(()) };
        let limit = self.limit;
        Err(Status::resource_exhausted(format!(
            "a reply of {length} bytes is larger than {limit} (--grpc-max-send-msg-size)"
        )))
    }

    /// Adds a message of `length` bytes: what `head` writes, the pieces, and the tail.
    pub fn message(
        &mut self,
        length: usize,
        head: impl FnOnce(&mut Vec<u8>),
        pieces: impl IntoIterator<Item = Bytes>,
        tail: &[u8],
    ) {
        // Nothing may follow: what comes after a hole would be taken for the whole.
        if self.refused.is_some() || length > self.limit {
            self.refused.get_or_insert(length);
            return;
        }
        let small = &mut self.written.small;
        if small.capacity() == 0 {
            small.reserve(FIRST);
        }
        let start = small.len();
        small.push(0);
        small.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        head(small);
        let mut kept = 0;
        for piece in pieces {
            if piece.len() < KEEP {
                self.written.small.extend_from_slice(&piece);
            } else {
                kept += piece.len();
                let at = self.written.small.len();
                self.written.pieces.push_back((at, piece));
            }
        }
        self.written.small.extend_from_slice(tail);
        self.written.large += kept;
        debug_assert_eq!(self.written.small.len() - start + kept, FRAME + length, "length of a message");
    }

    /// Bytes that wait to be sent.
    pub fn len(&self) -> usize {
        self.written.remaining()
    }

    /// Returns `true` if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps memory that counts for what waits, until that is written to the client or dropped.
    pub fn hold(&mut self, room: Box<Reservation>) {
        if !self.is_empty() {
            self.written.unsent.hold(room);
        }
    }

    /// Counts what waits, if it isn't counted and is more than a stream may leave unsent. A request of
    /// this priority may make others give room.
    ///
    /// # Errors
    /// `BudgetFull` if there is no room for the reply.
    #[inline]
    pub fn count(
        &mut self,
        budget: &Arc<Budget>,
        priority: impl FnOnce() -> Option<i32>,
    ) -> Result<(), BudgetFull> {
        let waiting = self.len() as u64;
        let unsent = self.stream.as_ref().map_or(0, |stream| stream.unsent());
        if waiting + unsent <= FREE_UNSENT || waiting <= self.written.unsent.counted() {
            return Ok(());
        }
        let room = self.written.unsent.room(|| Reservation::new(budget, Kind::Bodies));
        room.grow_over_limit(waiting, priority)
    }

    /// Drops what waits.
    pub fn clear(&mut self) {
        self.written = Written::default();
    }

    /// Returns `true` if the client should take replies before the stream ends. Wakes the task when it has.
    pub fn waits_for_client(&self, stream: &Waker) -> bool {
        self.stream.as_ref().is_some_and(|stream_state| stream_state.waits_for_client(stream))
    }

    /// Takes everything, which waits for the client from now on.
    pub fn take(&mut self) -> Written {
        if let Some(stream) = &self.stream {
            let bytes = self.len() as u64;
            self.written.unsent.wait(stream, bytes);
        }
        std::mem::take(&mut self.written)
    }
}

impl Buf for Written {
    fn remaining(&self) -> usize {
        self.small.len() - self.sent + self.large
    }

    fn chunk(&self) -> &[u8] {
        match self.pieces.front() {
            Some((at, piece)) if *at == self.sent => piece,
            Some((at, _)) => &self.small[self.sent..*at],
            None => &self.small[self.sent..],
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut sent = self.sent;
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            let Some(slot) = slices.get_mut(filled) else { return false };
            *slot = IoSlice::new(bytes);
            filled += 1;
            true
        };
        for (at, piece) in &self.pieces {
            if !put(&self.small[sent..*at]) || !put(piece) {
                return filled;
            }
            sent = *at;
        }
        put(&self.small[sent..]);
        filled
    }

    fn advance(&mut self, mut count: usize) {
        self.unsent.written(count);
        while count > 0 {
            let Some((at, piece)) = self.pieces.front_mut() else {
                self.sent = self.small.len().min(self.sent + count);
                break;
            };
            let before = *at - self.sent;
            if before > 0 {
                let step = before.min(count);
                self.sent += step;
                count -= step;
            } else if piece.len() > count {
                self.large -= count;
                piece.advance(count);
                break;
            } else {
                count -= piece.len();
                self.large -= piece.len();
                self.pieces.pop_front();
            }
        }
    }
}

impl From<Bytes> for Written {
    fn from(bytes: Bytes) -> Self {
        let large = bytes.len();
        let mut pieces = VecDeque::new();
        if large > 0 {
            pieces.push_back((0, bytes));
        }
        Self { small: Vec::new(), sent: 0, pieces, large, unsent: Unsent::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overlarge_reply_ends_the_call() {
        let mut outbox = Outbox::new(4);
        outbox.message(4, |out| out.extend(*b"1234"), [], &[]);
        assert!(outbox.check().is_ok());
        outbox.message(5, |out| out.extend(*b"12345"), [], &[]);
        outbox.message(1, |out| out.extend(*b"6"), [], &[]);
        let refused = outbox.check().unwrap_err();
        assert_eq!((outbox.len(), refused.code()), (9, tonic::Code::ResourceExhausted));
        assert!(refused.message().starts_with("a reply of 5 bytes"), "{refused}");
    }

    #[test]
    fn replies_count_beyond_the_free_unsent_bytes() {
        let free = FREE_UNSENT as usize;
        let budget = Arc::new(Budget::new(10 * FREE_UNSENT, 0));
        let stream = Arc::<StreamState>::default();
        let mut outbox = Outbox::of_stream(1 << 20, Some(Arc::clone(&stream)));
        let count = |outbox: &mut Outbox, bytes: usize| {
            outbox.message(bytes - FRAME, |_| {}, [Bytes::from(vec![b'x'; bytes - FRAME])], &[]);
            outbox.count(&budget, || Some(0))
        };
        let used = || budget.used(Kind::Bodies) as usize;
        assert_eq!((count(&mut outbox, free), used()), (Ok(()), 0));
        let first = outbox.take();
        assert_eq!(stream.unsent(), FREE_UNSENT);
        assert!(!stream.waits_for_client(Waker::noop()));
        assert_eq!((count(&mut outbox, 2000), used()), (Ok(()), 2000), "the other one is unsent");
        assert_eq!((count(&mut outbox, 3000), used()), (Ok(()), 5000));
        let mut second = outbox.take();
        assert_eq!((count(&mut outbox, 7 * free), count(&mut outbox, 7 * free)), (Ok(()), Err(BudgetFull)));
        outbox.clear();
        assert_eq!((used(), stream.unsent()), (5000, FREE_UNSENT + 5000));
        assert!(stream.waits_for_client(Waker::noop()));
        drop(first);
        second.advance(4999);
        assert_eq!((used(), stream.unsent()), (5000, 5000));
        drop(second);
        assert_eq!((used(), stream.unsent(), stream.waits_for_client(Waker::noop())), (0, 0, false));
        assert_eq!((count(&mut outbox, 2000), used()), (Ok(()), 0), "all was taken");
    }

    #[test]
    fn replies_keep_only_their_own_memory() {
        let budget = Arc::new(Budget::default());
        let room = || {
            let mut room = Reservation::new(&budget, Kind::Bodies);
            room.set(50_000);
            Box::new(room)
        };
        let mut outbox = Outbox::new(1 << 20);
        outbox.hold(room());
        assert_eq!(budget.used(Kind::Bodies), 0, "nothing waits");
        outbox.message(40_000, |_| {}, [Bytes::from(vec![b'x'; 40_000])], &[]);
        outbox.hold(room());
        assert!(outbox.count(&budget, || None).is_ok());
        let written = outbox.take();
        assert_eq!(budget.used(Kind::Bodies), 50_000);
        drop(written);
        assert_eq!(budget.used(Kind::Bodies), 0);
    }

    proptest! {
        #[test]
        fn written_messages_are_read_back_in_any_step_size(
            messages in prop::collection::vec(
                (0usize..40, prop::collection::vec(0usize..3000, 0..4), 0usize..3),
                0..5,
            ),
            steps in prop::collection::vec(1usize..2500, 1..200),
            vectored in any::<bool>(),
        ) {
            let mut outbox = Outbox::new(1 << 20);
            let mut want = Vec::new();
            for (index, (head, pieces, tail)) in messages.into_iter().enumerate() {
                let byte = index as u8 + 1;
                let length = head + pieces.iter().sum::<usize>() + tail;
                want.push(0);
                want.extend((length as u32).to_be_bytes());
                want.extend(vec![byte; length]);
                let pieces: Vec<_> = pieces.into_iter().map(|len| Bytes::from(vec![byte; len])).collect();
                outbox.message(length, |out| out.extend(vec![byte; head]), pieces, &vec![byte; tail]);
            }
            prop_assert_eq!(outbox.len(), want.len());
            let mut written = outbox.take();
            prop_assert!(outbox.is_empty());
            let mut got: Vec<u8> = Vec::new();
            for step in steps.iter().cycle() {
                prop_assert_eq!(written.remaining(), want.len() - got.len());
                if !written.has_remaining() {
                    break;
                }
                let taken = if vectored {
                    let mut slices = [IoSlice::new(&[]); 3];
                    let filled = written.chunks_vectored(&mut slices);
                    prop_assert!(filled > 0);
                    let all: Vec<u8> = slices[..filled].iter().flat_map(|s| s.iter().copied()).collect();
                    let taken = all.len().min(*step);
                    got.extend(&all[..taken]);
                    taken
                } else {
                    let taken = written.chunk().len().min(*step);
                    prop_assert!(taken > 0);
                    got.extend(&written.chunk()[..taken]);
                    taken
                };
                written.advance(taken);
            }
            prop_assert_eq!(got, want);
        }
    }
}
