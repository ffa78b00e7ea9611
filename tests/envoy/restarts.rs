//! Pickers that are restarted under load and with flow control.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use serde_json::json;
use usher::sim::Fault;

use crate::pickers;
use crate::support::client::{self, Client, Protocol};
use crate::support::eventually;
use crate::support::servers::{SERVERS, Servers};
use crate::support::usher::Usher;
use crate::traffic::{chat, post_chat};

const RESTARTS: usize = 20;
const CLIENTS: usize = 8;

const FLOW_CONTROL: &str = "
featureGates: [flowControl]
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 64}}
- {type: queue-scorer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
";

/// Asks until `done`, with bodies of all sizes, every third for a stream. Returns how many were
/// answered, and what went wrong.
async fn ask(envoy: std::net::SocketAddr, client: usize, done: Arc<AtomicBool>) -> (usize, Vec<String>) {
    let protocol = if client.is_multiple_of(2) { Protocol::Http1 } else { Protocol::Http2 };
    let (mut answered, mut wrong) = (0, Vec::new());
    let mut connection = Client::connect(envoy, protocol).await.unwrap();
    for number in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let size = [50, 2_000, 40_000, 200_000][number % 4];
        let mut body: serde_json::Value = serde_json::from_str(&chat(size)).unwrap();
        if number.is_multiple_of(3) {
            body["stream"] = true.into();
            body["max_tokens"] = json!(100);
        }
        match connection.exchange(post_chat(body.to_string())).await {
            Ok(response) if response.status == 200 => answered += 1,
            Ok(response) => wrong.push(format!("{} {}", response.status, response.text())),
            Err(error) => {
                wrong.push(error.to_string());
                connection = Client::connect(envoy, protocol).await.unwrap();
            }
        }
    }
    (answered, wrong)
}

/// Requests that wait at a picker.
async fn waiting(usher: &Usher) -> usize {
    let request = Request::get("/metrics").body(client::empty()).unwrap();
    let page = client::send(usher.port("metrics").await, Protocol::Http1, request).await;
    let series = page.text().lines().filter(|line| line.starts_with("llm_d_epp_flow_control_queue_size{"));
    series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_requests_are_served_by_a_picker_that_stops() {
    const QUEUED: usize = 5;
    let servers = Servers::start().await;
    for index in 0..SERVERS {
        // Longer than all requests take to come.
        servers.set_fault(index, &Fault { slow: Some(Duration::from_secs(2)), ..Fault::default() }).await;
    }
    let one_at_a_time = FLOW_CONTROL.replace("64", "1");
    let flags = ["--config-text", &one_at_a_time, "--drain-timeout=60s", "--metrics-endpoint-auth=false"];
    let usher = Usher::start(&servers.addresses, &flags).await;
    let envoy = pickers::spread(&[usher.address], &servers.addresses, &[]).await;
    let ask = || async {
        let mut connection = Client::connect(envoy.address, Protocol::Http1).await.unwrap();
        connection.exchange(post_chat(chat(200))).await.map_or(0, |response| response.status.as_u16())
    };
    let asked = join_all((0..SERVERS + QUEUED).map(|_| ask()));
    let stopped = async {
        eventually("requests that wait", async || (waiting(&usher).await == QUEUED).then_some(())).await;
        usher.signal("TERM").await;
    };
    let (statuses, ()) = futures_util::join!(asked, stopped);
    assert_eq!(statuses, [200; SERVERS + QUEUED]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_over_twenty_restarts() {
    let servers = Servers::start().await;
    let flags = ["--config-text", FLOW_CONTROL, "--drain-timeout=3s"];
    let mut ushers = Vec::new();
    for _ in 0..2 {
        ushers.push(Usher::start(&servers.addresses, &flags).await);
    }
    let addresses = [ushers[0].address, ushers[1].address];
    let envoy = pickers::spread(&addresses, &servers.addresses, &[]).await;

    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(ask(envoy.address, client, Arc::clone(&done)))).collect();
    for _ in 0..RESTARTS {
        let mut usher = ushers.remove(0);
        usher.terminate().await;
        ushers.push(usher.restart().await);
        envoy.has_pickers(2).await;
    }
    done.store(true, Ordering::Relaxed);
    let (mut answered, mut wrong) = (0, Vec::new());
    for client in clients {
        let (more, failed) = client.await.unwrap();
        answered += more;
        wrong.extend(failed);
    }
    println!("{answered} requests, {RESTARTS} restarts, {} failures", wrong.len());
    assert!(answered > 1000, "{answered}");
    assert_eq!(wrong, Vec::<String>::new());
}
