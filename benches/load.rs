//! Real gRPC streams over loopback, answered by a real server: one request and
//! its response per stream, one stream and 32 at a time, bodies of 200 and of
//! 100,000 tokens. The client is generated from Envoy's own definitions and shares
//! the machine, so this is the cost of both ends.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Kind;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders, ProcessingRequest};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use usher::extproc::call::{Calls, MessageLimits};
use usher::extproc::health::HealthState;
use usher::extproc::server::{Server, ServerOptions};
use usher::extproc::service::ProcessCall;
use usher::extproc::stop::StopSignals;

#[path = "common/bodies.rs"]
mod bodies;
#[path = "common/picker.rs"]
mod picker;

type Client = ExternalProcessorClient<Channel>;

fn request(kind: Kind) -> ProcessingRequest {
    ProcessingRequest { request: Some(kind), ..ProcessingRequest::default() }
}

fn headers(pairs: &[(&str, &str)]) -> HttpHeaders {
    let headers = pairs.iter().map(|(key, value)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: value.as_bytes().to_vec(),
        ..HeaderValue::default()
    });
    HttpHeaders { headers: Some(HeaderMap { headers: headers.collect() }), ..HttpHeaders::default() }
}

fn body(bytes: &[u8], end_of_stream: bool) -> HttpBody {
    HttpBody { body: bytes.to_vec(), end_of_stream, ..HttpBody::default() }
}

/// The messages of one request and its response.
fn messages(bytes: usize) -> Vec<ProcessingRequest> {
    let chunks = bodies::completions(bytes);
    let mut messages = vec![request(Kind::RequestHeaders(headers(&bodies::HEADERS)))];
    for (index, chunk) in chunks.iter().enumerate() {
        messages.push(request(Kind::RequestBody(body(chunk, index + 1 == chunks.len()))));
    }
    let status = [(":status", "200"), ("content-type", "application/json")];
    messages.push(request(Kind::ResponseHeaders(headers(&status))));
    messages.push(request(Kind::ResponseBody(body(&picker::response(), true))));
    messages
}

/// Sends one exchange and reads every reply.
async fn exchange(mut client: Client, messages: Vec<ProcessingRequest>) {
    let replies = client.process(tokio_stream::iter(messages)).await.unwrap();
    let mut replies = replies.into_inner();
    while replies.message().await.unwrap().is_some() {}
}

fn start(runtime: &Runtime) -> Client {
    let picker = picker::Picker::new(10);
    let bind = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (extproc, health) = (bind(), bind());
    let address = extproc.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limits = MessageLimits { receive: 4 << 20, send: usize::MAX };
            let service = Calls::new(move || ProcessCall::new(&picker.shared, &picker.dispatcher), limits);
            let options = ServerOptions {
                threads: 1,
                tls: None,
                drain_timeout: Duration::ZERO,
                budget: Default::default(),
            };
            let health_state = Arc::new(HealthState::new(false));
            let server = Server::start(extproc, health, service, health_state, options).unwrap();
            let (_stopper, mut stops) = StopSignals::channel();
            server.run(&mut stops).await;
        });
    });
    runtime.block_on(Client::connect(format!("http://{address}"))).unwrap()
}

fn load(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = start(&runtime);
    let mut group = c.benchmark_group("load");
    group.sample_size(20);
    for (tokens, bytes) in [(200, 800), (100_000, 400_000)] {
        let messages = messages(bytes);
        for concurrency in [1u64, 32] {
            let id = BenchmarkId::new(format!("{tokens} tokens"), format!("{concurrency} at a time"));
            group.bench_function(id, |b| {
                b.iter_custom(|count| {
                    let start = Instant::now();
                    runtime.block_on(async {
                        let workers = (0..concurrency).map(|worker| {
                            let (client, messages) = (client.clone(), messages.clone());
                            let share = count / concurrency + u64::from(worker < count % concurrency);
                            tokio::spawn(async move {
                                for _ in 0..share {
                                    exchange(client.clone(), messages.clone()).await;
                                }
                            })
                        });
                        for worker in workers.collect::<Vec<_>>() {
                            worker.await.unwrap();
                        }
                    });
                    start.elapsed()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, load);
criterion_main!(benches);
