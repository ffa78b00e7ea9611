//! Requests at an even pace, and ones that last.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::BodyExt;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::PATIENCE;
use crate::support::client::{Client, Protocol};
use crate::traffic::{BOTH, chat, post_chat};

/// Time between two requests: 30 per second, which a machine that others use manages, too.
const PAUSE: Duration = Duration::from_millis(33);

/// Prompts, each of some 500 tokens.
const PROMPTS: usize = 8;

/// Failures where there are to be none.
pub(super) const NONE: [String; 0] = [];

/// Requests that begin until they are stopped.
pub(super) struct Load {
    stop: CancellationToken,
    answered: watch::Receiver<usize>,
    failed: JoinHandle<Vec<String>>,
}

impl Load {
    pub(super) fn start(envoy: SocketAddr) -> Self {
        let (stop, (count, answered)) = (CancellationToken::new(), watch::channel(0));
        let failed = tokio::spawn(send(envoy, stop.clone(), count));
        Self { stop, answered, failed }
    }

    /// Waits until so many more have been answered.
    pub(super) async fn answers(&mut self, more: usize) {
        let count = *self.answered.borrow() + more;
        let answered = timeout(PATIENCE, self.answered.wait_for(|answered| *answered >= count));
        assert!(answered.await.is_ok(), "no {more} answers");
    }

    /// Begins no more.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Begins no more, waits for those that have begun, and returns what failed.
    pub(super) async fn end(self) -> Vec<String> {
        self.stop();
        let failed = self.failed.await.unwrap();
        println!("{} requests answered, {} failed: {failed:?}", *self.answered.borrow(), failed.len());
        failed
    }
}

async fn send(envoy: SocketAddr, stop: CancellationToken, answered: watch::Sender<usize>) -> Vec<String> {
    let (mut pace, mut open) = (interval(PAUSE), JoinSet::new());
    // A machine that is late gets no burst.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0.. {
        if stop.run_until_cancelled(pace.tick()).await.is_none() {
            break;
        }
        let answered = answered.clone();
        open.spawn(async move {
            let response = timeout(PATIENCE, ask(envoy, number)).await;
            let failed = response.unwrap_or_else(|_| Err("no response".to_owned())).err();
            if failed.is_none() {
                answered.send_modify(|answered| *answered += 1);
            }
            failed
        });
    }
    open.join_all().await.into_iter().flatten().collect()
}

async fn ask(envoy: SocketAddr, number: usize) -> Result<(), String> {
    // Each prompt begins with another text.
    let prompt = chat(2000).replacen("All work", &format!("Work {}", number % PROMPTS), 1);
    let mut client = Client::connect(envoy, BOTH[number % 2]).await.map_err(|error| error.to_string())?;
    let response = client.exchange(post_chat(prompt)).await.map_err(|error| error.to_string())?;
    match response.status.as_u16() {
        200 => Ok(()),
        status => Err(format!("{status} {}", response.text())),
    }
}

/// Responses that last until they are dropped.
pub(super) struct Held(JoinSet<()>);

impl Held {
    /// Begins so many.
    pub(super) async fn open(envoy: SocketAddr, count: usize) -> Self {
        let opened = join_all((0..count).map(|_| async {
            let mut body: serde_json::Value = serde_json::from_str(&chat(100)).unwrap();
            (body["stream"], body["max_tokens"]) = (true.into(), 3_600_000.into());
            let mut client = Client::connect(envoy, Protocol::Http1).await.unwrap();
            let response = client.begin(post_chat(body.to_string())).await.unwrap();
            assert_eq!(response.status(), 200);
            (client, response)
        }));
        let mut held = JoinSet::new();
        for (client, mut response) in opened.await {
            held.spawn(async move {
                while let Some(Ok(_)) = response.frame().await {}
                drop(client);
            });
        }
        Self(held)
    }

    /// Number of requests that have not ended.
    pub(super) fn left(&mut self) -> usize {
        while self.0.try_join_next().is_some() {}
        self.0.len()
    }
}
