//! Traces of requests, as a collector gets them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value::{DoubleValue, IntValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use usher::settings::Environment;

use crate::collector::{Collector, attributes, text};
use crate::support::*;

const TWO: &str = "- {name: a, address: 127.0.0.1, port: '1'}\n- {name: b, address: 127.0.0.2, port: '1'}\n";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SECRET: &str = "a secret of the client";

/// Two scorers and no filter.
const CONFIG: &str = "--config-text=
plugins:
- type: queue-scorer
- {type: kv-cache-utilization-scorer, name: cache}
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: cache, weight: 3}
  - {pluginRef: max-score-picker}
";

fn environment(variables: &[(&str, &str)]) -> Environment {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Environment { otel: variables.iter().map(owned).collect(), ..Environment::default() }
}

/// A picker over these endpoints that exports to `collector` at once.
async fn picker(entries: &str, collector: &str, flags: &[&str], variables: &[(&str, &str)]) -> Picker {
    let at = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector), ("OTEL_BSP_SCHEDULE_DELAY", "1")];
    Picker::start_in(entries, flags, environment(&[&at[..], variables].concat())).await
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Sends a request, and returns the reply to its headers.
async fn send(picker: &Picker, extra: &[(&str, &str)]) -> (Stream, Mutation) {
    let mut stream = picker.stream().await;
    let base = [(":method", "POST"), (":path", "/v1/completions?key=s3cret"), ("x-request-id", "r-1")];
    stream.send(headers(&[&base, extra].concat(), false));
    let prompt = format!(r#"{{"model":"m","prompt":"{SECRET}","max_tokens":5}}"#);
    stream.send(body(prompt, true));
    let mutation = stream.request_headers().await;
    stream.request_body().await;
    (stream, mutation)
}

/// Answers a request.
async fn respond(stream: &mut Stream) {
    stream.send(response_headers(&[(":status", "200"), ("content-type", "application/json")], false));
    stream.response_headers().await;
    let usage = r#"{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}"#;
    stream.send(response_body(format!(r#"{{"choices":[{{"text":"{SECRET}"}}],"usage":{usage}}}"#), true));
    stream.response_body().await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The only span with this name.
fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut named = spans.iter().filter(|span| span.name == name);
    let span = named.next().unwrap_or_else(|| panic!("no {name}: {spans:#?}"));
    assert!(named.next().is_none(), "{name} is there twice");
    span
}

#[tokio::test]
async fn request_spans_are_children_of_the_caller() {
    let collector = Collector::start().await;
    let variables = [("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")];
    let picker = picker(TWO, &url(collector.address), &[CONFIG], &variables).await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let context = [("traceparent", parent.as_str()), ("tracestate", "vendor=1"), ("baggage", "user=1")];
    let (mut stream, mutation) = send(&picker, &context).await;
    respond(&mut stream).await;
    let received = collector.requests(1).await;
    let spans = &received.spans;
    assert_eq!(received.resource.get("service.name").cloned(), text("llm-d-epp"));
    assert_eq!(received.resource.get("deployment.environment.name").cloned(), text("test"));

    // Each is below another, within its time.
    let tree = [
        ("gateway.request_orchestration", "gateway.request"),
        ("run_scheduler_profile", "gateway.request_orchestration"),
        ("filter_endpoints", "run_scheduler_profile"),
        ("llm_d.epp.scoring", "run_scheduler_profile"),
        ("llm_d.epp.scorer.queue-scorer", "llm_d.epp.scoring"),
        ("llm_d.epp.scorer.kv-cache-utilization-scorer", "llm_d.epp.scoring"),
    ];
    assert_eq!(spans.len(), tree.len() + 1, "{spans:#?}");
    for (name, parent) in tree {
        let (span, parent) = (only(spans, name), only(spans, parent));
        assert_eq!(span.parent_span_id, parent.span_id, "{name}");
        assert_eq!(span.kind, 1, "{name}");
        assert!(span.start_time_unix_nano >= parent.start_time_unix_nano, "{name}");
        assert!(span.end_time_unix_nano <= parent.end_time_unix_nano, "{name}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{name}");
    }
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE && span.trace_state == "vendor=1"));
    assert_eq!(spans.iter().map(|span| &span.span_id).collect::<BTreeSet<_>>().len(), spans.len());

    let request = only(spans, "gateway.request");
    assert_eq!((hex(&request.parent_span_id).as_str(), request.kind), ("00f067aa0ba902b7", 2));
    assert!(request.status.is_none());
    // The endpoint goes on below it; what else the caller says passes through.
    let below = format!("00-{TRACE}-{}-01", hex(&request.span_id));
    assert_eq!(mutation.get("traceparent"), Some(below.as_str()));
    for name in ["tracestate", "baggage"] {
        assert!(mutation.get(name).is_none() && !mutation.removed.iter().any(|removed| removed == name));
    }

    let of = |name| attributes(&only(spans, name).attributes);
    let request = of("gateway.request");
    for (key, value) in [
        ("http.request.method", "POST"),
        ("url.path", "/v1/completions"),
        ("gen_ai.operation.name", "text_completion"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.request.id", "r-1"),
    ] {
        assert_eq!(request.get(key).cloned(), text(value), "{key}");
    }
    for (key, value) in [
        ("http.response.status_code", 200),
        ("gen_ai.request.max_tokens", 5),
        ("gen_ai.usage.input_tokens", 7),
        ("gen_ai.usage.output_tokens", 3),
        ("gen_ai.usage.cache_read.input_tokens", 4),
    ] {
        assert_eq!(request.get(key), Some(&IntValue(value)), "{key}");
    }
    let orchestration = of("gateway.request_orchestration");
    assert_eq!(orchestration.get("target_model").cloned(), text("m"));
    assert_eq!(orchestration.get("usher.destination").cloned(), text(mutation.destination()));
    assert_eq!(
        of("run_scheduler_profile").get("llm_d.epp.scheduling.profile.name").cloned(),
        text("default")
    );
    assert_eq!(of("filter_endpoints").get("llm_d.epp.filter.candidate_endpoints"), Some(&IntValue(2)));
    assert_eq!(of("llm_d.epp.scoring").get("llm_d.epp.scorer.count"), Some(&IntValue(2)));
    let scorer = of("llm_d.epp.scorer.kv-cache-utilization-scorer");
    assert_eq!(scorer.get("llm_d.epp.scorer.name").cloned(), text("cache"));
    assert_eq!(scorer.get("llm_d.epp.scorer.weight"), Some(&DoubleValue(3.0)));

    let all = format!("{received:?}");
    assert!(!all.contains(SECRET) && !all.contains("s3cret"), "{all}");
}

#[tokio::test]
async fn refusal_and_disconnect_are_span_errors() {
    let collector = Collector::start().await;
    let always = [("OTEL_TRACES_SAMPLER", "always_on")];
    let picker = picker("", &url(collector.address), &["--allow-empty-endpoints"], &always).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions")], false));
    stream.send(body(PROMPT, true));
    stream.immediate().await;
    let spans = collector.requests(1).await.spans;
    let error = |span: &Span| span.status.clone().map(|status| (status.code, status.message));
    let unavailable = Some((2, "ServiceUnavailable".to_owned()));
    assert_eq!(error(only(&spans, "gateway.request")), unavailable);
    assert_eq!(error(only(&spans, "gateway.request_orchestration")), unavailable);
    let request = attributes(&only(&spans, "gateway.request").attributes);
    assert_eq!(request.get("http.response.status_code"), Some(&IntValue(503)));
    assert_eq!(request.get("error.type").cloned(), text("ServiceUnavailable"));

    let picker = self::picker(TWO, &url(collector.address), &[CONFIG], &always).await;
    let (stream, _) = send(&picker, &[]).await;
    stream.disconnect();
    let spans = collector.requests(2).await.spans;
    let gone = spans.iter().filter(|span| span.name == "gateway.request").map(error).next_back();
    assert_eq!(gone, Some(Some((2, "cancelled".to_owned()))));
}

#[tokio::test]
async fn only_sampled_spans_are_exported_and_contexts_pass_on() {
    let collector = Collector::start().await;
    let never = [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];
    let picker = picker(TWO, &url(collector.address), &[CONFIG], &never).await;
    let parent = |flags| format!("00-{TRACE}-00f067aa0ba902b7-{flags}");
    let mut contexts = Vec::new();
    for traceparent in [None, Some("not valid".to_owned()), Some(parent("00")), Some(parent("01"))] {
        let header = traceparent.as_deref().map(|value| ("traceparent", value));
        let (mut stream, mutation) = send(&picker, &header.into_iter().collect::<Vec<_>>()).await;
        respond(&mut stream).await;
        contexts.push(mutation.get("traceparent").unwrap().to_owned());
    }
    let received = collector.requests(1).await;
    let request = only(&received.spans, "gateway.request");
    assert_eq!(contexts[3], format!("00-{TRACE}-{}-01", hex(&request.span_id)));
    assert!(contexts[..3].iter().all(|context| context.len() == 55 && context.ends_with("-00")));
    // Of a trace of their own, or of the caller's.
    let traces: Vec<&str> = contexts.iter().map(|context| &context[3..35]).collect();
    assert!(traces[0] != TRACE && traces[1] != TRACE && traces[0] != traces[1] && traces[2] == TRACE);
}

#[tokio::test]
async fn untraced_requests_get_no_headers() {
    let collector = Collector::start().await;
    for (variables, flags) in [
        (vec![], vec![CONFIG]),
        (vec![("OTEL_TRACES_SAMPLER", "always_on")], vec![CONFIG, "--tracing=false"]),
        (vec![("OTEL_TRACES_EXPORTER", "none")], vec![CONFIG]),
    ] {
        let picker = if variables.is_empty() {
            Picker::start_with(TWO, &flags).await
        } else {
            picker(TWO, &url(collector.address), &flags, &variables).await
        };
        let (mut stream, mutation) = send(&picker, &[]).await;
        respond(&mut stream).await;
        assert_eq!(mutation.get("traceparent"), None, "{variables:?}");
        assert_eq!(picker.metric("usher_trace_spans_total{result=\"exported\"}"), None, "{variables:?}");
    }
}

#[tokio::test]
async fn unreachable_or_hanging_collector_fails_no_request() {
    // One refuses connections, the other takes them and never responds.
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = taken.local_addr().unwrap();
    // Never listens, and nobody else can come to.
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let refuses = silent.local_addr().unwrap().as_socket().unwrap();
    for address in [hangs, refuses] {
        let variables = [("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_BSP_MAX_QUEUE_SIZE", "20")];
        let picker = picker(TWO, &url(address), &[CONFIG], &variables).await;
        for _ in 0..30 {
            let (mut stream, mutation) = send(&picker, &[]).await;
            assert!(mutation.destination().starts_with("127.0.0."));
            respond(&mut stream).await;
        }
        // Seven spans each, of which 20 wait and some are being sent.
        let dropped = picker.metric("usher_trace_spans_total{result=\"queue_full\"}").unwrap();
        assert!((100.0..=203.0).contains(&dropped), "{dropped}");
        assert_eq!(picker.metric("usher_trace_spans_total{result=\"exported\"}"), Some(0.0));
        assert_eq!(picker.in_flight(), 0);
    }
}

/// TLS in front of a collector, with a certificate that only the returned authority vouches for.
async fn over_tls(collector: SocketAddr) -> (SocketAddr, String, AbortOnDropHandle<()>) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let relay = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that doesn't trust the certificate goes away.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            tokio::spawn(async move {
                let mut to = TcpStream::connect(collector).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
            });
        }
    });
    (address, authority, AbortOnDropHandle::new(relay))
}

#[tokio::test]
async fn spans_go_over_tls_with_headers() {
    let collector = Collector::start().await;
    let (address, authority, _relay) = over_tls(collector.address).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, authority).unwrap();
    let variables = [
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", file.to_str().unwrap()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token"),
        ("OTEL_SERVICE_NAME", "picker"),
    ];
    let picker = picker(TWO, &format!("https://{address}"), &[CONFIG], &variables).await;
    let (mut stream, _) = send(&picker, &[]).await;
    respond(&mut stream).await;
    let received = collector.requests(1).await;
    assert_eq!(received.authorization, [Some("Bearer token".to_owned())]);
    assert_eq!(received.resource.get("service.name").cloned(), text("picker"));
}

#[tokio::test]
async fn queued_spans_are_exported_at_shutdown() {
    let collector = Collector::start().await;
    let variables = [("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    let picker = picker(TWO, &url(collector.address), &[CONFIG], &variables).await;
    let (mut stream, _) = send(&picker, &[]).await;
    respond(&mut stream).await;
    drop(stream);
    // Its end is waited for.
    tokio::task::spawn_blocking(move || drop(picker)).await.unwrap();
    assert_eq!(collector.requests(1).await.spans.len(), 7);
}
