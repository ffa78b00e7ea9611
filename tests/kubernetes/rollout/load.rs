//! Requests at a steady rate, whatever becomes of them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::Request;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::PATIENCE;
use crate::support::client::{Body, Client, HttpResponse, Protocol, full};

/// Requests per second, each client one every so often.
const CLIENTS: u64 = 40;
const EVERY: Duration = Duration::from_millis(200);

/// Tokens of a long response, at 1 ms each: longer than the pickers' drain window.
const LONG: u32 = 10_000;

pub(super) struct Load {
    clients: JoinSet<(usize, Vec<String>)>,
    answered: watch::Receiver<usize>,
    stop: CancellationToken,
}

impl Load {
    pub(super) fn start(to: SocketAddr) -> Self {
        let (count, answered) = watch::channel(0);
        let stop = CancellationToken::new();
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (count, stop) = (count.clone(), stop.clone());
            clients.spawn(async move {
                // Evenly over the time, half of them over HTTP/2.
                tokio::time::sleep(EVERY * u32::try_from(number).unwrap() / CLIENTS as u32).await;
                let protocol = if number % 2 == 0 { Protocol::Http1 } else { Protocol::Http2 };
                (0, short(to, protocol, &count, &stop).await)
            });
        }
        clients.spawn(long(to, stop.clone()));
        Self { clients, answered, stop }
    }

    /// Waits until so many more were answered or failed.
    pub(super) async fn until_answered(&self, more: usize) {
        let mut answered = self.answered.clone();
        let from = *answered.borrow();
        let enough = answered.wait_for(|count| *count >= from + more);
        tokio::time::timeout(PATIENCE, enough).await.expect("requests hang").unwrap();
    }

    /// Number of answered requests, of long responses besides, and what failed.
    pub(super) async fn finish(mut self) -> (usize, usize, Vec<String>) {
        self.stop.cancel();
        let (mut streams, mut failed) = (0, Vec::new());
        while let Some(client) = self.clients.join_next().await {
            let (long, bad) = client.unwrap();
            streams += long;
            failed.extend(bad);
        }
        (*self.answered.borrow(), streams, failed)
    }
}

/// A request every so often, over one connection.
async fn short(
    to: SocketAddr,
    protocol: Protocol,
    count: &watch::Sender<usize>,
    stop: &CancellationToken,
) -> Vec<String> {
    let mut failed = Vec::new();
    let mut client = Client::connect(to, protocol).await.unwrap();
    let mut ticks = tokio::time::interval(EVERY);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let sent = Instant::now();
        let asked = tokio::time::timeout(PATIENCE, client.exchange(chat(5, false))).await;
        let wrong = match asked {
            Ok(Ok(response)) => wrong(&response),
            Ok(Err(error)) => Some(format!("{error:?}")),
            Err(_) => Some("no response".to_owned()),
        };
        if let Some(wrong) = wrong {
            failed.push(format!("{protocol:?} after {:?}: {wrong}", sent.elapsed()));
            client = Client::connect(to, protocol).await.unwrap();
        }
        count.send_modify(|count| *count += 1);
    }
    failed
}

/// Long responses, one after the other.
async fn long(to: SocketAddr, stop: CancellationToken) -> (usize, Vec<String>) {
    let (mut whole, mut failed) = (0, Vec::new());
    while !stop.is_cancelled() {
        let mut client = Client::connect(to, Protocol::Http2).await.unwrap();
        match client.exchange(chat(LONG, true)).await {
            Ok(response) if wrong(&response).is_none() && response.text().ends_with("data: [DONE]\n\n") => {
                whole += 1
            }
            Ok(response) => failed.push(format!("{} after {} bytes", response.status, response.body.len())),
            Err(error) => failed.push(format!("a long response: {error:?}")),
        }
    }
    (whole, failed)
}

/// Description of a wrong response; `None`: it is a server's own, with the header that a picker adds.
fn wrong(response: &HttpResponse) -> Option<String> {
    let good = response.status == 200 && response.header("x-went-into-resp-headers") == "true";
    (!good).then(|| format!("{response:?}"))
}

fn chat(tokens: u32, stream: bool) -> Request<Body> {
    let messages = [json!({"role": "user", "content": "All work and no play."})];
    let body = json!({"model": "base", "max_tokens": tokens, "stream": stream, "messages": messages});
    let request = Request::post("/v1/chat/completions").header("content-type", "application/json");
    request.body(full(body.to_string())).unwrap()
}
