//! Streams for which there was no room, until they are told.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::Budget;
use super::budget::beyond;
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
    looked: Mutex<Option<(Instant, u64)>>,
}

impl Refusals {
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

impl Budget {
    /// A stream was [opened](Self::open_stream) for which there is no room. Where those that haven't
    /// ended take more than what may be used beyond the limit, the oldest are reset.
    pub fn refuse_stream(&self) -> RefusedStream {
        let most = beyond(self.limit().unwrap_or(u64::MAX));
        let end = CancellationToken::new();
        let (place, _) = self.refusals.streams.begin(Self::STREAM, end.clone(), most);
        RefusedStream { _place: place, end }
    }

    /// Resets streams that were refused some time ago.
    pub(super) fn look_at_refusals(&self, now: Instant) {
        let mut looked = self.refusals.looked.lock().unwrap_or_else(PoisonError::into_inner);
        match *looked {
            Some((last, _)) if now.saturating_duration_since(last) < PATIENCE => return,
            Some((_, next)) => self.refusals.streams.end_before(next),
            None => {}
        }
        *looked = Some((now, self.refusals.streams.next()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_streams_have_a_sixteenth_of_the_limit_and_some_time() {
        let budget = Budget::new(16 * 10 * Budget::STREAM, 0);
        let refused: Vec<_> = (0..15).map(|_| budget.refuse_stream()).collect();
        let ended = |streams: &[RefusedStream]| streams.iter().filter(|one| one.end().is_cancelled()).count();
        assert_eq!((ended(&refused[..5]), ended(&refused[5..])), (5, 0));
        let start = Instant::now();
        let look = |seconds| budget.look_at_refusals(start + Duration::from_secs(seconds));
        look(0);
        let late = [budget.refuse_stream()];
        look(4);
        assert_eq!((ended(&refused[6..]), ended(&late)), (0, 0));
        look(5);
        assert_eq!((ended(&refused[6..]), ended(&late)), (9, 0));
        look(10);
        assert_eq!(ended(&late), 1);
    }
}
