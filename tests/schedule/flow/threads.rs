//! Requests on several threads, each with a runtime of its own, as the server has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use usher::endpoints::SubsetHint;

use crate::flow::pool::{Pool, config, of};

#[tokio::test]
async fn threads_never_exceed_capacity_or_lose_a_request() {
    const THREADS: usize = 4;
    const EACH: usize = 400;
    const ROOM: i64 = 6;
    let pool = Pool::new(&config(2, "defaultRequestTTL: 600s"), 3);
    let (running, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (dispatcher, running, most) =
                (Arc::clone(&pool.dispatcher), Arc::clone(&running), Arc::clone(&most));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let local = async {
                    let requests = (0..EACH).map(|number| {
                        let (dispatcher, running, most) = (&dispatcher, &running, &most);
                        async move {
                            let request = of(&format!("{thread}"), (number % 3) as i32 - 1);
                            let missing = SubsetHint::Missing;
                            let routed = dispatcher.enter(&Arc::new(request), &missing).decided().await;
                            let routed = routed.unwrap();
                            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            for _ in 0..number % 5 {
                                tokio::task::yield_now().await;
                            }
                            running.fetch_sub(1, Ordering::SeqCst);
                            drop(routed);
                        }
                    });
                    futures_util::future::join_all(requests).await.len()
                };
                runtime.block_on(local)
            })
        })
        .collect();
    // The task of the gate needs this thread.
    let joined = tokio::task::spawn_blocking(move || {
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(joined.await.unwrap(), THREADS * EACH);
    let most = most.load(Ordering::SeqCst);
    assert!(most > 1 && most <= ROOM, "{most}");
    assert!(pool.demand().is_empty());
    assert_eq!((-1..2).map(|priority| pool.outcome("Dispatched", priority)).sum::<f64>(), 1600.0);
}
