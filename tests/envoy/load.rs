//! Many requests at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::future::join_all;
use tokio::sync::watch;
use usher::sim::Fault;

use crate::support::client::{Client, Protocol};
use crate::support::eventually;
use crate::traffic::{chat, post_chat};
use crate::{ORIGINAL_DST, Stack};

const CONCURRENCY: usize = 64;

/// A closed loop of chat requests over as many connections, half of them HTTP/2.
struct Load {
    clients: Vec<tokio::task::JoinHandle<Vec<String>>>,
    answered: watch::Receiver<usize>,
    begin: Instant,
    total: usize,
}

impl Load {
    fn start(stack: &Stack, total: usize) -> Self {
        let (count, answered) = watch::channel(0);
        let asked = Arc::new(AtomicUsize::new(0));
        let to = stack.envoy.address;
        let client = |number: usize| {
            let (count, asked) = (count.clone(), asked.clone());
            let protocol = if number.is_multiple_of(2) { Protocol::Http1 } else { Protocol::Http2 };
            async move {
                let mut failed = Vec::new();
                let mut client = Client::connect(to, protocol).await.unwrap();
                loop {
                    let number = asked.fetch_add(1, Ordering::Relaxed);
                    if number >= total {
                        return failed;
                    }
                    // 0.8 KB on average, one of a hundred needs several chunks.
                    let body = chat(if number.is_multiple_of(100) { 50_000 } else { 100 + number % 500 });
                    match client.exchange(post_chat(body.clone())).await {
                        Ok(response) if response.status == 200 => {
                            response.assert_received(body.as_bytes());
                            assert_eq!(response.json()["usage"]["completion_tokens"], 5);
                        }
                        Ok(response) => failed.push(format!("{protocol:?}: {response:?}")),
                        Err(error) => {
                            failed.push(format!("{protocol:?}: {error:?}"));
                            client = Client::connect(to, protocol).await.unwrap();
                        }
                    }
                    count.send_modify(|count| *count += 1);
                }
            }
        };
        let begin = Instant::now();
        let clients = (0..CONCURRENCY).map(|number| tokio::spawn(client(number))).collect();
        Self { clients, answered, begin, total }
    }

    /// Waits until so many requests have been answered or have failed.
    async fn answered(&mut self, count: usize) {
        self.answered.wait_for(|answered| *answered >= count).await.unwrap();
    }

    /// Waits for the end, and gives what failed.
    async fn finish(self) -> Vec<String> {
        let failed: Vec<_> = join_all(self.clients).await.into_iter().flat_map(Result::unwrap).collect();
        let took = self.begin.elapsed().as_secs_f64();
        let (total, rate) = (self.total, self.total as f64 / took);
        println!(
            "{total} requests at concurrency {CONCURRENCY}: {} failed; {took:.1} s, {rate:.0} per second",
            failed.len()
        );
        failed
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_without_an_error() {
    let stack = Stack::start(ORIGINAL_DST, &[], &[]).await;
    let failed = Load::start(&stack, 10_000).finish().await;
    assert!(failed.is_empty(), "{} failed, the first: {}", failed.len(), failed[0]);
}

/// A server goes away in the middle of it all: what it was serving is lost, and nothing
/// else, although Usher needs a moment to see that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_fails_only_its_own_requests() {
    const STUCK: usize = 8;
    let mut stack = Stack::with_fallbacks().await;
    let start = stack.envoy.access_end();
    let mut load = Load::start(&stack, 6_000);
    load.answered(1_000).await;
    // These it is serving for certain when it goes away; others are on their way.
    let hang = Fault { hang: true, count: Some(STUCK as u64), ..Fault::default() };
    stack.servers.set_fault(3, &hang).await;
    eventually("requests that hang", async || (stack.servers.fault(3).await.count == Some(0)).then_some(()))
        .await;
    load.answered(2_000).await;
    stack.servers.kill(3).await;
    let failed = load.finish().await;

    let killed = stack.servers.addresses[3].to_string();
    let mut lost: BTreeMap<String, usize> = BTreeMap::new();
    let (mut lines, mut moved) = (0, 0);
    stack
        .envoy
        .access(start, "all requests", |line| {
            lines += 1;
            let (status, flags, upstream) =
                (line.field("status"), line.field("flags"), line.field("upstream"));
            if status != "200" || flags != "-" {
                // UC: the connection ended after the request was sent.
                *lost.entry(format!("flags={flags} upstream={upstream}")).or_default() += 1;
            } else if line.field("attempts") != "1" {
                moved += 1;
                assert!(upstream != killed && line.field("picked").starts_with(&killed));
            }
            (lines == 6_000).then_some(())
        })
        .await;
    println!("{moved} requests moved to their second endpoint; lost with the server: {lost:?}");
    assert!(moved > 0, "the server went away and nobody asked for it");
    let only = BTreeMap::from([(format!("flags=UC upstream={killed}"), failed.len())]);
    assert_eq!(lost, only, "{failed:#?}");
    assert!((STUCK..=CONCURRENCY).contains(&failed.len()), "{failed:#?}");
}
