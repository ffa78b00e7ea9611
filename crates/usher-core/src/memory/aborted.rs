//! Streams that were aborted, until they end.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::task::Id;

use super::stream_state::StreamState;

/// Time for a client to take the reply of a stream that was aborted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Streams of aborted uploads. Their replies need room in the client's window, which may never come.
#[derive(Debug, Default)]
pub(super) struct AbortedStreams {
    // Taken when a stream is aborted, and by the task that looks.
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    /// Tasks of those that were aborted since the last check.
    new: Vec<Id>,
    /// Streams that are aborted and still open, with the time of the first check of each.
    leaving: Vec<(Instant, Weak<StreamState>)>,
}

impl AbortedStreams {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the stream of an aborted upload by its task.
    pub(super) fn add(&self, task: Option<Id>) {
        self.streams().new.extend(task);
    }

    /// Tasks of the streams that were aborted since the last call.
    pub(super) fn take_new(&self) -> HashSet<Id> {
        std::mem::take(&mut self.streams().new).into_iter().collect()
    }

    /// Checks these streams, which were aborted since the last check, and at all that were before. Resets
    /// those that were aborted some time ago and haven't ended.
    pub(super) fn check(&self, new: &[Arc<StreamState>], now: Instant) {
        let mut streams = self.streams();
        streams.leaving.extend(new.iter().map(|stream| (now, Arc::downgrade(stream))));
        streams.leaving.retain(|(since, stream)| {
            let stream = stream.upgrade().filter(|stream| stream.is_running());
            let is_late = now.saturating_duration_since(*since) >= PATIENCE;
            if let Some(stream) = stream.as_ref().filter(|_| is_late) {
                stream.reset();
            }
            stream.is_some() && !is_late
        });
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::sync::Notify;

    use super::super::{Budget, ConnectionRoom, Windows};
    use super::*;

    #[tokio::test]
    async fn abandoned_streams_that_do_not_end_are_reset() {
        let budget = Arc::new(Budget::default());
        let room = ConnectionRoom::new(&budget, Windows::LARGEST);
        let end = Arc::new(Notify::new());
        let mut streams = Vec::new();
        // The first one's client takes the reply, and nothing is missing of the third.
        for is_aborted in [true, true, false] {
            let (budget, end) = (Arc::clone(&budget), Arc::clone(&end));
            let stream = room.unread().begin_stream();
            let task = tokio::spawn(async move {
                let _upload = is_aborted.then(|| budget.begin_upload(1, 0, Waker::noop()));
                end.notified().await;
            });
            stream.runs(task.abort_handle());
            streams.push((stream, task));
            // They are woken in the order in which they wait.
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        let check = |seconds| {
            let now = start + Duration::from_secs(seconds);
            budget.check_uploads(now, Some(Duration::from_secs(30)));
            budget.look_at_aborted(now);
        };
        [0, 30, 34].into_iter().for_each(check);
        assert!(streams.iter().all(|(stream, _)| !stream.is_reset()));
        end.notify_one();
        (&mut streams[0].1).await.unwrap();
        check(35);
        let reset: Vec<_> = streams.iter().map(|(stream, _)| stream.is_reset()).collect();
        assert_eq!(reset, [false, true, false]);
        let (_, second) = streams.swap_remove(1);
        assert!(second.await.unwrap_err().is_cancelled());
        assert!(budget.uploads.aborted.streams().leaving.is_empty());
    }
}
