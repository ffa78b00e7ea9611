//! Messages, headers, names and replies that are too large.

use tonic::Code;

use crate::support::*;

const ONE: [(&str, &str, u16); 1] = [("a", "127.0.0.1", 1)];
const POST: [(&str, &str); 2] = [(":path", "/v1/completions"), ("x-request-id", "r-1")];

/// Streams with this code in the metrics.
fn ended_with(picker: &Picker, code: &str) -> Option<f64> {
    picker.metric(&format!("llm_d_epp_extproc_streams_total{{code=\"{code}\"}}"))
}

#[tokio::test]
async fn a_message_over_the_limit_ends_its_stream_and_no_other() {
    let flags = ["--grpc-max-recv-msg-size=64KiB", "--enable-grpc-stream-metrics"];
    let picker = Picker::start(&ONE, &flags).await;
    let connection = picker.connect().await;
    let open = connection.stream().await;
    open.send(headers(&POST, false));
    // More than the connection's window of 32 MiB: what is refused must not stay in it.
    for _ in 0..120 {
        let mut refused = connection.stream().await;
        refused.send(headers(&POST, false));
        refused.send(body(vec![b'x'; 300_000], true));
        let status = refused.end().await.unwrap_err();
        assert_eq!(status.code(), Code::Unknown, "{status}");
        assert!(status.message().contains("--grpc-max-recv-msg-size"), "{status}");
    }
    assert_eq!(ended_with(&picker, "Unknown"), Some(120.0));
    let late = connection.stream().await;
    late.send(headers(&POST, false));
    let text = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(60_000));
    for mut stream in [open, late] {
        stream.send(body(&text, true));
        stream.request_headers().await;
        assert_eq!(stream.request_body().await, (text.clone().into_bytes(), true));
    }
}

#[tokio::test]
async fn a_reply_over_the_limit_ends_its_stream_and_no_other() {
    let flags = ["--grpc-max-send-msg-size=1000", "--enable-grpc-stream-metrics"];
    let picker = Picker::start(&ONE, &flags).await;
    let connection = picker.connect().await;
    let mut open = connection.stream().await;
    open.send(headers(&POST, false));
    let mut refused = connection.stream().await;
    refused.send(headers(&POST, false));
    refused.send(body(format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(1000)), true));
    refused.request_headers().await;
    let status = refused.end().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("--grpc-max-send-msg-size"), "{status}");
    assert_eq!(ended_with(&picker, "ResourceExhausted"), Some(1.0));
    // The stream is given up when its last frame is sent, which is when we see it.
    while picker.in_flight() != 0 {
        tokio::task::yield_now().await;
    }
    open.send(body(PROMPT, true));
    open.request_headers().await;
    assert_eq!(open.request_body().await, (PROMPT.as_bytes().to_vec(), true));
}

#[tokio::test]
async fn overlarge_refusal_is_counted_by_its_outcome() {
    let flags = ["--grpc-max-send-msg-size=50", "--enable-grpc-stream-metrics"];
    let picker = Picker::start(&[], &flags).await;
    let mut stream = picker.stream().await;
    stream.send(headers(&POST, true));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!((ended_with(&picker, "ResourceExhausted"), ended_with(&picker, "OK")), (Some(1.0), None));
}

#[tokio::test]
async fn overlarge_headers_are_answered_with_413() {
    let picker = Picker::start(&ONE, &[]).await;
    let connection = picker.connect().await;
    let long = "x".repeat(3 << 20);
    let mut refused = connection.stream().await;
    refused.send(headers(&[POST[0], ("x-long", &long)], false));
    let refusal = refused.immediate().await;
    assert_eq!(refusal.status.unwrap().code, 413);
    let text = String::from_utf8(refusal.body).unwrap();
    assert_eq!(
        text,
        "inference error: PayloadTooLarge - the request's headers are larger than 1048576 bytes"
    );
    refused.end().await.unwrap();
    let mut served = connection.stream().await;
    served.send(headers(&[POST[0], ("x-long", &long[..1 << 19])], false));
    served.send(body(PROMPT, true));
    assert_eq!(served.request_headers().await.destination(), "127.0.0.1:1");
}

#[tokio::test]
async fn overlong_names_in_bodies_are_refused_with_their_field() {
    let picker = Picker::start(&ONE, &[]).await;
    for (path, field, rest) in [
        ("/v1/completions", "model", r#""prompt":"x""#),
        ("/v1/chat/completions", "model", r#""messages":[{"role":"user","content":"x"}]"#),
        ("/v1/completions", "cache_salt", r#""model":"m","prompt":"x""#),
    ] {
        let text = |length| format!(r#"{{"{field}":"{}",{rest}}}"#, "n".repeat(length));
        let send = async |length| {
            let stream = picker.stream().await;
            stream.send(headers(&[(":path", path)], false));
            stream.send(body(text(length), true));
            stream
        };
        let refusal = send(1025).await.immediate().await;
        assert_eq!(refusal.status.unwrap().code, 400, "{path} {field}");
        let message = String::from_utf8(refusal.body).unwrap();
        assert_eq!(message, format!("inference error: BadRequest - {field} has more than 1024 bytes"));
        send(1024).await.request_headers().await;
    }
}
