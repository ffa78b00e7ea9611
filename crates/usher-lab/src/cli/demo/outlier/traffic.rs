//! Requests at an even rate, whatever becomes of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::cli::demo::client::Client;
use crate::cli::demo::trace::MODEL;
use crate::load::body::Style;
use crate::load::settings::Api;

/// Tokens of a response.
const OUTPUT: usize = 16;

/// State of the servers when a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// All servers work.
    Well,
    /// One is broken.
    Broken,
    /// The broken one works again, and is still ejected.
    Repaired,
    /// The broken one gets requests as any other.
    Recovered,
}

/// Outcome of a request.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Time at which it was sent.
    pub(super) phase: Phase,
    /// Status, and who responded if it is named; or why there is no response.
    pub(super) response: Result<(u16, Option<String>), String>,
}

/// Requests on their way.
#[derive(Debug)]
pub(super) struct Traffic {
    phase: watch::Sender<Phase>,
    /// Requests that were sent in this phase.
    sent: watch::Receiver<(Phase, usize)>,
    stop: CancellationToken,
    sender: JoinHandle<Vec<Outcome>>,
}

impl Traffic {
    /// Begins to send so many requests per second, on the current runtime.
    pub(super) fn start(to: SocketAddr, per_second: u32) -> Self {
        let (phase, current) = watch::channel(Phase::Well);
        let (count, sent) = watch::channel((Phase::Well, 0));
        let stop = CancellationToken::new();
        let sender = tokio::spawn(send(to, per_second, current, count, stop.clone()));
        Self { phase, sent, stop, sender }
    }

    /// Requests that are sent from now on belong to this phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Waits until so many requests were sent in a phase.
    pub(super) async fn sent_in(&self, phase: Phase, count: usize) {
        let mut sent = self.sent.clone();
        // An error would mean that nobody sends any more.
        let _ = sent.wait_for(|(current, sent)| *current == phase && *sent >= count).await;
    }

    /// Sends no more, and waits for all responses.
    pub(super) async fn end(self) -> Vec<Outcome> {
        self.stop.cancel();
        self.sender.await.unwrap_or_default()
    }
}

async fn send(
    to: SocketAddr,
    per_second: u32,
    phase: watch::Receiver<Phase>,
    sent: watch::Sender<(Phase, usize)>,
    stop: CancellationToken,
) -> Vec<Outcome> {
    let (client, number) = (Client::default(), Arc::new(AtomicUsize::new(0)));
    let mut requests = JoinSet::new();
    let mut due = interval(Duration::from_secs(1) / per_second.max(1));
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while stop.run_until_cancelled(due.tick()).await.is_some() {
        let (client, number, phase) = (client.clone(), Arc::clone(&number), *phase.borrow());
        requests.spawn(async move {
            let body = body(number.fetch_add(1, Relaxed));
            let response = client.chat(to, body).await.map(|response| (response.status, response.pod));
            Outcome { phase, response: response.map_err(|error| format!("{error:#}")) }
        });
        sent.send_modify(|(last, count)| {
            *count = if *last == phase { *count + 1 } else { 1 };
            *last = phase;
        });
    }
    requests.join_all().await
}

/// A chat request whose text no other one has.
fn body(number: usize) -> Bytes {
    let style = Style { api: Api::Chat, model: MODEL.to_owned(), stream: false };
    style.body(&format!("Question {number}: what does a pod do that only fails?"), OUTPUT)
}
