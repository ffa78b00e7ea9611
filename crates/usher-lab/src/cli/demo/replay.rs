//! The replay: every request leaves when the trace says, whatever became of those
//! before it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::client::{Client, Response};
use super::stack::Stack;
use super::trace;
use crate::load::trace::Row;
use usher_terminal::Progress;

/// Requests that are open at once. What is due beyond that waits, and its waiting
/// counts as its latency.
const MOST_OPEN: usize = 512;

/// Bodies that are made before they are due, and the time to make the first ones.
const AHEAD: usize = 32;
const LEAD: Duration = Duration::from_millis(50);

/// Between two updates of the progress line.
const TICK: Duration = Duration::from_millis(100);

/// Progress of the requests for display.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Requests that left.
    pub(super) sent: AtomicUsize,
    /// Requests that ended, one way or the other.
    pub(super) done: AtomicUsize,
}

/// Outcome of one request. Times count from when it was due, so that a client that
/// is late doesn't make servers look fast.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Time at which it was due, from the start of the replay.
    pub(super) due: Duration,
    /// Until the first byte of the response's body.
    pub(super) first: Option<Duration>,
    /// Until the end of the response.
    pub(super) total: Duration,
    /// The response, or why there is none.
    pub(super) response: Result<Response, String>,
}

/// From the first to the last request, at `speed` times the speed of the trace.
pub(super) fn span(rows: &[Row], speed: f64) -> Duration {
    rows.first().zip(rows.last()).map_or(Duration::ZERO, |(first, last)| due(first, last, speed))
}

fn due(first: &Row, row: &Row, speed: f64) -> Duration {
    Duration::from_secs_f64((row.timestamp - first.timestamp) as f64 / 1e3 / speed)
}

/// Sends all rows to `to` and waits for all responses.
pub(super) async fn replay(
    client: &Client,
    to: SocketAddr,
    rows: &Arc<[Row]>,
    speed: f64,
    counters: &Arc<Counters>,
) -> Vec<Outcome> {
    // Bodies are made on a thread of their own, a little ahead: one of half a megabyte
    // would make those behind it late.
    let (sender, mut ready) = mpsc::channel(AHEAD);
    let source = rows.clone();
    tokio::task::spawn_blocking(move || {
        for (at, row) in source.iter().enumerate() {
            if sender.blocking_send((at, trace::body(row, 0))).is_err() {
                break;
            }
        }
    });
    let open = Arc::new(Semaphore::new(MOST_OPEN));
    let mut requests = JoinSet::new();
    let begin = Instant::now() + LEAD;
    while let Some((at, body)) = ready.recv().await {
        let since_begin = due(&rows[0], &rows[at], speed);
        let due = begin + since_begin;
        tokio::time::sleep_until(due.into()).await;
        // The semaphore is never closed.
        let Ok(permit) = open.clone().acquire_owned().await else { break };
        let (client, counters) = (client.clone(), counters.clone());
        requests.spawn(async move {
            counters.sent.fetch_add(1, Relaxed);
            let response = client.chat(to, body).await;
            let total = due.elapsed();
            drop(permit);
            counters.done.fetch_add(1, Relaxed);
            let first = response.as_ref().ok().and_then(|response| response.first);
            Outcome {
                due: since_begin,
                first: first.map(|first| first.saturating_duration_since(due)),
                total,
                response: response.map_err(|error| format!("{error:#}")),
            }
        });
    }
    requests.join_all().await
}

/// Replays the trace, and does something beside it. Returns what became of the requests, how
/// long they took together, and what the other had to say.
pub(super) async fn replayed<T>(
    stack: &mut Stack,
    rows: &Arc<[Row]>,
    speed: f64,
    progress: &mut Progress,
    what: &str,
    beside: impl Future<Output = T>,
) -> anyhow::Result<(Vec<Outcome>, Duration, T)> {
    progress.step(&format!("{what}: {} requests", rows.len()));
    let envoy = stack.envoy();
    let (client, counters) = (Client::default(), Arc::new(Counters::default()));
    let begin = Instant::now();
    let work = async {
        tokio::join!(
            async { (replay(&client, envoy, rows, speed, &counters).await, begin.elapsed()) },
            beside,
        )
    };
    let ((outcomes, took), other) = tokio::select! {
        done = work => done,
        error = stack.broken() => return Err(error),
        never = show(progress, &counters, rows.len(), begin, what) => match never {},
    };
    Ok((outcomes, took, other))
}

/// Shows where the replay stands.
pub(super) async fn show(
    progress: &mut Progress,
    counters: &Counters,
    all: usize,
    begin: Instant,
    what: &str,
) -> Infallible {
    loop {
        let (sent, done) = (counters.sent.load(Relaxed), counters.done.load(Relaxed));
        let open = sent.saturating_sub(done);
        let seconds = begin.elapsed().as_secs_f64();
        progress.part(done as u64, all as u64, &format!("({what}), {open} open, {seconds:.1} s"));
        tokio::time::sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_compressed_from_the_first_arrival() {
        let row = |timestamp| Row { timestamp, input_length: 1, output_length: 1, hash_ids: vec![0] };
        let rows = [row(60_000), row(61_000), row(72_000)];
        assert_eq!(span(&rows, 12.0), Duration::from_secs(1));
        assert_eq!(span(&rows, 0.5), Duration::from_secs(24));
        assert_eq!(span(&[], 1.0), Duration::ZERO);
    }
}
