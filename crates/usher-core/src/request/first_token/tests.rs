use proptest::prelude::*;

use super::super::protos::{Chunk, Complete, GenerateResponse, Response, framed};
use super::*;

/// Bytes of a stream that have passed when the reader says so, in chunks of `sizes`, which
/// repeat: the end of that chunk.
fn found_in(api: Api, stream: &[u8], sizes: &[usize]) -> Option<usize> {
    let mut reader = FirstTokenReader::of(api).unwrap();
    let (mut rest, mut passed) = (stream, 0);
    for size in sizes.iter().cycle() {
        let (chunk, more) = rest.split_at(rest.len().min(*size));
        passed += chunk.len();
        if reader.feed(chunk) {
            return Some(passed);
        }
        rest = more;
        if rest.is_empty() {
            break;
        }
    }
    None
}

/// The byte of a stream with which the first token has passed, counted from 1: the same
/// in chunks of all sizes.
fn found(api: Api, stream: &[u8]) -> Option<usize> {
    let at = found_in(api, stream, &[1]);
    for size in 2..=stream.len() {
        let end = at.map(|at| at.div_ceil(size) * size).map(|end| end.min(stream.len()));
        assert_eq!(found_in(api, stream, &[size]), end, "{api:?} in chunks of {size} bytes");
    }
    at
}

/// Asserts that of these parts of a stream the first token is in the last, and not before.
fn assert_in_last(api: Api, parts: &[&str]) {
    let before: usize = parts[..parts.len() - 1].iter().map(|part| part.len()).sum();
    let stream = parts.concat();
    let at = found(api, stream.as_bytes()).unwrap_or_else(|| panic!("{api:?}: not found in {stream}"));
    assert!(at > before, "{api:?}: found before {} in {stream}", stream[..at].escape_debug());
}

fn data(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// Events of an API: those without generated content, and each that has some.
type Golden = (Api, &'static [&'static str], &'static [&'static str]);

const GOLDEN: [Golden; 7] = [
    (
        Api::ChatCompletions,
        &[
            ": keep-alive\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null,\"obfuscation\":\"xYz\"}\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":null,\"tool_calls\":null}}],\"prompt_token_ids\":[1,2],\"model\":\"m\"}\n\n",
            "data: {\"choices\":[],\"prompt_filter_results\":[{\"content_filter_results\":{\"hate\":{\"severity\":\"safe\"}}}]}\n\n",
            "data: {\"error\":{\"message\":\"no KV blocks\",\"type\":\"InternalServerError\",\"code\":500}}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":0}}\n\n",
            "data: [DONE]\n\n",
        ],
        &[
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\" \"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"Hm\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"refusal\":\"No\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\"}}]}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{}},{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"token_ids\":[9]}]}\n\n",
            "data:{\"choices\":[{\"delta\":{\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]}}]}\r\n\r\n",
        ],
    ),
    (
        Api::Completions,
        &[
            "data: {\"id\":\"c\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n",
            "data: {\"error\":{\"message\":\"x\"}}\n\n",
            "data: [DONE]\n\n",
        ],
        &["data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\" the\",\"finish_reason\":null}]}\n\n"],
    ),
    (
        Api::Responses,
        &[
            "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r\",\"status\":\"in_progress\",\"instructions\":\"be kind\",\"output\":[],\"text\":{\"format\":{\"type\":\"text\"}}}}\n\n",
            "event: response.in_progress\ndata: {\"response\":{\"id\":\"r\",\"model\":\"m\"},\"sequence_number\":1,\"type\":\"response.in_progress\"}\n\n",
            "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"id\":\"msg_1\",\"status\":\"in_progress\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[]}}\n\n",
            "event: response.content_part.added\ndata: {\"type\":\"response.content_part.added\",\"item_id\":\"msg_1\",\"part\":{\"type\":\"output_text\",\"annotations\":[],\"text\":\"\"}}\n\n",
            "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"failed\",\"param\":null}\n\n",
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"failed\"}}}\n\n",
        ],
        &[
            "event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":\"Hi\",\"item_id\":\"msg_1\",\"logprobs\":[],\"type\":\"response.output_text.delta\"}\n\n",
            "event: response.reasoning_text.delta\ndata: {\"type\":\"response.reasoning_text.delta\",\"delta\":\"Hm\"}\n\n",
            "event: response.reasoning_summary_text.delta\ndata: {\"type\":\"response.reasoning_summary_text.delta\",\"delta\":\"Hm\"}\n\n",
            "event: response.function_call_arguments.delta\ndata: {\"type\":\"response.function_call_arguments.delta\",\"delta\":\"{\"}\n\n",
            "event: response.function_call_arguments.done\ndata: {\"type\":\"response.function_call_arguments.done\",\"arguments\":\"{}\"}\n\n",
            "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"\"}}\n\n",
            "data: {\"type\":\"response.image_generation_call.partial_image\",\"partial_image_b64\":\"iVBO\"}\n\n",
        ],
    ),
    (
        Api::ImageGenerations,
        &["data: {\"type\":\"image_generation.started\",\"b64_json\":null}\n\n"],
        &[
            "event: image_generation.partial_image\ndata: {\"type\":\"image_generation.partial_image\",\"b64_json\":\"iVBO\",\"partial_image_index\":0}\n\n",
        ],
    ),
    (
        Api::Messages,
        &[
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"m\",\"stop_reason\":null,\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
            "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}}\n\n",
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":\"###\"},\"usage\":{\"output_tokens\":15}}\n\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ],
        &[
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"Hm\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t_1\",\"name\":\"f\",\"input\":{}}}\n\n",
        ],
    ),
    (
        Api::SglangGenerate,
        &[
            "data: {\"text\":\"\",\"output_ids\":[],\"meta_info\":{\"id\":\"x\",\"finish_reason\":null,\"prompt_tokens\":4,\"completion_tokens\":0}}\n\n",
            "data: {\"error\":{\"message\":\"aborted\"}}\n\n",
            "data: [DONE]\n\n",
        ],
        &[
            "data: {\"text\":\" the\",\"meta_info\":{\"id\":\"x\",\"completion_tokens\":1}}\n\n",
            "data: {\"output_ids\":[5],\"meta_info\":{\"id\":\"x\"}}\n\n",
        ],
    ),
    (
        Api::VllmGenerate,
        &[
            "data: {\"request_id\":\"r\",\"choices\":[{\"index\":0,\"logprobs\":null,\"finish_reason\":null,\"token_ids\":[]}],\"usage\":null}\n\n",
            "data: {\"request_id\":\"r\",\"choices\":[{\"index\":0,\"token_ids\":null}]}\n\n",
            "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n",
        ],
        &["data: {\"request_id\":\"r\",\"choices\":[{\"index\":0,\"token_ids\":[9]}]}\n\n"],
    ),
];

#[test]
fn first_event_with_content_is_the_first_token_of_each_api() {
    for (api, before, contents) in GOLDEN {
        assert_eq!(found(api, before.concat().as_bytes()), None, "{api:?}");
        for content in contents {
            assert_in_last(api, &[before, &[content]].concat());
            assert_in_last(api, &[content]);
        }
    }
}

#[test]
fn tokens_of_a_grpc_frame_are_the_first_token() {
    let chunk = |token_ids: &[u32]| {
        let chunk = Chunk { token_ids: token_ids.to_vec(), prompt_tokens: 7, ..Chunk::default() };
        framed(&GenerateResponse { response: Some(Response::Chunk(chunk)) })
    };
    let complete = |output_ids: &[u32]| {
        let complete = Complete { output_ids: output_ids.to_vec(), prompt_tokens: 7, ..Complete::default() };
        framed(&GenerateResponse { response: Some(Response::Complete(complete)) })
    };
    let unpacked = vec![0, 0, 0, 0, 4, 10, 2, 8, 5];
    // Its length says more than there is.
    let broken = vec![0, 0, 0, 0, 6, 10, 9, 10, 2, 5, 6];
    let table = [
        (vec![chunk(&[5])], Some(0)),
        (vec![chunk(&[]), chunk(&[5, 300])], Some(1)),
        (vec![chunk(&[]), complete(&[5])], Some(1)),
        (vec![chunk(&[]), complete(&[])], None),
        (vec![broken, unpacked], Some(1)),
        (vec![], None),
    ];
    for (frames, want) in table {
        let end = want.map(|index| frames[..=index].iter().map(Vec::len).sum());
        assert_eq!(found(Api::VllmGrpcGenerate, &frames.concat()), end, "{frames:?}");
    }
}

const TOKEN: &str = r#"{"choices":[{"delta":{"content":"Hi"}}]}"#;

#[test]
fn lines_of_a_stream_may_end_and_begin_in_every_way() {
    let (first, second) = TOKEN.split_at(11);
    let streams = [
        format!("data: {TOKEN}\n\n"),
        format!("data:{TOKEN}\r\n\r\n"),
        format!("\u{feff}data: {TOKEN}\r\r"),
        format!("\r\n\r\nid: 1\r\nretry: 3\r\nevent: x\r\ndata:  {TOKEN}\r\n\r\n"),
        format!("data: {first}\ndata: {second}\n\n"),
        format!("data: {first}\r\nid: 7\r\n: comment\r\ndata:{second}\r\n\r\n"),
        format!("data: [DONE]\ndata: {TOKEN}\n"),
        format!("data: {{\"choices\":[]}}\ndata: {TOKEN}\n"),
        format!("data: 5\ndata: {TOKEN}\n"),
        format!("data: {first}\n\ndata: {TOKEN}\n\n"),
        format!("data: {{broken\n\ndata: {TOKEN}"),
    ];
    for stream in streams {
        let end = stream.trim_end().len();
        assert_eq!(found(Api::ChatCompletions, stream.as_bytes()), Some(end), "{stream:?}");
    }
}

#[test]
fn text_outside_of_events_is_no_token() {
    let streams = [
        format!(": {TOKEN}\n\n"),
        format!("event: {TOKEN}\n\n"),
        format!("datas: {TOKEN}\n\n"),
        format!(" data: {TOKEN}\n\n"),
        data(&TOKEN[..TOKEN.len() - 1]),
        data(&format!("[{TOKEN}]")),
        data(&format!(r#"{{"event":{TOKEN}}}"#)),
        data(r#"{"created":{"choices":"delta"},"choices":{"delta":{"content":"x"}}}"#),
        data(r#"{"choices":[["x"],"delta",{"message":{"content":"x"}}]}"#),
        data(r#"{"message":"\"choices\":[{\"delta\":{\"content\":\"x\"}}]"}"#),
        data(r#""x""#),
        data("5"),
        data(""),
    ];
    for stream in streams {
        let stream = format!(":\n{stream}");
        assert_eq!(found(Api::ChatCompletions, stream.as_bytes()), None, "{stream:?}");
    }
}

#[test]
fn first_bytes_count_where_the_body_is_no_event_stream() {
    for body in [&b"\x1f\x8b\x08\x00"[..], b"{\"error\":{}}", b"\xef\xbbdata: x\n", b"no healthy upstream"] {
        let want = if body.starts_with(b"\xef") { 3 } else { 1 };
        assert_eq!(found(Api::ChatCompletions, body), Some(want), "{}", body.escape_ascii());
    }
}

/// A gRPC frame with an `HttpBody` of a content type and this data, less than 128 bytes each.
fn http_body(data: &str) -> Vec<u8> {
    let field = |tag: u8, text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        [&[tag, length][..], text.as_bytes()].concat()
    };
    let message = [field(0x0a, "text/event-stream"), field(0x12, data)].concat();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat()
}

#[test]
fn events_of_vertex_ai_are_read_in_their_frames() {
    let role = http_body(&data(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#));
    // An event may be spread over frames.
    let token = data(TOKEN);
    let (start, end) = token.split_at(9);
    let (start, end) = (http_body(start), http_body(end));
    let stream = [&role[..], &start, &end, &role].concat();
    for api in [Api::VertexChatCompletions, Api::VertexPredict] {
        let at = found(api, &stream).unwrap();
        let before = role.len() + start.len();
        assert!((before..=before + end.len()).contains(&at), "{api:?}: {at}");
        assert_eq!(found(api, &role), None, "{api:?}");
    }
}

#[test]
fn opaque_vertex_frames_count_by_first_bytes() {
    let whole = http_body(r#"{"choices":[{"message":{"content":"x"}}]}"#);
    assert!(found(Api::VertexPredict, &whole).is_some());
    let mut compressed = http_body(&data("{}"));
    compressed[0] = 1;
    assert!(found(Api::VertexChatCompletions, &compressed).is_some());
}

#[test]
fn responses_without_recognisable_content_have_no_reader() {
    let apis = [
        Api::ChatCompletionsRender,
        Api::CompletionsRender,
        Api::Embeddings,
        Api::Conversations,
        Api::CountTokens,
        Api::VllmGrpcEmbed,
        Api::PassThrough,
    ];
    assert!(apis.into_iter().all(|api| FirstTokenReader::of(api).is_none()));
}

#[test]
fn large_events_pass_without_being_kept() {
    let megabyte = vec![b'x'; 1 << 20];
    let brackets = vec![b'['; 1 << 20];
    let starts: [(&[u8], &[u8]); 5] = [
        (b"data: {\"a\":\"", &megabyte),
        (b"data: {\"", &megabyte),
        (b"data: {\"a\":", &brackets),
        (b"data: ", &megabyte),
        (b": ", &megabyte),
    ];
    for (start, chunk) in starts {
        let mut reader = EventReader::new(Dialect::OpenAi);
        assert!(!reader.feed(start));
        for _ in 0..10 {
            assert!(!reader.feed(chunk));
        }
        assert!(!reader.feed(b"\n\n"));
        assert!(reader.feed(data(TOKEN).as_bytes()), "the next event is read");
    }
}

/// A stream of events with and without content, and of what else may come between them.
fn stream() -> impl Strategy<Value = (Api, String)> {
    let api = prop::sample::select(GOLDEN.to_vec());
    api.prop_flat_map(|(api, before, contents)| {
        let noise = [
            "\n",
            "\r\n",
            ": ping\n\n",
            "data\n",
            "data:\n\n",
            "data: {\"choices\":[{\n\n",
            "data: \"\u{e9}\n",
        ];
        let parts = [before, contents, &noise].concat();
        let parts = prop::collection::vec(prop::sample::select(parts), 0..8);
        (Just(api), parts, 0..3usize).prop_map(|(api, parts, ends)| {
            let ends = ["\n", "\r\n", "\r"][ends];
            // The first line is one of a stream.
            (api, format!(":\n{}", parts.concat().replace('\n', ends)))
        })
    })
}

proptest! {
    /// The chunk is the one that the byte is in.
    #[test]
    fn any_split_finds_the_same_byte(
        (api, stream) in stream(),
        sizes in prop::collection::vec(1usize..200, 1..10),
    ) {
        let at = found_in(api, stream.as_bytes(), &[1]);
        let mut end = 0;
        let holding = at.map(|at| {
            let mut sizes = sizes.iter().cycle();
            while end < at {
                end += sizes.next().unwrap();
            }
            end.min(stream.len())
        });
        prop_assert_eq!(found_in(api, stream.as_bytes(), &sizes), holding);
    }

    #[test]
    fn any_bytes_are_accepted(stream in prop::collection::vec(any::<u8>(), 0..200), size in 1usize..20) {
        for api in [Api::Responses, Api::VllmGrpcGenerate] {
            let at = found_in(api, &stream, &[1]);
            let end = at.map(|at| (at.div_ceil(size) * size).min(stream.len()));
            prop_assert_eq!(found_in(api, &stream, &[size]), end);
        }
    }
}

/// A stream of these texts, and then of what ends it.
fn chat_stream(texts: &[&str], logprobs: &str) -> Vec<String> {
    let head =
        r#""id":"chatcmpl-7f3a8e6c5d","object":"chat.completion.chunk","created":1750000000,"model":"m""#;
    let event = |delta: &str, finish: &str| {
        let choice =
            format!(r#"{{"index":0,"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}}}"#);
        data(&format!(r#"{{{head},"choices":[{choice}],"usage":null}}"#))
    };
    let role = event(r#"{"role":"assistant","content":""}"#, "null");
    let tokens = texts.iter().map(|text| event(&format!(r#"{{"content":"{text}"}}"#), "null"));
    let end = [event("{}", "\"stop\""), "data: [DONE]\n\n".to_owned()];
    std::iter::once(role).chain(tokens).chain(end).collect()
}

/// Tokens that are seen in a stream that comes in these chunks.
fn seen<'a>(api: Api, chunks: impl Iterator<Item = &'a [u8]>) -> Option<u64> {
    let (mut reader, mut generated) = (FirstTokenReader::of(api).unwrap(), None);
    for chunk in chunks {
        if generated.is_none() && reader.feed(chunk) {
            generated = reader.generated();
        }
        if let Some(generated) = &mut generated {
            generated.feed(chunk);
        }
    }
    generated.map(|generated| generated.tokens())
}

#[test]
fn stream_events_are_counted_as_tokens() {
    let words = [" a", " token", "s", ".", " Generated", "\\n\\n", " the", " of"];
    let one: Vec<&str> = words.iter().cycle().take(200).copied().collect();
    let five: Vec<String> = one.chunks(5).map(|words| words.concat()).collect();
    let five: Vec<&str> = five.iter().map(String::as_str).collect();
    let top = r#"{"content":[{"token":" a","logprob":-0.125,"bytes":[32,97],"top_logprobs":[{"token":" the","logprob":-2.5,"bytes":[32]}]}]}"#;
    let table = [
        ("one token", chat_stream(&one, "null"), 200..=210),
        ("five tokens", chat_stream(&five, "null"), 130..=300),
        ("probabilities", chat_stream(&one, top), 200..=210),
        ("one", chat_stream(&one[..1], "null"), 1..=4),
    ];
    for (what, events, want) in table {
        let stream = events.concat();
        let bytes = stream.as_bytes();
        let whole = events.iter().map(String::as_bytes);
        assert!(want.contains(&seen(Api::ChatCompletions, whole).unwrap()), "{what}");
        // However gateways put events together.
        for size in [700, 1500, 4096, 1 << 16] {
            let tokens = seen(Api::ChatCompletions, bytes.chunks(size)).unwrap();
            let slack = want.end() + want.end() / 4;
            assert!((want.start() * 9 / 10..=slack).contains(&tokens), "{what}, {size}: {tokens}");
        }
    }
}

#[test]
fn large_framing_of_the_first_event_hides_no_tokens() {
    let first =
        format!(r#"{{"choices":[{{"text":"a","prompt_token_ids":[{}]}}]}}"#, "1,".repeat(20_000) + "1");
    let mut stream = data(&first);
    (0..2000).for_each(|_| stream += &data(r#"{"choices":[{"text":" token"}]}"#));
    for size in [200, 400, 700, 1000, 1024, 4096, 1 << 16] {
        let tokens = seen(Api::Completions, stream.as_bytes().chunks(size)).unwrap();
        assert!((1900..3000).contains(&tokens), "{size}: {tokens}");
    }
}

#[test]
fn events_that_repeat_the_response_so_far_count_once_each() {
    let stream: Vec<String> = (1..500)
        .map(|tokens| data(&format!(r#"{{"text":"{}","meta_info":{{}}}}"#, "word ".repeat(tokens))))
        .collect();
    assert_eq!(seen(Api::SglangGenerate, stream.iter().map(String::as_bytes)), Some(499));
}

#[test]
fn named_events_are_counted() {
    let event = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n";
    let stream = event.repeat(100);
    for size in [event.len(), 3 * event.len(), 2000] {
        let tokens = seen(Api::Messages, stream.as_bytes().chunks(size)).unwrap();
        assert!((95..=155).contains(&tokens), "{size}: {tokens}");
    }
}
