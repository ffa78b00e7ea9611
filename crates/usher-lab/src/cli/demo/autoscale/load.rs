//! The load: few requests, more and more, many, fewer and fewer, none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::cli::demo::client::Client;
use crate::cli::demo::replay::{Counters, Outcome};
use crate::cli::demo::trace::MODEL;
use crate::load::body::Style;
use crate::load::settings::Api;

/// Seconds from the start, and how much of the highest rate there is then. Between two of them the
/// rate is on the line that joins them.
const SHAPE: [(f64, f64); 6] = [(0.0, 0.1), (4.0, 0.1), (10.0, 1.0), (20.0, 1.0), (26.0, 0.1), (30.0, 0.1)];

/// Time at which no more requests come.
pub(super) const END: Duration = Duration::from_secs(30);

/// Tokens of a response: 1.3 s of a server that has one request. So few requests keep several servers
/// busy, and the machine has little to do.
const OUTPUT: usize = 160;

/// Resolution of the time.
const STEP: Duration = Duration::from_millis(1);

/// Schedule of the requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    requests: usize,
    most: f64,
}

impl Load {
    /// Load of `requests` requests in all.
    pub(super) fn new(requests: usize) -> Self {
        let under = |pair: &[(f64, f64)]| match pair {
            [(from, low), (to, high)] => (to - from) * (low + high) / 2.0,
            _ => 0.0,
        };
        let area: f64 = SHAPE.windows(2).map(under).sum();
        Self { requests, most: requests as f64 / area }
    }

    /// Number of all requests.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// The highest rate, per second.
    pub(super) fn most(&self) -> f64 {
        self.most
    }

    /// Requests per second at this time from the start.
    pub(super) fn rate(&self, at: Duration) -> f64 {
        let at = at.as_secs_f64();
        let part = |pair: &[(f64, f64)]| match pair {
            [(from, low), (to, high)] if (*from..*to).contains(&at) => {
                Some(low + (high - low) * (at - from) / (to - from))
            }
            _ => None,
        };
        SHAPE.windows(2).find_map(part).unwrap_or(0.0) * self.most
    }

    /// Time at which each request is sent, from the start.
    pub(super) fn due(&self) -> Vec<Duration> {
        let (mut due, mut sum, mut at) = (Vec::with_capacity(self.requests), 0.0, Duration::ZERO);
        while at < END {
            sum += self.rate(at) * STEP.as_secs_f64();
            at += STEP;
            while due.len() < self.requests && sum >= (due.len() + 1) as f64 {
                due.push(at);
            }
        }
        // What rounding left over.
        due.resize(self.requests, END);
        due
    }
}

/// Sends a request at each of these times and waits for all responses.
pub(super) async fn send(to: SocketAddr, due: Vec<Duration>, counters: Arc<Counters>) -> Vec<Outcome> {
    let client = Client::default();
    let style = Style { api: Api::Chat, model: MODEL.to_owned(), stream: false };
    let mut requests = JoinSet::new();
    let begin = Instant::now();
    for (number, since_begin) in due.into_iter().enumerate() {
        let due = begin + since_begin;
        sleep_until(due).await;
        let body = style.body(&format!("Question {number}: how many pods are there now?"), OUTPUT);
        let (client, counters) = (client.clone(), Arc::clone(&counters));
        requests.spawn(async move {
            counters.sent.fetch_add(1, Relaxed);
            let response = client.chat(to, body).await.map_err(|error| format!("{error:#}"));
            counters.done.fetch_add(1, Relaxed);
            Outcome { due: since_begin, first: None, total: due.elapsed(), response }
        });
    }
    requests.join_all().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_follow_the_load_shape() {
        let load = Load::new(2000);
        let due = load.due();
        assert_eq!((due.len(), due.last().is_some_and(|last| *last <= END)), (2000, true));
        assert!(due.is_sorted());
        let between =
            |from: u64, to: u64| due.iter().filter(|due| (from..to).contains(&due.as_secs())).count() as f64;
        assert!((between(12, 18) / 6.0 - load.most()).abs() < 0.5);
        assert!((between(0, 4) / 4.0 - load.most() / 10.0).abs() < 0.5);
        assert_eq!(load.rate(END), 0.0);
        let middle = load.rate(Duration::from_secs(7));
        assert!((middle - load.most() * 0.55).abs() < 1e-9);
        assert_eq!(Load::new(1).due().len(), 1);
    }
}
