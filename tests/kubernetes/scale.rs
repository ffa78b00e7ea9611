//! A pool of two thousand pods.

use futures_util::StreamExt;

use crate::objects::least;
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

const PODS: u32 = 2000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_pods_are_endpoints() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    let ip = |number: u32| format!("10.6.{}.{}", number / 250, number % 250 + 1);
    let made = futures_util::stream::iter(0..PODS).map(|number| {
        let (space, ip) = (space.clone(), ip(number));
        async move { space.pod(&format!("pod-{number}"), &ip, "m").await }
    });
    made.buffer_unordered(16).collect::<Vec<()>>().await;
    // More than one page of the list.
    let picker = Picker::of_pool(server, &space, &["--refresh-metrics-interval=30s"]).await;
    picker.turns(true).await;
    assert_eq!(picker.members().await.len(), PODS as usize, "all of them from the start");
    space.status("pod-7", &ip(7), false).await;
    eventually("one to go", async || (picker.members().await.len() == PODS as usize - 1).then_some(())).await;
}
