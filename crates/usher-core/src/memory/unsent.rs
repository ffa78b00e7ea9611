//! Replies that a client hasn't taken.

use std::sync::Arc;

use super::Reservation;
use super::stream_state::StreamState;

/// Replies of a stream, until they are written to its client or dropped.
#[derive(Debug, Default)]
pub struct Unsent {
    /// Memory that counts for them.
    room: Option<Box<Reservation>>,
    /// Their stream, once they wait for its client.
    stream: Option<Arc<StreamState>>,
    /// Bytes that they take there.
    bytes: u64,
}

impl Unsent {
    /// Adds memory that counts for them.
    pub fn hold(&mut self, room: Box<Reservation>) {
        match &mut self.room {
            Some(held) => held.join(*room),
            None => self.room = Some(room),
        }
    }

    /// Memory that counts for them, or that `new` makes.
    pub fn room(&mut self, new: impl FnOnce() -> Reservation) -> &mut Reservation {
        self.room.get_or_insert_with(|| Box::new(new()))
    }

    /// Bytes that count for them.
    pub fn counted(&self) -> u64 {
        self.room.as_ref().map_or(0, |room| room.bytes())
    }

    /// All of them, so many bytes, wait for the client of this stream from now on.
    pub fn wait(&mut self, stream: &Arc<StreamState>, bytes: u64) {
        self.bytes = bytes.max(self.counted());
        stream.add_unsent(self.bytes);
        self.stream = Some(Arc::clone(stream));
    }

    /// Notes written bytes.
    #[inline]
    pub fn written(&self, bytes: usize) {
        if let Some(stream) = &self.stream {
            stream.written(bytes);
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            stream.sent(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, Kind};
    use super::*;

    #[test]
    fn replies_count_until_they_are_dropped() {
        let budget = Arc::new(Budget::default());
        let reserve = |bytes: u64| {
            let mut room = Reservation::new(&budget, Kind::Bodies);
            room.set(bytes);
            Box::new(room)
        };
        let stream = Arc::<StreamState>::default();
        let mut replies = Unsent::default();
        replies.hold(reserve(5000));
        replies.hold(reserve(2000));
        assert_eq!((replies.counted(), stream.unsent()), (7000, 0));
        // They lie in a little less.
        replies.wait(&stream, 6900);
        let mut small = Unsent::default();
        small.wait(&stream, 100);
        assert_eq!((budget.used(Kind::Bodies), stream.unsent()), (7000, 7100));
        drop(replies);
        assert_eq!((budget.used(Kind::Bodies), stream.unsent()), (0, 100));
        drop(small);
        assert_eq!(stream.unsent(), 0);
    }
}
