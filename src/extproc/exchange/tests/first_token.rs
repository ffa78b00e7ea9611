use super::protos::{Chunk, GenerateRequest, GenerateResponse, Response, framed};
use super::*;
use crate::schedule::{
    Context, Decision, Effects, Header, PreRequest, ResponseHead, ResponseObserver, StagesBuilder,
};
use std::sync::Mutex;

/// Calls of an observer: `stream` or `no stream` when the response begins, and `token`.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<&'static str>>>);

impl Calls {
    /// Calls since the last time.
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl PreRequest for Calls {
    fn decided(&self, _cx: &Context<'_>, _decision: &Decision, effects: &mut Effects) {
        effects.observe(self.clone());
    }
}

impl ResponseObserver for Calls {
    fn response_headers(&mut self, head: &ResponseHead<'_>, _out: &mut Vec<Header>) {
        self.0.lock().unwrap().push(if head.is_stream { "stream" } else { "no stream" });
    }

    fn first_token(&mut self) {
        self.0.lock().unwrap().push("token");
    }
}

/// An exchange whose responses are observed.
fn observed() -> (Harness, Calls) {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let (calls, mut stages) = (Calls::default(), StagesBuilder::new(&metrics));
    stages.pre_request(&PluginId::new("calls", "calls"), Arc::new(calls.clone()));
    (Harness::with_stages(1, Arc::new(stages.build(false, None))), calls)
}

fn begin_response(event_stream: bool) -> Event {
    Event::ResponseHeaders {
        status: ResponseStatus::default(),
        event_stream,
        encoded: false,
        end_of_stream: false,
    }
}

#[test]
fn first_tokens_are_seen_only_in_streamed_responses() {
    let table = [
        (None, true, "stream"),
        (None, false, "no stream"),
        (Some(Mode::FullDuplex), true, "stream"),
        (Some(Mode::FullDuplex), false, "no stream"),
        (Some(Mode::None), true, "no stream"),
        (Some(Mode::OneToOne), true, "no stream"),
    ];
    for (mode, event_stream, expected) in table {
        let (mut harness, calls) = observed();
        let modes = mode.map(|response| Modes { request: Mode::FullDuplex, response });
        harness.send_message(Message { modes, ..message(headers(&POST, true)) }).unwrap();
        harness.send(begin_response(event_stream)).unwrap();
        assert_eq!(calls.take(), [expected], "{mode:?} {event_stream}");
    }
}

const CREATED: &str =
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"output\":[]}}\n\n";
const DELTA: &str =
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n";
const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const TEXT: &str = "data: {\"choices\":[{\"text\":\"Hi\"}]}\n\n";

#[test]
fn followers_are_notified_once_of_the_first_token() {
    let (responses, chat, text, other) =
        ("/v1/responses", "/v1/chat/completions", "/v1/completions", "/other");
    // Path, whether the response is an event stream, its chunks, and the one with the first token.
    let table: [(&str, bool, &[&str], Option<usize>); 9] = [
        (responses, true, &["", CREATED, ": ping\n\n", DELTA, DELTA], Some(3)),
        (responses, true, &[CREATED, &DELTA[..60], &DELTA[60..], DELTA], Some(2)),
        (chat, true, &[ROLE, "data: {\"error\":{\"message\":\"x\"}}\n\n", "data: [DONE]\n\n"], None),
        (text, true, &[TEXT, TEXT], Some(0)),
        // The API isn't known, or the body isn't what its headers say.
        (other, true, &["", CREATED, DELTA], Some(1)),
        (text, true, &["\u{1f}\u{8b}", TEXT], Some(0)),
        (text, false, &["", "{\"choices\"", ":[]}"], Some(1)),
        (chat, false, &[ROLE, TEXT], Some(0)),
        (chat, false, &[""], None),
    ];
    for (path, event_stream, chunks, want) in table {
        let (mut harness, calls) = observed();
        harness.send(headers(&[(":path", path)], false)).unwrap();
        let prompt =
            r#"{"model":"m","prompt":"hi","input":"hi","messages":[{"role":"user","content":"hi"}]}"#;
        harness.send(body(prompt, true)).unwrap();
        harness.send(begin_response(event_stream)).unwrap();
        assert_eq!(calls.take(), [if event_stream { "stream" } else { "no stream" }]);
        for (index, chunk) in chunks.iter().enumerate() {
            harness.send(response_body(chunk, false)).unwrap();
            let called: &[&str] = if want == Some(index) { &["token"] } else { &[] };
            assert_eq!(calls.take(), called, "{path}: {index} of {chunks:?}");
        }
        harness.send(response_body("", true)).unwrap();
        assert!(calls.take().is_empty());
    }
}

#[test]
fn grpc_response_is_a_stream_when_requested() {
    let chunk = |token_ids: &[u32]| {
        let chunk = Chunk { token_ids: token_ids.to_vec(), prompt_tokens: 3, ..Chunk::default() };
        Bytes::from(framed(&GenerateResponse { response: Some(Response::Chunk(chunk)) }))
    };
    for (stream, want) in [(true, [&[] as &[&str], &["token"]]), (false, [&["token"], &[]])] {
        let (mut harness, calls) = observed();
        harness.send(headers(&[(":path", "/vllm.grpc.engine.VllmEngine/Generate")], false)).unwrap();
        let data = framed(&GenerateRequest { stream, ..GenerateRequest::default() });
        harness.send(Event::RequestBody { data: Bytes::from(data).into(), end_of_stream: true }).unwrap();
        harness.send(begin_response(false)).unwrap();
        assert_eq!(calls.take(), [if stream { "stream" } else { "no stream" }]);
        for (token_ids, want) in [&[] as &[u32], &[5]].into_iter().zip(want) {
            let data = chunk(token_ids).into();
            harness.send(Event::ResponseBody { data, end_of_stream: false }).unwrap();
            assert_eq!(calls.take(), want, "{stream} {token_ids:?}");
        }
    }
}

#[test]
fn tpot_starts_at_the_first_token_ttft_at_the_first_byte() {
    let mut harness = Harness::new(1);
    let start = Instant::now();
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    let request = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    let events = [
        (0, headers(&[(":path", "/v1/chat/completions")], false)),
        (0, body(request, true)),
        (1, begin_response(true)),
        (1, response_body(ROLE, false)),
        (4, response_body(token, false)),
        (10, response_body(usage, true)),
    ];
    for (seconds, event) in events {
        harness.send_at(message(event), start + Duration::from_secs(seconds)).unwrap();
    }
    let labels = r#"fairness_id="default-flow",model_name="m",priority="0",target_model_name="m""#;
    let ttft =
        r#"fairness_id="default-flow",model_name="m",priority="0",streaming="true",target_model_name="m""#;
    let sum = |name: &str, labels: &str| {
        harness.metric(&format!("llm_d_epp_request_{name}_seconds_sum{{{labels}}}"))
    };
    assert_eq!(sum("ttft", ttft), Some(1.0));
    assert_eq!(sum("streaming_tpot", labels), Some(3.0), "two tokens in six seconds");
    assert_eq!(sum("streaming_itl", labels), Some(9.0), "between chunks");
}

#[test]
fn aborted_responses_count_by_events_or_bytes() {
    let chat = "/v1/chat/completions";
    let token = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" Hi\"},\"finish_reason\":null}]}\n\n";
    // Whether it is a stream of events, its chunks, and the tokens of 100 of them.
    for (event_stream, chunk, want) in [(true, token, 100..=101), (false, "{\"x\":1}", 175..=175)] {
        let mut harness = Harness::new(1);
        harness.send(headers(&[(":path", chat)], false)).unwrap();
        let request = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
        harness.send(body(request, true)).unwrap();
        harness.send(begin_response(event_stream)).unwrap();
        (0..100).for_each(|_| drop(harness.send(response_body(chunk, false)).unwrap()));
        let generated = harness.exchange.response.generated();
        assert!(want.contains(&generated), "{generated}");
    }
}
