//! A server that fails at once among nine that work, and one that goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use usher::sim::Fault;

use crate::ORIGINAL_DST;
use crate::support::client::{Client, Protocol};
use crate::support::envoy::Envoy;
use crate::support::servers::{SERVERS, Servers};
use crate::support::usher::Usher;
use crate::traffic::{chat, post_chat};

const TEN: usize = 10;
const CONCURRENCY: usize = 8;

/// Sends so many requests, some at a time. Returns how many failed, and who served the
/// others, by server.
async fn send(envoy: &Envoy, total: usize) -> (usize, Vec<usize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let client = |_| {
        let asked = Arc::clone(&asked);
        async move {
            let (mut failed, mut served) = (0, vec![0; TEN]);
            let mut client = Client::connect(envoy.address, Protocol::Http1).await.unwrap();
            loop {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                if number >= total {
                    return (failed, served);
                }
                // Each begins with another text, so that nobody has it cached.
                let body = chat(100).replacen("All work", &format!("Work {number}"), 1);
                let response = client.exchange(post_chat(body)).await.unwrap();
                match response.status.as_u16() {
                    200 => served[response.server()] += 1,
                    _ => failed += 1,
                }
            }
        }
    };
    let parts = join_all((0..CONCURRENCY).map(client)).await;
    let served = (0..TEN).map(|server| parts.iter().map(|(_, served)| served[server]).sum()).collect();
    (parts.iter().map(|(failed, _)| failed).sum(), served)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_failing_server_gets_few_requests_and_recovers() {
    let mut servers = Servers::start_many(TEN).await;
    let usher = Usher::start(&servers.addresses, &["--outlier-detection"]).await;
    // The destination is in a header, so Envoy need not know all of them.
    let envoy = Envoy::start(ORIGINAL_DST, usher.address, &servers.addresses[..SERVERS], &[]).await;

    let (failed, served) = send(&envoy, 500).await;
    assert_eq!(failed, 0);
    assert!(served.iter().all(|served| *served > 0), "{served:?}");

    let slow = Some(Duration::from_millis(1));
    servers.set_fault(0, &Fault { status: Some(503), slow, ..Fault::default() }).await;
    let (failed, served) = send(&envoy, 3000).await;
    println!("{failed} of 3000 requests went to the server that fails");
    // Three until it is ejected, and some that were on their way or its probes.
    assert!((3..90).contains(&failed), "{failed}");
    assert!(served[1..].iter().all(|served| *served > 100), "{served:?}");

    servers.set_fault(0, &Fault::default()).await;
    let ejections = async {
        let mut ejections = 0;
        let back = usher.log().find(0, "a recovery", |line| {
            ejections += usize::from(line.contains("endpoint ejected"));
            line.contains("ejected endpoint works again").then_some(())
        });
        back.await;
        ejections
    };
    tokio::pin!(ejections);
    let ejections = loop {
        tokio::select! {
            biased;
            ejections = &mut ejections => break ejections,
            (failed, _) = send(&envoy, 100) => assert_eq!(failed, 0),
        }
    };
    assert_eq!(ejections, 1, "logged once");
    let (failed, served) = send(&envoy, 1000).await;
    assert_eq!(failed, 0);
    // Some 20 to 40: what the others have cached stays with them.
    assert!(served[0] > 10, "{served:?}");

    // One that goes away: Envoy can't connect to it, and says 503.
    servers.kill(5).await;
    let (failed, served) = send(&envoy, 2000).await;
    println!("{failed} of 2000 requests went to the server that is gone");
    assert!(failed < 60 && served[5] == 0, "{failed} {served:?}");
}

/// Eight servers under 100 requests per second, one of which takes requests and never
/// responds. Clients wait for three seconds. Those of a loaded machine may give up on others, too, so
/// requests are counted where they come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_server_fails_few_requests() {
    const PATIENCE: Duration = Duration::from_secs(3);
    let servers = Servers::start_many(8).await;
    let usher = Usher::start(&servers.addresses, &[]).await;
    let envoy = Envoy::start(ORIGINAL_DST, usher.address, &servers.addresses[..SERVERS], &[]).await;
    let (failed, _) = send(&envoy, 500).await;
    assert_eq!(failed, 0);

    let taken = async || servers.state(0).await["requests"].as_u64().unwrap();
    let before = taken().await;
    servers.set_fault(0, &Fault { hang: true, ..Fault::default() }).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let requests = (0..1000).map(|number| {
        let body = chat(100).replacen("All work", &format!("Idle {number}"), 1);
        async move {
            let mut client = Client::connect(envoy.address, Protocol::Http1).await.unwrap();
            matches!(tokio::time::timeout(PATIENCE, client.exchange(post_chat(body))).await, Ok(Ok(response)) if response.status == 200)
        }
    });
    let mut asked = tokio::task::JoinSet::new();
    for request in requests {
        ticks.tick().await;
        asked.spawn(request);
    }
    let answered = asked.join_all().await;
    let timeouts = answered.iter().filter(|answered| !**answered).count();
    let taken = taken().await - before;
    println!("{timeouts} of 1000 requests were not answered, {taken} of them by the server that hangs");
    // Three or more until it is ejected, and its probes.
    assert!((1..=20).contains(&taken), "{taken}");
}
