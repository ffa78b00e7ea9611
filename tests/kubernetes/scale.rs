//! A pool of two thousand pods, and how soon a change is one for requests.

use std::time::{Duration, Instant};

use futures_util::StreamExt;

use crate::objects::{Space, least};
use crate::picker::{Picker, Response};
use crate::server::Server;
use crate::support::eventually;

const PODS: u32 = 2000;

/// Memory that all pods together may take, in KiB: 20 MiB. Without optimisation, where tasks and tables are
/// larger, 30 MiB.
const MEMORY: u64 = if cfg!(debug_assertions) { 30 << 10 } else { 20 << 10 };

fn ip(number: u32) -> String {
    format!("10.6.{}.{}", number / 250, number % 250 + 1)
}

/// Waits until a picker has less memory than `most`, in KiB, and returns how much. Responses by which the test
/// looks, of 2,000 endpoints with their scores each, are given back a moment later.
async fn has_less(picker: &Picker, most: u64) -> u64 {
    let what = format!("less than {most} KiB");
    eventually(&what, async || Some(picker.memory("VmRSS")).filter(|now| *now < most)).await
}

/// Makes pods do something, some at a time.
async fn each<F: Future<Output = ()>>(pods: u32, act: impl Fn(u32) -> F) {
    futures_util::stream::iter(0..pods).map(act).buffer_unordered(16).collect::<Vec<()>>().await;
}

async fn has(picker: &Picker, count: u32) {
    let what = format!("{count} endpoints");
    eventually(&what, async || (picker.members().await.len() == count as usize).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_pods_are_endpoints() {
    let Some(server) = Server::shared().await else { return };
    // Nobody can be scraped at these addresses.
    let flags = ["--refresh-metrics-interval=30s", "--outlier-detection=false"];
    let empty = server.space(&least()).await;
    empty.pool("m", &[8000]).await;
    let idle = Picker::of_pool(server, &empty, &flags).await;
    idle.turns(true).await;
    has(&idle, 0).await;

    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    each(PODS, |number| {
        let space = space.clone();
        async move { space.pod(&format!("pod-{number}"), &ip(number), "m").await }
    })
    .await;
    // More than one page of the list.
    let picker = Picker::of_pool(server, &space, &flags).await;
    picker.turns(true).await;
    println!("{PODS} pods: ready {:?} after the start", picker.started.elapsed());
    assert_eq!(picker.members().await.len(), PODS as usize, "all of them from the start");
    space.status("pod-7", &ip(7), false).await;
    has(&picker, PODS - 1).await;
    space.status("pod-7", &ip(7), true).await;
    has(&picker, PODS).await;

    let before = idle.memory("VmRSS");
    let known = has_less(&picker, before + MEMORY).await;
    // Some go and come back, twice.
    for _ in 0..2 {
        for ready in [false, true] {
            let some = PODS / 10;
            each(some, |number| {
                let space = space.clone();
                async move { space.status(&format!("pod-{number}"), &ip(number), ready).await }
            })
            .await;
            has(&picker, if ready { PODS } else { PODS - some }).await;
        }
    }
    let after = has_less(&picker, before + MEMORY).await;
    // The peak has the responses in it.
    let peak = picker.memory("VmHWM");
    println!("{before} KiB without pods, {known} with {PODS}, {after} after many changes, {peak} at most");
}

/// Returns `true` if requests may go to this endpoint.
async fn is_member(picker: &Picker, endpoint: &str) -> bool {
    match picker.ask(&[], "m").await {
        Response::Routed { candidates, .. } => candidates.contains(endpoint),
        Response::Refused { status } => panic!("{status}"),
    }
}

/// Time from when the API server has said that a pod changed until requests know.
async fn reaction(space: &Space, picker: &Picker, ready: bool) -> Duration {
    space.status("b", "10.7.0.2", ready).await;
    let changed = Instant::now();
    while is_member(picker, "10.7.0.2:8000").await != ready {}
    changed.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_changes_reach_requests_soon() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.7.0.1", "m").await;
    space.pod("b", "10.7.0.2", "m").await;
    let picker = Picker::of_pool(server, &space, &[]).await;
    picker.becomes(&["10.7.0.1:8000", "10.7.0.2:8000"]).await;
    let mut took = Vec::new();
    for change in 0..40 {
        took.push(reaction(&space, &picker, change % 2 == 1).await);
    }
    took.sort();
    println!(
        "a change is one for requests after {:?} (median), {:?} (worst of {})",
        took[20],
        took[39],
        took.len()
    );
    assert!(took[20] < Duration::from_secs(1), "{took:?}");
}
