//! Scrape times of endpoints, on a clock that only advances while all tasks wait.

use std::time::Duration;

use tokio::time::{advance, sleep};
use usher::scrape::ScrapeConfig;

use crate::pages::pool::Pool;
use crate::pages::server::{Server, Step, ok, page};

const LIVE: usize = 100;

/// The oldest that the data of each live endpoint get in a second, in milliseconds.
async fn oldest(dead: bool) -> Vec<u64> {
    let mut servers = Vec::new();
    for _ in 0..LIVE {
        servers.push(Server::start(|_| ok(&page(3))).await);
    }
    let mut addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let hung = Server::start(|_| vec![Step::Hang]).await;
    if dead {
        // Two that refuse connections, three that never respond, among the others.
        for place in [3, 40] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.insert(place, listener.local_addr().unwrap());
        }
        for place in [0, 50, 90] {
            addresses.insert(place, hung.address);
        }
    }
    // The pool's clock starts at the real time, which must not be ahead of this one.
    advance(Duration::from_secs(3600)).await;
    let pool = Pool::start(&addresses, ScrapeConfig::default());
    let loads: Vec<_> = (0..addresses.len()).map(|index| pool.load(index)).collect();
    let lives = |address: &std::net::SocketAddr| {
        *address != hung.address && servers.iter().any(|server| server.address == *address)
    };
    let live: Vec<_> =
        loads.iter().zip(&addresses).filter(|(_, address)| lives(address)).map(|(load, _)| load).collect();
    assert_eq!(live.len(), LIVE);
    sleep(Duration::from_millis(200)).await;
    let mut oldest = vec![0; LIVE];
    for _ in 0..200 {
        sleep(Duration::from_millis(5)).await;
        let now_ms = pool.clock.at(tokio::time::Instant::now().into_std());
        for (oldest, load) in oldest.iter_mut().zip(&live) {
            *oldest = now_ms.saturating_sub(load.waiting.read_at_ms().expect("it was scraped")).max(*oldest);
        }
    }
    let failed = loads.iter().filter(|load| load.scrapes.failures_in_a_row() > 0).count();
    assert_eq!(failed, addresses.len() - LIVE);
    oldest
}

#[tokio::test(start_paused = true)]
async fn dead_endpoints_do_not_age_data_of_others() {
    let (alone, among_dead) = (oldest(false).await, oldest(true).await);
    for oldest in alone.iter().chain(&among_dead) {
        assert!((45..55).contains(oldest), "{oldest} ms");
    }
}
