//! Time that Envoy and Usher add to a request.
//!
//! While the trace is replayed, now and then one more request is sent twice, one after
//! the other: through Envoy, and straight to a simulated server. Its body has the size
//! of a row of the trace and a text of its own, and the server answers it as soon as it
//! has read it. So both ways differ in Envoy and Usher alone, and the engines, their
//! caches and their queues have no part in it. A sample is the difference of the two
//! times, from the first byte of the request to the last of the response; noise of the
//! machine can make it negative, and it is kept as it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::{Client, MODELS};
use super::trace::body;
use crate::load::trace::Row;

/// Definition of a sample, in the words of the report.
pub(super) const METHOD: &str = "a request through Envoy minus the same one straight to a server";

/// Pairs of a run: enough for a 99th percentile, and few beside the replay.
const MOST_PAIRS: usize = 200;
const LEAST_PAIRS: usize = 20;

/// The differences, and how many pairs had no two good responses.
#[derive(Debug, Default)]
pub(super) struct Added {
    /// In milliseconds.
    pub(super) samples: Vec<f64>,
    /// Pairs of which a request failed.
    pub(super) failed: usize,
}

/// Number of pairs that belong to a replay of so many requests.
pub(super) fn pairs(requests: usize) -> usize {
    (requests / 2).clamp(LEAST_PAIRS, MOST_PAIRS)
}

/// Sends the pairs, spread evenly over `time`.
pub(super) async fn measure(
    envoy: SocketAddr,
    servers: &[SocketAddr],
    rows: &[Row],
    time: Duration,
) -> Added {
    // Connections of its own, open before the first sample: with those of the replay
    // a pair could wait for one.
    let client = Client::default();
    for way in servers.iter().chain([&envoy]) {
        // Should it fail, so will samples.
        let _ = client.get(*way, MODELS).await;
    }
    let mut added = Added::default();
    let count = pairs(rows.len());
    let begin = tokio::time::Instant::now();
    let step = time / u32::try_from(count).unwrap_or(u32::MAX);
    // Each row once before any a second time, and not only the first ones.
    let stride = (rows.len() / count).max(1);
    let rows = rows.iter().cycle().step_by(stride);
    let targets = servers.iter().cycle();
    for ((number, row), server) in (0..count).zip(rows).zip(targets) {
        tokio::time::sleep_until(begin + step * u32::try_from(number).unwrap_or(u32::MAX)).await;
        // A text that no other request has: nothing must learn that a server has its
        // prefix.
        let body = body(row, number as u64 + 1);
        // What comes second may find warmer caches of the processor.
        let ways = if number % 2 == 0 { [envoy, *server] } else { [*server, envoy] };
        let mut times = [None; 2];
        for (way, time) in ways.iter().zip(&mut times) {
            let start = Instant::now();
            let response = client.probe(*way, body.clone()).await;
            *time = response.is_ok_and(|response| response.status == 200).then(|| start.elapsed());
        }
        match (times, number % 2) {
            ([Some(through), Some(straight)], 0) | ([Some(straight), Some(through)], _) => {
                added.samples.push((through.as_secs_f64() - straight.as_secs_f64()) * 1e3);
            }
            _ => added.failed += 1,
        }
    }
    added
}

/// The `p`-th percentile of samples: the least one that `p` percent of them do not
/// exceed (nearest rank). `None` without samples.
pub(super) fn percentile(samples: &[f64], p: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let table = [(0.0, 1.0), (0.5, 1.0), (0.6, 2.0), (50.0, 100.0), (99.0, 198.0), (100.0, 200.0)];
        for (p, want) in table {
            assert_eq!(percentile(&samples, p), Some(want), "{p}");
        }
        assert_eq!(percentile(&[-3.0, 7.0], 50.0), Some(-3.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn small_and_large_runs_have_a_bounded_number_of_pairs() {
        assert_eq!([1, 100, 400, 100_000].map(pairs), [20, 50, 200, 200]);
    }
}
