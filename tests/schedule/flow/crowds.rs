//! Many requests at once.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::advance;

use crate::flow::pool::{Pool, Sent, config, of, settle};

const CROWD: usize = 2000;

/// Serves a crowd until all of it is answered, each request for some milliseconds, and
/// returns how many went where.
async fn serve(crowd: Vec<Sent>) -> HashMap<String, usize> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut tasks = JoinSet::new();
    for sent in crowd {
        let takes = Duration::from_millis(rng.random_range(20..60));
        tasks.spawn(async move {
            let routed = sent.outcome().await.unwrap_or_else(|rejection| panic!("{rejection:?}"));
            let destination = String::from_utf8(routed.destination().to_vec()).unwrap();
            tokio::time::sleep(takes).await;
            drop(routed);
            destination
        });
    }
    let mut served = HashMap::new();
    while let Some(destination) = tasks.join_next().await {
        *served.entry(destination.unwrap()).or_default() += 1;
    }
    served
}

fn assert_shared(served: &HashMap<String, usize>, endpoints: usize) {
    assert_eq!(served.values().sum::<usize>(), CROWD);
    assert_eq!(served.len(), endpoints, "{served:?}");
    let share = CROWD / endpoints;
    let most = served.values().max().unwrap();
    assert!(*most <= share + share / 10, "{served:?}");
}

async fn crowd(pool: &Pool) -> Vec<Sent> {
    let crowd: Vec<Sent> =
        (0..CROWD).map(|number| pool.send(of(&format!("flow-{}", number % 7), 0))).collect();
    settle().await;
    assert_eq!(pool.demand().requests(), CROWD as u64);
    crowd
}

#[tokio::test(start_paused = true)]
async fn requests_queued_before_an_empty_pool_are_spread() {
    // With little room at each, and with room for all of them at one.
    for max_concurrency in [10, 100, 100_000] {
        let pool = Pool::new(&config(max_concurrency, ""), 0);
        let crowd = crowd(&pool).await;
        pool.scale(4);
        assert_shared(&serve(crowd).await, 4);
        assert_eq!(pool.outcome("Dispatched", 0), CROWD as f64);
        assert!(pool.demand().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn first_endpoint_does_not_get_the_whole_queue() {
    let pool = Pool::new(&config(100_000, ""), 0);
    let crowd = crowd(&pool).await;
    for endpoints in 1..=4 {
        pool.scale(endpoints);
        settle().await;
        advance(Duration::from_millis(90)).await;
    }
    assert_shared(&serve(crowd).await, 4);
}

#[tokio::test(start_paused = true)]
async fn late_endpoint_gets_its_share_of_the_queue() {
    let pool = Pool::new(&config(10, ""), 0);
    let crowd = crowd(&pool).await;
    pool.scale(1);
    let (served, ()) = tokio::join!(serve(crowd), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        pool.scale(4);
    });
    assert_eq!(served.values().sum::<usize>(), CROWD);
    // Ten at a time of 40 ms each: about 250 in a second, and the settle window before.
    let first = served["10.0.0.1:8000"];
    assert!((700..1000).contains(&first), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn removed_endpoints_leave_the_queue_unchanged() {
    let pool = Pool::new(&config(100, ""), 0);
    let crowd = crowd(&pool).await;
    for _ in 0..3 {
        pool.scale(2);
        settle().await;
        advance(Duration::from_millis(50)).await;
        pool.scale(0);
        settle().await;
    }
    assert_eq!(pool.demand().requests(), CROWD as u64);
    pool.scale(2);
    assert_shared(&serve(crowd).await, 2);
}

#[tokio::test(start_paused = true)]
async fn disconnected_clients_leave_an_empty_queue() {
    let pool = Pool::new(&config(1, "priorityBands: [{priority: 0, maxRequests: 20000}]"), 1);
    let running = pool.pass(of("a", 0)).await;
    let crowd: Vec<Sent> = (0..10_000).map(|number| pool.send(of(&format!("flow-{number}"), 0))).collect();
    settle().await;
    assert_eq!(pool.demand().requests(), 10_000);
    drop(crowd);
    settle().await;
    assert!(pool.demand().is_empty());
    assert_eq!(pool.outcome("EvictedContextCancelled", 0), 10_000.0);
    drop(running);
    assert!(pool.send(of("a", 0)).now().await.is_ok());
}
