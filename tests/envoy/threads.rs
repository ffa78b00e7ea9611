//! Requests of a gateway with few threads, over a picker with many.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use usher::sim::Fault;

use crate::ORIGINAL_DST;
use crate::support::client::{self, Client, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::{SERVERS, Servers};
use crate::support::usher::Usher;
use crate::traffic::{chat, post_chat};

const THREADS: usize = 8;

/// Connections to Envoy, which its two threads share, and requests at a time on each.
const CLIENTS: usize = 24;
const AT_A_TIME: usize = 40;

/// Requests after each other.
const ROUNDS: usize = 2;

/// Time that a response takes: longer than a loaded machine takes to send all requests.
const SLOW: Duration = Duration::from_secs(5);

/// Streams of the threads of the picker: open ones, or all that they took.
async fn streams(usher: &Usher, family: &str) -> Vec<u64> {
    let request = Request::get("/metrics").body(client::empty()).unwrap();
    let page = client::send(usher.port("metrics").await, Protocol::Http1, request).await;
    let lines = page.text().lines().filter(|line| line.starts_with(&format!("{family}{{")));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

/// All at once, and then one after the other as they end.
async fn ask(envoy: std::net::SocketAddr) -> Vec<String> {
    let Client::Http2(sender) = Client::connect(envoy, Protocol::Http2).await.unwrap() else {
        unreachable!()
    };
    let one = |sender| async move {
        let (mut client, mut wrong) = (Client::Http2(sender), Vec::new());
        for _ in 0..ROUNDS {
            match client.exchange(post_chat(chat(200))).await {
                Ok(response) if response.status == 200 => {}
                Ok(response) => wrong.push(format!("{} {}", response.status, response.text())),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        wrong
    };
    join_all((0..AT_A_TIME).map(|_| one(sender.clone()))).await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_threads_of_envoy_use_all_of_eight() {
    let servers = Servers::start().await;
    for index in 0..SERVERS {
        let slow = Fault { slow: Some(SLOW), ..Fault::default() };
        servers.set_fault(index, &slow).await;
    }
    let flags = [
        "--metrics-endpoint-auth=false",
        &format!("--worker-threads={THREADS}"),
        "--outlier-detection=false",
    ];
    let usher = Usher::start(&servers.addresses, &flags).await;
    let edits = [
        ("failure_mode_allow: true", "failure_mode_allow: false"),
        // The simulated servers get a thousand connections at once.
        ("connect_timeout: 1s", "connect_timeout: 20s"),
        // Envoy's own threads are busy, too.
        ("- timeout: 1s", "- timeout: 20s"),
    ];
    let envoy = Envoy::start_on(2, ORIGINAL_DST, usher.address, &servers.addresses, &edits).await;

    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(ask(envoy.address))).collect();
    let (mut responses, mut looks) = (pin!(join_all(clients)), Vec::new());
    let responses = loop {
        tokio::select! {
            responses = &mut responses => break responses,
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                looks.push(streams(&usher, "usher_worker_streams").await);
            }
        }
    };
    let wrong: Vec<_> = responses.into_iter().flat_map(Result::unwrap).collect();

    let took = streams(&usher, "usher_worker_streams_total").await;
    let connections = envoy.statistic("cluster.usher.upstream_cx_total").await;
    println!("streams by thread {took:?}, {connections} connections, {} failures", wrong.len());
    assert_eq!(wrong, Vec::<String>::new());
    let requests = (CLIENTS * AT_A_TIME * ROUNDS) as u64;
    assert!(took.len() == THREADS && took.iter().sum::<u64>() >= requests, "{took:?}");
    // Nearly all are under way.
    looks.retain(|open| open.iter().sum::<u64>() > (CLIENTS * AT_A_TIME) as u64 * 9 / 10);
    assert!(looks.len() > 10, "{looks:?}");
    // On average: for moments a thread whose streams all end at once has fewer than the others. How many
    // each took says less: while few are open, a thread takes up to 100 whatever the others do.
    let carried: Vec<u64> = (0..THREADS).map(|thread| looks.iter().map(|open| open[thread]).sum()).collect();
    let most = *carried.iter().max().unwrap();
    assert!(10 * most * THREADS as u64 <= 13 * carried.iter().sum::<u64>(), "{carried:?}");
    // A full connection has 100 streams, and the first of each thread more, until they end: how many more depends on
    // when Envoy reads the limit.
    assert!(connections > 2, "{connections}");
}
