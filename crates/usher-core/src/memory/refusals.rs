//! Streams for which there was no room, until they are reset.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::calls::{Calls, InProgress};

/// Time for a client to take a refusal, or twice that.
const PATIENCE: Duration = Duration::from_secs(5);

/// Streams that were refused, and whose clients haven't taken that yet: a reply needs room in the
/// client's window, which it may never give.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    streams: Arc<Calls>,
    // Guards when streams were last looked at, and the number of the next one then. Taken by the task
    // that looks.
    checked: Mutex<Option<(Instant, u64)>>,
}

impl Refusals {
    /// One more, that takes so many bytes. Where those that haven't ended take more than `most`, the oldest
    /// are reset.
    pub(super) fn begin(&self, bytes: u64, most: u64) -> RefusedStream {
        let end = CancellationToken::new();
        let (place, _) = self.streams.begin(bytes, end.clone(), most);
        RefusedStream { _place: place, end }
    }

    /// Resets streams that were refused some time ago.
    pub(super) fn check(&self, now: Instant) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        match *checked {
            Some((last, _)) if now.saturating_duration_since(last) < PATIENCE => return,
            Some((_, next)) => self.streams.end_before(next),
            None => {}
        }
        *checked = Some((now, self.streams.next()));
    }

    /// Bytes of those that haven't ended.
    pub(super) fn bytes(&self) -> u64 {
        self.streams.bytes()
    }
}

/// A stream that was refused, until it ends.
#[derive(Debug)]
pub struct RefusedStream {
    _place: InProgress,
    end: CancellationToken,
}

impl RefusedStream {
    /// Cancelled when the client has had its time, or too many others are refused: the stream is to be
    /// reset.
    pub fn end(&self) -> &CancellationToken {
        &self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Budget;

    #[test]
    fn refused_streams_are_bounded_in_memory_and_time() {
        let budget = Budget::new(16 * 10 * Budget::STREAM, 0);
        let refused: Vec<_> = (0..15).map(|_| budget.refuse_stream()).collect();
        let ended = |streams: &[RefusedStream]| streams.iter().filter(|one| one.end().is_cancelled()).count();
        assert_eq!((ended(&refused[..5]), ended(&refused[5..])), (5, 0));
        let start = Instant::now();
        let check = |seconds| budget.check_refusals(start + Duration::from_secs(seconds));
        check(0);
        let late = [budget.refuse_stream()];
        check(4);
        assert_eq!((ended(&refused[6..]), ended(&late)), (0, 0));
        check(5);
        assert_eq!((ended(&refused[6..]), ended(&late)), (9, 0));
        check(10);
        assert_eq!(ended(&late), 1);
    }
}
