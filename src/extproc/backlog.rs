//! Bounds the frames that are taken from a client before what they lead to is written.
//!
//! HTTP/2 has no flow control for headers and resets. What is to be sent of a stream that is over waits in the
//! connection, uncounted, for as long as the client leaves it in its socket; so new frames wait there, too.
//!
//! Frames of all kinds count. h2 makes a stream, to reset it, not only for headers and data that it refuses: for
//! PRIORITY of a stream that depends on itself and for PUSH_PROMISE with malformed headers as well. It sends
//! replies to PING and SETTINGS before it reads on, and none to other kinds, but these take time like any.

use std::io;
use std::task::{Poll, Waker};

/// Frames that are taken in a turn of the connection, or while nothing can be written. A stream that is over
/// takes up to 3 KiB until its end is sent.
pub const FRAMES: usize = 128;

/// Frames that have come in this turn, or since nothing could be written.
#[derive(Debug, Default)]
pub struct Backlog {
    is_blocked: bool,
    /// Something could not be written since the last turn began: replies may wait behind it, although what came
    /// after it could be.
    was_blocked: bool,
    turn: u64,
    frames: usize,
    /// Reads when something could be written.
    reader: Option<Waker>,
}

impl Backlog {
    /// Frames that may be taken now, in this turn of the connection. `None`: the reader is woken for the next
    /// one, before which replies are written, or once something could be written.
    #[inline]
    pub fn may_take(&mut self, turn: u64, reader: &Waker) -> Option<usize> {
        if self.turn != turn {
            self.turn = turn;
            if !std::mem::replace(&mut self.was_blocked, self.is_blocked) {
                self.frames = 0;
            }
        }
        if self.frames < FRAMES {
            return Some(FRAMES - self.frames);
        }
        if self.is_blocked {
            self.reader = Some(reader.clone());
        } else {
            reader.wake_by_ref();
        }
        None
    }

    /// Returns `true` while nothing can be written.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// So many frames have come.
    #[inline]
    pub fn arrived(&mut self, frames: usize) {
        self.frames += frames;
    }

    /// Notes what became of an attempt to write, and returns it.
    #[inline]
    pub fn write(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_blocked = written.is_pending();
        self.was_blocked |= self.is_blocked;
        if let Poll::Ready(written) = &written {
            if written.is_err() {
                // For the reader to find the end.
                self.frames = 0;
            }
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
        written
    }

    /// So many frames were written: as many may come as may have been replied to.
    #[inline]
    pub fn sent(&mut self, frames: usize) {
        self.frames = self.frames.saturating_sub(frames);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn reading_stops_while_nothing_can_be_written() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut backlog = Backlog::default();
        assert!(backlog.write(Poll::Pending).is_pending());
        for (turn, left) in [(1, FRAMES), (2, FRAMES / 2)] {
            assert_eq!(backlog.may_take(turn, &waker), Some(left));
            backlog.arrived(FRAMES / 2);
        }
        assert_eq!((backlog.may_take(3, &waker), woken.0.load(Relaxed)), (None, 0));
        // As many may come as may have been replied to, while the rest is stuck again.
        let _ = backlog.write(Poll::Ready(Ok(130)));
        backlog.sent(10);
        assert_eq!(woken.0.load(Relaxed), 1);
        let _ = backlog.write(Poll::Pending);
        assert_eq!(backlog.may_take(4, &waker), Some(10));
        backlog.arrived(10);
        assert_eq!(backlog.may_take(4, &waker), None);
        // The client takes all there is, and replies that waited behind it are written in the next turn.
        let _ = backlog.write(Poll::Ready(Ok(1)));
        assert_eq!((backlog.may_take(5, &waker), woken.0.load(Relaxed)), (None, 3));
        assert_eq!((backlog.may_take(6, &waker), woken.0.load(Relaxed)), (Some(FRAMES), 3));
    }

    #[test]
    fn partial_writes_admit_only_as_many_frames() {
        let waker = Waker::noop();
        let mut backlog = Backlog::default();
        let _ = backlog.write(Poll::Pending);
        assert_eq!(backlog.may_take(1, waker), Some(FRAMES));
        backlog.arrived(FRAMES);
        for turn in 2..50 {
            // A part of a response, before resets that wait.
            let _ = backlog.write(Poll::Ready(Ok(16 << 10)));
            backlog.sent(1);
            assert_eq!(backlog.may_take(turn, waker), Some(1));
            backlog.arrived(1);
            let _ = backlog.write(Poll::Pending);
            assert_eq!(backlog.may_take(turn, waker), None);
        }
    }

    #[test]
    fn a_turn_ends_after_many_frames() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut backlog = Backlog::default();
        for turn in 1..5 {
            assert_eq!(backlog.may_take(turn, &waker), Some(FRAMES), "nothing is stuck");
            backlog.arrived(FRAMES);
            assert_eq!((backlog.may_take(turn, &waker), woken.0.load(Relaxed)), (None, turn as usize));
        }
    }

    #[test]
    fn an_error_lets_the_reader_find_the_end() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut backlog = Backlog::default();
        let _ = backlog.write(Poll::Pending);
        backlog.arrived(FRAMES);
        assert_eq!(backlog.may_take(1, &waker), None);
        let _ = backlog.write(Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())));
        assert_eq!((backlog.may_take(1, &waker), woken.0.load(Relaxed)), (Some(FRAMES), 1));
    }
}
