//! Bounds what is taken from a client that takes nothing from us.
//!
//! HTTP/2 has no flow control for headers and resets. What is to be sent of a stream that is over waits in the
//! connection, uncounted, for as long as the client leaves it in its socket; so new frames wait there, too.

use std::io;
use std::task::{Poll, Waker};

/// Frames of headers and data that are taken while nothing can be written. A stream that is over takes up to 3
/// KiB until its end is sent.
const FRAMES: usize = 128;

/// Bytes that are read at once while nothing can be written: few enough that they hold no more than some
/// hundred frames.
const BYTES: usize = 1 << 10;

/// The least that is sent in reply to a frame, in bytes: a reset.
const REPLY: usize = 13;

/// Frames that have come since nothing could be written.
#[derive(Debug, Default)]
pub struct Backlog {
    is_blocked: bool,
    frames: usize,
    /// Reads when something could be written.
    reader: Option<Waker>,
}

impl Backlog {
    /// Bytes that may be read now. `None`: nothing, and the reader is woken once something could be written.
    pub fn may_read(&mut self, reader: &Waker) -> Option<usize> {
        if !self.is_blocked {
            self.frames = 0;
            return Some(usize::MAX);
        }
        if self.frames < FRAMES {
            return Some(BYTES);
        }
        self.reader = Some(reader.clone());
        None
    }

    /// A frame has come that may have a reply.
    #[inline]
    pub fn arrived(&mut self) {
        self.frames += 1;
    }

    /// Notes what became of an attempt to write, and returns it.
    #[inline]
    pub fn write(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.is_blocked = written.is_pending();
        if let Poll::Ready(written) = &written
            && let Some(reader) = self.reader.take()
        {
            let replies = written.as_ref().map_or(usize::MAX, |bytes| bytes / REPLY);
            self.frames = self.frames.saturating_sub(replies);
            reader.wake();
        }
        written
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

    fn come(backlog: &mut Backlog, frames: usize) {
        (0..frames).for_each(|_| backlog.arrived());
    }

    #[test]
    fn reading_stops_while_nothing_can_be_written() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut backlog = Backlog::default();
        come(&mut backlog, 10 * FRAMES);
        assert_eq!(backlog.may_read(&waker), Some(usize::MAX), "as long as nothing has to be written");
        assert!(backlog.write(Poll::Pending).is_pending());
        assert_eq!(backlog.may_read(&waker), Some(BYTES));
        come(&mut backlog, FRAMES);
        assert_eq!(backlog.may_read(&waker), None);
        // As many may come as may have been replied to, while the rest is stuck again.
        let _ = backlog.write(Poll::Ready(Ok(10 * REPLY)));
        assert_eq!(woken.0.load(Relaxed), 1);
        let _ = backlog.write(Poll::Pending);
        assert_eq!(backlog.may_read(&waker), Some(BYTES));
        come(&mut backlog, 10);
        assert_eq!(backlog.may_read(&waker), None);
        // The client takes all there is.
        let _ = backlog.write(Poll::Ready(Ok(1)));
        assert_eq!((backlog.may_read(&waker), woken.0.load(Relaxed)), (Some(usize::MAX), 2));
    }

    #[test]
    fn an_error_lets_the_reader_find_the_end() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut backlog = Backlog::default();
        let _ = backlog.write(Poll::Pending);
        come(&mut backlog, FRAMES);
        assert_eq!(backlog.may_read(&waker), None);
        let _ = backlog.write(Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())));
        assert_eq!((backlog.may_read(&waker), woken.0.load(Relaxed)), (Some(usize::MAX), 1));
    }
}
