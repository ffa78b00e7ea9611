//! Requests that wait, over gRPC.

use std::collections::HashMap;
use std::path::Path;

use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use futures_util::future::join_all;

use crate::support::*;

const POST: [(&str, &str); 1] = [(":path", "/v1/completions")];
const CROWD: usize = 2000;

fn config(max_concurrency: usize, flow_control: &str) -> String {
    format!(
        "--config-text=\
         {{featureGates: [flowControl],\
         plugins: [{{type: concurrency-detector, parameters: {{maxConcurrency: {max_concurrency}}}}}, {{type: queue-scorer}}],\
         flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}, {flow_control}}}}}"
    )
}

/// Makes so many endpoints the pool.
fn scale(file: &Path, endpoints: usize) {
    let entries = (1..=endpoints).map(|i| format!("- {{name: pod-{i}, address: 127.0.0.{i}, port: '1'}}\n"));
    let text = format!("endpoints:\n{}", entries.collect::<String>());
    let written = file.with_extension("new");
    std::fs::write(&written, if endpoints == 0 { "endpoints: []".to_owned() } else { text }).unwrap();
    std::fs::rename(written, file).unwrap();
}

/// A picker over a file of so many endpoints.
async fn picker(config: &str, endpoints: usize) -> (Picker, std::path::PathBuf) {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("endpoints.yaml");
    scale(&path, endpoints);
    let file = format!("--endpoints-file={}", path.display());
    (Picker::serve(files, &[&file, config]).await, path)
}

async fn post(connection: &Connection) -> Stream {
    let stream = connection.stream().await;
    stream.send(headers(&POST, false));
    stream.send(body(PROMPT, true));
    stream
}

fn demand(picker: &Picker) -> f64 {
    let series = "usher_demand_requests{model_name=\"m\",priority=\"0\",target_model_name=\"m\"}";
    picker.metric(series).unwrap_or_default()
}

/// Waits until so many requests wait.
async fn until_waiting(picker: &Picker, count: usize) {
    while demand(picker) != count as f64 {
        // The client's own connections need this thread, too.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn queued_requests_are_served_by_all_new_endpoints() {
    let (picker, file) = picker(&config(100_000, ""), 0).await;
    let connections = join_all((0..8).map(|_| picker.connect())).await;
    let mut crowd = Vec::new();
    for number in 0..CROWD {
        crowd.push(post(&connections[number % connections.len()]).await);
    }
    until_waiting(&picker, CROWD).await;
    scale(&file, 4);
    let mut served: HashMap<String, usize> = HashMap::new();
    let destinations = crowd.iter_mut().map(|stream| async { stream.request_headers().await });
    for mutation in join_all(destinations).await {
        *served.entry(mutation.destination().to_owned()).or_default() += 1;
    }
    assert_eq!(served.values().sum::<usize>(), CROWD);
    assert_eq!(served.len(), 4, "{served:?}");
    assert!(served["127.0.0.1:1"] <= CROWD / 4 + CROWD / 40, "{served:?}");
    assert!(served.values().all(|count| *count <= CROWD / 4 + CROWD / 40), "{served:?}");
    assert_eq!(demand(&picker), 0.0);
    let dispatched =
        "llm_d_epp_flow_control_requests_total{inference_pool=\"epp\",outcome=\"Dispatched\",priority=\"0\"}";
    assert_eq!(picker.metric(dispatched), Some(CROWD as f64));
}

#[tokio::test]
async fn disconnected_client_frees_its_slot() {
    let (picker, _file) = picker(&config(1, "maxRequests: 1"), 1).await;
    let connection = picker.connect().await;
    let mut first = post(&connection).await;
    assert_eq!(first.request_headers().await.destination(), "127.0.0.1:1");
    let waits = post(&connection).await;
    until_waiting(&picker, 1).await;
    let refused = post(&connection).await.immediate().await;
    assert_eq!(refused.status.unwrap().code, 429);
    assert!(refused.body.starts_with(b"inference error: ResourceExhausted - request rejected pre-queue"));
    waits.disconnect();
    until_waiting(&picker, 0).await;
    let mut next = post(&connection).await;
    until_waiting(&picker, 1).await;
    first.disconnect();
    assert_eq!(next.request_headers().await.destination(), "127.0.0.1:1");
}

#[tokio::test]
async fn queued_request_ends_at_ttl_and_at_shutdown() {
    let (picker, _file) = picker(&config(1, "noEndpointRequestTTL: 50ms"), 0).await;
    let connection = picker.connect().await;
    let refused = post(&connection).await.immediate().await;
    assert_eq!(refused.status.unwrap().code, 503);
    let reason = refused.headers.unwrap().set_headers[0].header.clone().unwrap();
    assert_eq!(
        (reason.key.as_str(), reason.raw_value.as_slice()),
        ("x-llm-d-request-dropped-reason", &b"rejected-no-endpoints"[..])
    );

    let (picker, _file) = self::picker(&config(1, "noEndpointRequestTTL: 0s"), 0).await;
    let connection = picker.connect().await;
    let mut waits = post(&connection).await;
    until_waiting(&picker, 1).await;
    picker.stop();
    let refused = waits.immediate().await;
    assert_eq!(refused.status.unwrap().code, 503);
    let reason = refused.headers.unwrap().set_headers[0].header.clone().unwrap();
    assert_eq!(reason.raw_value, b"rejected-shutting-down");
}

#[tokio::test]
async fn uploading_body_is_served_during_shutdown() {
    let (picker, _file) = picker(&config(1, "defaultRequestTTL: 0s"), 1).await;
    let connection = picker.connect().await;
    let (begin, rest) = PROMPT.split_at(10);
    let half = async || {
        let stream = connection.stream().await;
        stream.send(headers(&POST, false));
        stream.send(body(begin, false));
        stream
    };
    let (mut fits, mut waits) = (half().await, half().await);
    let mut first = post(&connection).await;
    first.request_headers().await;
    let mut second = post(&connection).await;
    until_waiting(&picker, 1).await;
    picker.stop();
    assert_eq!(second.immediate().await.status.unwrap().code, 503);

    // There is room, and then none.
    first.disconnect();
    while picker.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    fits.send(body(rest, true));
    assert_eq!(fits.request_headers().await.destination(), "127.0.0.1:1");
    waits.send(body(rest, true));
    let refused = waits.immediate().await;
    assert_eq!(refused.status.unwrap().code, 503);
    let reason = refused.headers.unwrap().set_headers[0].header.clone().unwrap();
    assert_eq!(reason.raw_value, b"rejected-shutting-down");
}

#[tokio::test]
async fn only_requests_that_would_have_to_wait_are_refused_while_draining() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("endpoints.yaml");
    scale(&path, 1);
    let file = format!("--endpoints-file={}", path.display());
    let config = config(1, "defaultRequestTTL: 0s");
    let picker = Picker::serve(files, &[&file, &config, "--drain-timeout=1h"]).await;
    let connection = picker.connect().await;
    let (begin, rest) = PROMPT.split_at(10);
    let mut half = connection.stream().await;
    half.send(headers(&POST, false));
    half.send(body(begin, false));
    let mut first = post(&connection).await;
    first.request_headers().await;
    let mut queued = post(&connection).await;
    until_waiting(&picker, 1).await;
    picker.drain();

    // One that comes before the stop is noticed waits.
    let refused = loop {
        let mut comes = post(&connection).await;
        let reply = loop {
            match comes.ready_reply() {
                None if demand(&picker) < 2.0 => tokio::task::yield_now().await,
                reply => break reply,
            }
        };
        match reply.map(|reply| reply.response.unwrap()) {
            Some(Reply::ImmediateResponse(refused)) => break refused,
            Some(other) => panic!("{other:?}"),
            None => comes.disconnect(),
        }
        until_waiting(&picker, 1).await;
    };
    assert_eq!(refused.status.unwrap().code, 503);
    let reason = refused.headers.unwrap().set_headers[0].header.clone().unwrap();
    assert_eq!(reason.raw_value, b"rejected-shutting-down");

    // The one that was queued before goes on waiting, and the rest of a body finds its room.
    first.disconnect();
    assert_eq!(queued.request_headers().await.destination(), "127.0.0.1:1");
    queued.disconnect();
    while picker.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    half.send(body(rest, true));
    assert_eq!(half.request_headers().await.destination(), "127.0.0.1:1");
}
