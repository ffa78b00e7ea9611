//! Runs the streams of a connection.

use std::sync::Arc;

use futures_util::FutureExt;
use hyper::rt::Executor;

use super::arrivals::{self, Begun, StreamEnd};
use super::spread;

/// Runs the streams of a connection on its [threads](spread). They count as open on the connection and
/// its threads, except small calls, and [end](arrivals::RequestBody::ends) when they have to make room.
#[derive(Clone, Debug)]
pub struct StreamExecutor {
    threads: spread::Streams,
    streams: Arc<arrivals::Streams>,
}

impl StreamExecutor {
    /// Runs these streams on these threads.
    pub fn new(threads: spread::Streams, streams: &Arc<arrivals::Streams>) -> Self {
        Self { threads, streams: Arc::clone(streams) }
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        // hyper runs a stream right after it has called the service for it.
        let Begun { stream_state, end } = self.streams.take_begun();
        if let (Some(stream_state), Some(end)) = (&stream_state, &end) {
            stream_state.ends_with(end.cancelled.clone());
        }
        let task = match end {
            Some(StreamEnd { cancelled, is_small: true }) => {
                self.threads.spawn_uncounted(cancelled.run_until_cancelled_owned(stream).map(|_| ()))
            }
            Some(StreamEnd { cancelled, is_small: false }) => {
                let open = self.streams.open();
                let stream = cancelled.run_until_cancelled_owned(stream);
                self.threads.run(stream.map(move |_| drop(open)))
            }
            None => {
                let open = self.streams.open();
                self.threads.run(stream.map(move |()| drop(open)))
            }
        };
        if let Some(stream_state) = stream_state {
            stream_state.runs(task);
        }
    }
}
