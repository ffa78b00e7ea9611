//! Additions of plugins to replies: response headers, metadata, and refusals.

use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingResponse, ProtocolConfiguration};
use envoy_types::pb::google::protobuf::Value;
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;

use crate::support::*;

const FOUR: [(&str, &str, u16); 4] =
    [("a", "127.0.0.1", 1), ("b", "127.0.0.2", 1), ("c", "127.0.0.3", 1), ("d", "127.0.0.4", 1)];

/// Modes of `ProcessingMode.BodySendMode`.
const STREAMED: i32 = 1;
const BUFFERED: i32 = 2;
const FULL_DUPLEX: i32 = 4;

const OK: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/json")];

async fn picker(endpoints: &[(&str, &str, u16)], plugins: &str) -> Picker {
    let config = format!("--config-text=plugins: [{plugins}]");
    Picker::start(endpoints, &[&config, "--allow-experimental-plugins"]).await
}

/// Sends a request and the head of its response. Returns its stream, its destination, and
/// what is set on the response.
async fn exchange(picker: &Picker, extra: &[(&str, &str)]) -> (Stream, String, Vec<(String, String)>) {
    exchange_as(picker, extra, FULL_DUPLEX).await
}

/// The same with a gateway that sends the body of the response in this mode.
async fn exchange_as(
    picker: &Picker,
    extra: &[(&str, &str)],
    response_body_mode: i32,
) -> (Stream, String, Vec<(String, String)>) {
    let mut stream = picker.stream().await;
    let base = [(":path", "/v1/completions"), ("x-request-id", "r-1")];
    let mut first = headers(&[&base, extra].concat(), false);
    first.protocol_config = Some(ProtocolConfiguration {
        request_body_mode: FULL_DUPLEX,
        response_body_mode,
        ..ProtocolConfiguration::default()
    });
    stream.send(first);
    stream.send(body(PROMPT, true));
    let destination = stream.request_headers().await.destination().to_owned();
    stream.request_body().await;
    stream.send(response_headers(&OK, false));
    let mut set = stream.response_headers().await.set;
    assert_eq!(set.remove(0), ("x-went-into-resp-headers".to_owned(), "true".to_owned()));
    (stream, destination, set)
}

fn numbers(reply: &ProcessingResponse) -> Vec<(String, String, f64)> {
    let mut numbers = Vec::new();
    for (namespace, value) in reply.dynamic_metadata.iter().flat_map(|metadata| &metadata.fields) {
        let Some(ValueKind::StructValue(fields)) = &value.kind else { panic!("{value:?}") };
        for (name, value) in &fields.fields {
            let Value { kind: Some(ValueKind::NumberValue(number)) } = value else { panic!("{value:?}") };
            numbers.push((namespace.clone(), name.clone(), *number));
        }
    }
    numbers.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    numbers
}

#[tokio::test]
async fn session_token_leads_back_to_the_serving_endpoint() {
    let picker = picker(&FOUR, "{type: session-affinity-filter}").await;
    let (_, first, set) = exchange(&picker, &[]).await;
    let name = FOUR.iter().find(|(_, address, _)| first == format!("{address}:1")).unwrap().0;
    let tokens = [("a", "ZGVmYXVsdC9h"), ("b", "ZGVmYXVsdC9i"), ("c", "ZGVmYXVsdC9j"), ("d", "ZGVmYXVsdC9k")];
    let token = tokens.iter().find(|(of, _)| *of == name).unwrap().1;
    let expected = [("x-session-token".to_owned(), token.to_owned())];
    assert_eq!(set, expected);
    for _ in 0..8 {
        let (_, again, set) = exchange(&picker, &[("x-session-token", token)]).await;
        assert_eq!((again.as_str(), set.as_slice()), (first.as_str(), expected.as_slice()));
    }
    // The gateway went elsewhere: so does the session.
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions"), ("x-session-token", token)], false));
    stream.send(body(PROMPT, true));
    stream.request_headers().await;
    stream.request_body().await;
    let (other, address, _) = FOUR.iter().find(|(of, _, _)| *of != name).unwrap();
    let served = "x-gateway-destination-endpoint-served";
    let address = string(&format!("{address}:1"));
    stream.send(with_metadata(response_headers(&OK, false), "envoy.lb", served, address));
    let token = tokens.iter().find(|(of, _)| of == other).unwrap().1;
    assert_eq!(stream.response_headers().await.get("x-session-token"), Some(token));
}

#[tokio::test]
async fn held_requests_are_answered_when_their_window_ends() {
    let plugins = "{name: b, type: burst-prefix-cache-producer, parameters: {windowDurationMs: 1000}}, {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: b}}";
    let picker = picker(&FOUR, plugins).await;
    let connection = picker.connect().await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let stream = connection.stream().await;
        stream.send(headers(&[(":path", "/v1/completions")], false));
        stream.send(body(PROMPT, true));
        streams.push(stream);
    }
    let mut destinations = std::collections::BTreeSet::new();
    for stream in &mut streams {
        destinations.insert(stream.request_headers().await.destination().to_owned());
        stream.request_body().await;
    }
    assert_eq!(destinations.len(), 1, "one prompt, one endpoint: {destinations:?}");
}

#[tokio::test]
async fn named_session_stays_at_its_endpoint() {
    let plugins = "{type: agent-identity}, {type: session-affinity-filter, parameters: {strategy: session_id, sessionIdConfig: {sources: [{header: x-session-id}, {attribute: agent-identity}]}}}";
    let picker = picker(&FOUR, plugins).await;
    let sessions = [("x-session-id", "sess-A"), ("x-claude-code-session-id", "agent-B")];
    let mut bound = Vec::new();
    for session in sessions {
        let (_, first, set) = exchange(&picker, &[session]).await;
        assert_eq!(set, [], "the client needs nothing");
        for _ in 0..8 {
            assert_eq!(exchange(&picker, &[session]).await.1, first, "{session:?}");
        }
        bound.push(first);
    }
    assert_eq!(exchange(&picker, &sessions).await.1, bound[0], "the first source counts");
    assert_eq!(picker.metric(r#"usher_session_bindings{plugin_name="session-affinity-filter"}"#), Some(2.0));
    let flow = |agent: &str| {
        format!(
            r#"llm_d_epp_request_total{{fairness_id="{agent}",model_name="m",priority="0",target_model_name="m"}}"#
        )
    };
    assert_eq!(picker.metric(&flow("agent-B")), Some(10.0), "agents are flows");
    assert_eq!(picker.metric(&flow("default-flow")), Some(9.0));
}

const REPORTER: &str = "{name: cost, type: request-attribute-reporter, parameters: {attributes: [{key: {name: x-cost}, expression: usage.prompt_tokens + usage.completion_tokens * 4.0, condition: usage.completion_tokens > 3.0}, {key: {namespace: other, name: total}, expression: usage.total_tokens / 2.0}, {key: {name: none}, expression: '0'}]}}";

#[tokio::test]
async fn attributes_are_sent_with_the_last_chunk() {
    let picker = picker(&FOUR, REPORTER).await;
    let all = vec![
        ("envoy.lb".to_owned(), "x-cost".to_owned(), 23.0),
        ("other".to_owned(), "total".to_owned(), 4.0),
    ];
    let json = r#"{"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#;
    let (few, none) = (r#"{"usage":{"prompt_tokens":3,"completion_tokens":2}}"#, r#"{"choices":[]}"#);
    let sse = "data: {\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n";
    for (text, expected) in
        [(json, all.clone()), (sse, all.clone()), (few, all[1..].to_vec()), (none, vec![])]
    {
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(space, name, value)| (space, name, if text == few { 2.0 } else { value }))
            .collect();
        // Whole, and cut into pieces with an empty last one.
        for size in [text.len(), 11] {
            let (mut stream, _, _) = exchange(&picker, &[]).await;
            let mut chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            if size < text.len() {
                chunks.push(b"");
            }
            for (index, chunk) in chunks.iter().enumerate() {
                let last = index + 1 == chunks.len();
                stream.send(response_body(chunk, last));
                let reply = stream.reply().await;
                assert!(matches!(reply.response, Some(Reply::ResponseBody(_))));
                let wanted = if last { expected.as_slice() } else { &[] };
                assert_eq!(numbers(&reply), wanted, "{text} {size} {index}");
            }
        }
    }
}

#[tokio::test]
async fn attributes_are_sent_when_every_chunk_waits_for_its_reply() {
    let picker = picker(&FOUR, REPORTER).await;
    let text = r#"{"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
    for (mode, chunks) in [(STREAMED, [&text[..20], &text[20..], ""].as_slice()), (BUFFERED, &[text])] {
        for ends_by_trailers in [false, true] {
            let (mut stream, _, _) = exchange_as(&picker, &[], mode).await;
            for (index, chunk) in chunks.iter().enumerate() {
                let last = index + 1 == chunks.len() && !ends_by_trailers;
                stream.send(response_body(chunk, last));
                let reply = stream.reply().await;
                let Some(Reply::ResponseBody(body)) = &reply.response else { panic!("{reply:?}") };
                assert_eq!(body.response.as_ref().unwrap().body_mutation, None, "the gateway has the chunk");
                assert_eq!(numbers(&reply).len(), if last { 2 } else { 0 });
            }
            if ends_by_trailers {
                stream.send(response_trailers());
                let reply = stream.reply().await;
                assert_eq!(numbers(&reply)[0], ("envoy.lb".to_owned(), "x-cost".to_owned(), 23.0));
            }
        }
    }
}

#[tokio::test]
async fn attributes_are_sent_with_the_trailers_that_end_the_response() {
    let picker = picker(&FOUR, REPORTER).await;
    let (mut stream, _, _) = exchange(&picker, &[]).await;
    stream.send(response_body(r#"{"usage":{"prompt_tokens":3,"completion_tokens":5}}"#, false));
    assert_eq!(numbers(&stream.reply().await), []);
    stream.send(response_trailers());
    let reply = stream.reply().await;
    assert!(matches!(reply.response, Some(Reply::ResponseTrailers(_))));
    let names: Vec<_> = numbers(&reply).into_iter().map(|(_, name, value)| (name, value)).collect();
    assert_eq!(names, [("x-cost".to_owned(), 23.0), ("total".to_owned(), 4.0)]);
    // They are reported once, when trailers follow the last chunk, too.
    let (mut stream, _, _) = exchange(&picker, &[]).await;
    stream.send(response_body(r#"{"usage":{"prompt_tokens":3,"completion_tokens":5}}"#, true));
    assert_eq!(numbers(&stream.reply().await).len(), 2);
    stream.send(response_trailers());
    assert_eq!(numbers(&stream.reply().await), []);
}

#[tokio::test]
async fn a_rollout_is_pinned_by_a_header_and_stamped_on_responses() {
    let screener = "{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: {}}, headerSelectors: [{headerName: x-revision, labelKey: rev}], revisionGating: {revisionLabelKey: rev}}}";
    let endpoints = [("a", "old"), ("b", "old"), ("c", "new")];
    let entry = |(index, (name, revision)): (usize, &(&str, &str))| {
        format!(
            "- {{name: {name}, address: 127.0.0.{}, port: '1', labels: {{rev: {revision}}}}}\n",
            index + 1
        )
    };
    let entries: String = endpoints.iter().enumerate().map(entry).collect();
    let config = format!("--config-text=plugins: [{screener}]");
    let picker = Picker::start_with(&entries, &[&config, "--allow-experimental-plugins"]).await;
    let revision_of = |destination: &str| if destination == "127.0.0.3:1" { "new" } else { "old" };
    for pinned in [None, Some("old"), Some("new")] {
        for _ in 0..6 {
            let headers: Vec<_> = pinned.iter().map(|revision| ("x-revision", *revision)).collect();
            let (_, destination, set) = exchange(&picker, &headers).await;
            let revision = revision_of(&destination);
            assert_eq!(set, [("x-revision".to_owned(), revision.to_owned())]);
            assert!(pinned.is_none_or(|pinned| pinned == revision), "{pinned:?} {destination}");
        }
    }
    let mut stream = picker.stream().await;
    stream.send(headers(&[(":path", "/v1/completions"), ("x-revision", "gone")], false));
    stream.send(body(PROMPT, true));
    let refusal = stream.immediate().await;
    assert_eq!(refusal.status.unwrap().code, 503);
    let text = String::from_utf8(refusal.body).unwrap();
    assert!(text.contains("screeners eliminated all endpoint candidates"), "{text}");
}
