//! The response's direction.

use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;

use crate::support::*;

const TWO: [(&str, &str, u16); 2] = [("a", "127.0.0.1", 1), ("b", "127.0.0.2", 1)];
const JSON: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/json")];
const SSE: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream; charset=utf-8")];

/// Routes a request and returns its stream and destination.
async fn routed(picker: &Picker, extra: &[(&str, &str)]) -> (Stream, String) {
    let mut stream = picker.stream().await;
    let base = [(":path", "/v1/completions"), ("x-request-id", "r-1")];
    stream.send(headers(&[&base, extra].concat(), false));
    stream.send(body(PROMPT, true));
    let destination = stream.request_headers().await.destination().to_owned();
    stream.request_body().await;
    (stream, destination)
}

#[tokio::test]
async fn only_our_own_header_is_set() {
    let picker = Picker::start(&TWO, &[]).await;
    let (mut stream, _) = routed(&picker, &[]).await;
    let cookies = [(":status", "200"), ("set-cookie", "a=1"), ("set-cookie", "b=2"), ("content-length", "2")];
    stream.send(response_headers(&cookies, false));
    let mutation = stream.response_headers().await;
    assert_eq!(mutation.set, [("x-went-into-resp-headers".to_owned(), "true".to_owned())]);
    assert!(mutation.removed.is_empty());
}

/// A model server that encodes its responses could not be read.
#[tokio::test]
async fn parsed_response_is_requested_unencoded() {
    let picker = Picker::start(&TWO, &[]).await;
    let (gzip, none) = (Some(("accept-encoding", "gzip")), None);
    let cases = [
        ("/v1/completions", gzip, true),
        ("/v1/completions", none, false),
        ("/v1/completions/render", gzip, false),
        ("/x", gzip, false),
    ];
    for (path, accepted, removed) in cases {
        let mut stream = picker.stream().await;
        let sent: Vec<_> = [(":path", path)].into_iter().chain(accepted).collect();
        stream.send(headers(&sent, false));
        stream.send(body(PROMPT, true));
        let mutation = stream.request_headers().await;
        assert_eq!(mutation.removed.iter().any(|name| name == "accept-encoding"), removed, "{path}");
    }
}

#[tokio::test]
async fn encoded_response_passes_unchanged_and_is_counted() {
    let picker = Picker::start(&TWO, &[]).await;
    let text = r#"{"model":"t","usage":{"prompt_tokens":7}}"#;
    let restored = text.replace("\"t\"", "\"m\"");
    for (encoding, want, encoded) in
        [("gzip", text, 1.0), ("br", text, 2.0), ("identity", &restored, 2.0), ("", &restored, 2.0)]
    {
        let (mut stream, _) = routed(&picker, &[("x-llm-d-model-name-rewrite", "t")]).await;
        stream.send(response_headers(&[JSON[0], JSON[1], ("content-encoding", encoding)], false));
        stream.response_headers().await;
        stream.send(response_body(text, true));
        assert_eq!(stream.response_body().await, (want.as_bytes().to_vec(), true), "{encoding}");
        for name in ["usher_encoded_responses_total", "usher_encoded_answers_total"] {
            assert_eq!(picker.metric(name), Some(encoded), "{encoding}");
        }
    }
    let tokens = "inference_objective_input_tokens_count{model_name=\"m\",target_model_name=\"t\"}";
    assert_eq!(picker.metric(tokens), Some(2.0), "of those that were read");
}

#[tokio::test]
async fn json_passes_unchanged_and_its_usage_is_counted() {
    let picker = Picker::start(&TWO, &[]).await;
    let (mut stream, _) = routed(&picker, &[]).await;
    stream.send(response_headers(&JSON, false));
    stream.response_headers().await;
    let text = r#"{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    for (chunk, end) in [(&text[..30], false), (&text[30..], false), ("", true)] {
        stream.send(response_body(chunk, end));
        assert_eq!(stream.response_body().await, (chunk.as_bytes().to_vec(), end), "not collected");
    }
    for (family, sum) in [("input_tokens", 7.0), ("output_tokens", 10.0), ("prompt_cached_tokens", 4.0)] {
        let labels = r#"{model_name="m",target_model_name="m"}"#;
        assert_eq!(
            picker.metric(&format!("inference_objective_{family}_sum{labels}")),
            Some(sum),
            "{family}"
        );
    }
    for (point, count) in [("RequestParsing", 1.0), ("ResponseParsing", 4.0)] {
        let labels =
            format!(r#"extension_point="{point}",plugin_name="openai-parser",plugin_type="openai-parser""#);
        for family in ["llm_d_epp", "inference_extension"] {
            let series = format!("{family}_plugin_duration_seconds_count{{{labels}}}");
            assert_eq!(picker.metric(&series), Some(count), "{series}");
        }
    }
    let labels = r#"{fairness_id="default-flow",model_name="m",priority="0",target_model_name="m"}"#;
    assert_eq!(picker.metric(&format!("llm_d_epp_request_total{labels}")), Some(1.0));
    assert_eq!(picker.in_flight(), 0);
}

#[tokio::test]
async fn a_rewritten_name_is_restored_across_chunks_of_events() {
    let picker = Picker::start(&TWO, &[]).await;
    let (mut stream, _) = routed(&picker, &[("x-llm-d-model-name-rewrite", "backend")]).await;
    stream.send(response_headers(&SSE, false));
    stream.response_headers().await;
    let text = "data: {\"model\":\"backend\"}\n\ndata: {\"model\":\"backend\",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    for chunk in text.as_bytes().chunks(9) {
        stream.send(response_body(chunk, false));
    }
    stream.send(response_body("", true));
    let mut got = Vec::new();
    loop {
        let (chunk, end) = stream.response_body().await;
        got.extend(chunk);
        if end {
            break;
        }
    }
    assert_eq!(String::from_utf8(got).unwrap(), text.replace("backend", "m"));
    let labels = r#"{model_name="m",target_model_name="backend"}"#;
    assert_eq!(picker.metric(&format!("inference_objective_output_tokens_sum{labels}")), Some(2.0));
    let streamed = r#"llm_d_epp_request_ttft_seconds_count{fairness_id="default-flow",model_name="m",priority="0",streaming="true",target_model_name="backend"}"#;
    assert_eq!(picker.metric(streamed), Some(1.0));
}

#[tokio::test]
async fn trailers_end_a_response() {
    let picker = Picker::start(&TWO, &[]).await;
    let (mut stream, _) = routed(&picker, &[]).await;
    stream.send(response_headers(&[(":status", "200")], false));
    stream.response_headers().await;
    stream.send(response_body("abc", false));
    assert_eq!(stream.response_body().await, (b"abc".to_vec(), false));
    stream.send(response_trailers());
    assert!(matches!(stream.reply().await.response, Some(Reply::ResponseTrailers(_))));
    assert_eq!(picker.in_flight(), 0);
}

#[tokio::test]
async fn headers_alone_can_be_a_response() {
    let picker = Picker::start(&TWO, &[]).await;
    let (mut stream, _) = routed(&picker, &[]).await;
    stream.send(response_headers(&[(":status", "204")], true));
    stream.response_headers().await;
    assert_eq!(picker.in_flight(), 0);
}

#[tokio::test]
async fn a_response_without_its_request_passes() {
    let picker = Picker::start(&TWO, &[]).await;
    let mut stream = picker.stream().await;
    stream.send(response_headers(&SSE, false));
    stream.response_headers().await;
    let text = "data: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":10}}\n\n";
    stream.send(response_body(text, true));
    assert_eq!(stream.response_body().await, (text.as_bytes().to_vec(), true));
    let labels = r#"{model_name="",target_model_name=""}"#;
    assert_eq!(picker.metric(&format!("inference_objective_input_tokens_sum{labels}")), Some(7.0));
}

#[tokio::test]
async fn the_booking_follows_the_endpoint_that_served() {
    let picker = Picker::start(&TWO, &[]).await;
    let (mut stream, destination) = routed(&picker, &[]).await;
    let other = if destination == "127.0.0.1:1" { "127.0.0.2:1" } else { "127.0.0.1:1" };
    let at = |address: &str| {
        let page = Picker::get(picker.admin, "/endpoints");
        let json: serde_json::Value = serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let rows = json["endpoints"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["address"] == address).unwrap()["in_flight"].as_i64().unwrap()
    };
    assert_eq!((at(&destination), at(other)), (1, 0));
    let served = "x-gateway-destination-endpoint-served";
    stream.send(with_metadata(response_headers(&JSON, false), "envoy.lb", served, string(other)));
    stream.response_headers().await;
    assert_eq!((at(&destination), at(other)), (0, 1));
}

#[tokio::test]
async fn prompt_counts_as_computed_with_the_first_content() {
    let config = "--config-text=plugins: [{type: token-load-scorer}]\n\
                  schedulingProfiles: [{name: default, plugins: [{pluginRef: token-load-scorer}]}]";
    let created =
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"output\":[]}}\n\n";
    let delta = "event: response.output_text.delta\ndata: {\"delta\":\"Hi\",\"type\":\"response.output_text.delta\"}\n\n";
    let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    let table = [
        ("/v1/responses", r#"{"model":"m","input":"hi","stream":true}"#, created, delta),
        (
            "/v1/chat/completions",
            r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#,
            role,
            token,
        ),
    ];
    for (path, request, before, content) in table {
        let picker = Picker::start(&TWO[..1], &[config]).await;
        let mut stream = picker.stream().await;
        stream.send(headers(&[(":path", path), ("x-request-id", "r-1")], false));
        stream.send(body(request, true));
        stream.request_headers().await;
        stream.request_body().await;
        let tokens = || {
            let labels = r#"{endpoint_name="a",fairness_id="default-flow",namespace="default",priority="0",producer_name="inflight-load-producer"}"#;
            picker.metric(&format!("llm_d_epp_inflight_tokens{labels}")).unwrap()
        };
        stream.send(response_headers(&SSE, false));
        stream.response_headers().await;
        assert!(tokens() > 0.0);
        let (head, tail) = content.split_at(30);
        for (chunk, is_computed) in [(before, false), (": ping\n\n", false), (head, false), (tail, true)] {
            stream.send(response_body(chunk, false));
            stream.response_body().await;
            assert_eq!(tokens() == 0.0, is_computed, "{path}: {chunk:?}");
        }
    }
}
