use proptest::prelude::*;
use prost::Message;

use super::super::protos::{
    Chunk, Complete, EmbedRequest, EmbedResponse, GenerateRequest, GenerateResponse, Input, MultimodalInputs,
    PlaceholderRange, Response, SamplingParams, TokenizedInput, framed,
};
use super::super::testing::{parse, parts, refused};
use super::*;

const TEXT: &str = "invalid or unsupported gRPC payload: ";

fn tokenized(ids: &[u32]) -> TokenizedInput {
    TokenizedInput { original_text: "one two".to_owned(), input_ids: ids.to_vec() }
}

fn generate(input: Input) -> GenerateRequest {
    GenerateRequest { request_id: "r".to_owned(), input: Some(input), ..GenerateRequest::default() }
}

/// A frame around bytes.
fn frame(message: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0][..], &[u8::try_from(message.len()).unwrap()], message].concat()
}

#[test]
fn request_fields_are_read_from_the_message() {
    let request = GenerateRequest {
        sampling_params: Some(SamplingParams { temperature: Some(0.5), max_tokens: Some(300), unknown: 1.0 }),
        stream: true,
        mm_inputs: Some(MultimodalInputs {
            pixel_values: vec![7; 3000],
            mm_placeholders: vec![
                PlaceholderRange { offset: 1, length: 576 },
                PlaceholderRange { offset: 0, length: 1 },
            ],
            mm_hashes: ["a", "b", "c"].map(str::to_owned).to_vec(),
        }),
        ..generate(Input::Tokenized(tokenized(&[1, 300, u32::MAX])))
    };
    let (parsed, body) = parse(Api::VllmGrpcGenerate, framed(&request)).unwrap();
    assert_eq!((parsed.stream, parsed.max_output_tokens), (true, Some(300)));
    let [part] = parsed.prompt.parts[..] else { panic!("{parsed:?}") };
    assert_eq!(part.kind, PartKind::PackedTokens);
    assert_eq!(part.token_ids(&body).collect::<Vec<_>>(), [1, 300, u32::MAX]);
    let features =
        parsed.prompt.features.iter().map(|feature| {
            (feature.modality, feature.hash.bytes(&body).into_owned(), feature.tokens.clone())
        });
    let image = |hash: &[u8], tokens| (Some(Modality::Image), hash.to_vec(), tokens);
    let want = [image(b"a", Some(1..577)), image(b"b", Some(0..1)), image(b"c", None)];
    assert_eq!(features.collect::<Vec<_>>(), want);
}

#[test]
fn the_prompt_is_ids_or_text() {
    use PartKind::*;
    let text = generate(Input::Text("hi".to_owned()));
    let ids = generate(Input::Tokenized(tokenized(&[7])));
    let neither = generate(Input::Tokenized(tokenized(&[])));
    let both = |first: &GenerateRequest, second: &GenerateRequest| {
        let message = [first.encode_to_vec(), second.encode_to_vec()].concat();
        frame(&message)
    };
    let table: [(Vec<u8>, &[(PartKind, &str)]); 6] = [
        (framed(&text), &[(Text, "hi")]),
        (framed(&ids), &[(PackedTokens, "\u{7}")]),
        (framed(&neither), &[(Text, "one two")]),
        (both(&ids, &text), &[(Text, "hi")]),
        (both(&text, &neither), &[(Text, "one two")]),
        (both(&ids, &ids), &[(PackedTokens, "\u{7}"), (PackedTokens, "\u{7}")]),
    ];
    for (body, want) in table {
        assert_eq!(parts(Api::VllmGrpcGenerate, &body), want, "{body:?}");
    }
    let empty: [(PartKind, &str); 0] = [];
    assert_eq!(parts(Api::VllmGrpcGenerate, frame(&[])), empty);
    let embed = EmbedRequest { request_id: "r".to_owned(), tokenized: Some(tokenized(&[7])) };
    assert_eq!(parts(Api::VllmGrpcEmbed, framed(&embed)), [(PackedTokens, "\u{7}")]);
    // Of a request to embed the other fields mean nothing.
    assert_eq!(parts(Api::VllmGrpcEmbed, framed(&text)), empty);
}

#[test]
fn unpacked_ids_are_one_part() {
    let mut input = Vec::new();
    prost::encoding::uint32::encode_repeated(2, &[1, 300, u32::MAX], &mut input);
    prost::encoding::string::encode(1, &"one two".to_owned(), &mut input);
    // A key that takes more room than it needs, as decoders accept it.
    input.extend([0x90, 0x80, 0, 5]);
    let mut message = Vec::new();
    prost::encoding::bytes::encode(2, &input, &mut message);
    let (parsed, body) = parse(Api::VllmGrpcGenerate, frame(&message)).unwrap();
    let parts: Vec<_> =
        parsed.prompt.parts.iter().map(|part| (part.kind, part.token_ids(&body).collect())).collect();
    let want = [(PartKind::TaggedTokens, vec![1, 300, u32::MAX]), (PartKind::TaggedTokens, vec![5])];
    assert_eq!(parts, want);
}

proptest! {
    /// A decoder reads both encodings, also of one field, and so do we.
    #[test]
    fn ids_are_read_as_a_decoder_reads_them(
        runs in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u32>(), 0..40)), 0..6),
    ) {
        let mut input = Vec::new();
        for (packed, ids) in &runs {
            if *packed {
                prost::encoding::uint32::encode_packed(2, ids, &mut input);
            } else {
                prost::encoding::uint32::encode_repeated(2, ids, &mut input);
            }
        }
        let decoded = TokenizedInput::decode(&input[..]).unwrap().input_ids;
        let request = EmbedRequest { request_id: "r".to_owned(), tokenized: Some(tokenized(&[])) };
        let mut message = request.encode_to_vec();
        prost::encoding::bytes::encode(2, &input, &mut message);
        let head = u32::try_from(message.len()).unwrap().to_be_bytes();
        let (parsed, body) = parse(Api::VllmGrpcEmbed, [&[0], &head[..], &message].concat()).unwrap();
        let ids = parsed.prompt.parts.iter().filter(|part| part.kind != PartKind::Text);
        let ids: Vec<u32> = ids.flat_map(|part| part.token_ids(&body).collect::<Vec<_>>()).collect();
        prop_assert_eq!(ids, decoded);
        prop_assert!(parsed.prompt.parts.len() <= runs.len().max(1), "a run is one part");
    }
}

#[test]
fn invalid_frames_are_refused() {
    let table: [(&[u8], &str); 14] = [
        (b"", "cut off"),
        (&[0, 0], "cut off"),
        (&[0, 0, 0, 0, 2, 40], "cut off"),
        (&[1, 0, 0, 0, 2, 26, 0], "compressed"),
        (&[1, 0, 0, 0, 0], "compressed"),
        (b"no healthy upstream", "does not begin with a frame"),
        // A number without an end, at the end and before it; a key alone; one of more than ten bytes.
        (&[0, 0, 0, 0, 2, 40, 0x80], "no protobuf message"),
        (&[0, 0, 0, 0, 3, 40, 0x80, 0x80], "no protobuf message"),
        (&[0, 0, 0, 0, 1, 40], "no protobuf message"),
        (&[0, 0, 0, 0, 12, 40, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], "no protobuf message"),
        // Field 0, a group, and a field that is longer than its message.
        (&[0, 0, 0, 0, 2, 0, 0], "no protobuf message"),
        (&[0, 0, 0, 0, 2, 11, 12], "no protobuf message"),
        (&[0, 0, 0, 0, 3, 26, 2, 65], "no protobuf message"),
        (&[0, 0, 0, 0, 4, 18, 2, 10, 1], "no protobuf message"),
    ];
    for (body, problem) in table {
        refused(Api::VllmGrpcGenerate, body, &format!("{TEXT}the "));
        let error = parse(Api::VllmGrpcGenerate, body).unwrap_err();
        assert!(error.contains(problem), "{body:?}: {error}");
    }
}

#[test]
fn only_the_first_frame_is_read() {
    let text = framed(&generate(Input::Text("hi".to_owned())));
    for rest in [&text[..], b"more", &[1, 0, 0, 0, 0]] {
        assert_eq!(parts(Api::VllmGrpcGenerate, [&text, rest].concat()), [(PartKind::Text, "hi")]);
    }
}

/// The usage of a response, however it is cut.
fn usage(api: Api, response: &[u8]) -> Option<Usage> {
    let found = |size: usize| {
        let mut reading = UsageReading::new(api);
        response.chunks(size).for_each(|chunk| reading.feed(chunk));
        reading.found()
    };
    let whole = found(response.len().max(1));
    for size in 1..20 {
        assert_eq!(found(size), whole, "in chunks of {size} bytes");
    }
    whole
}

fn used(prompt: u64, completion: u64, cached: u64) -> Option<Usage> {
    let some = |count: u64| Some(count).filter(|count| *count > 0);
    let usage = Usage {
        prompt_tokens: some(prompt),
        completion_tokens: some(completion),
        cached_tokens: some(cached),
    };
    Some(usage).filter(|usage| *usage != Usage::default())
}

#[test]
fn usage_adds_up_over_the_frames_of_a_response() {
    let chunk = |prompt_tokens, completion_tokens, cached_tokens| {
        let chunk = Chunk { token_ids: vec![1; 300], prompt_tokens, completion_tokens, cached_tokens };
        framed(&GenerateResponse { response: Some(Response::Chunk(chunk)) })
    };
    let complete = |prompt_tokens, completion_tokens, cached_tokens| {
        let finish_reason = "stop".to_owned();
        let complete =
            Complete { output_ids: vec![], finish_reason, prompt_tokens, completion_tokens, cached_tokens };
        framed(&GenerateResponse { response: Some(Response::Complete(complete)) })
    };
    let compressed = [1, 0, 0, 0, 4, 18, 2, 24, 9];
    let broken = [0, 0, 0, 0, 4, 18, 3, 24, 9];
    let table = [
        (vec![complete(7, 10, 3)], used(7, 10, 3)),
        (vec![chunk(7, 1, 3), chunk(0, 2, 0), complete(0, 10, 0)], used(7, 10, 3)),
        (vec![chunk(7, 1, 0), complete(8, 10, 3)], used(8, 10, 3)),
        (vec![chunk(0, 0, 0)], None),
        (vec![compressed.to_vec(), complete(7, 10, 0)], used(7, 10, 0)),
        (vec![broken.to_vec(), complete(7, 10, 0)], used(7, 10, 0)),
        (vec![complete(7, 10, 0), broken.to_vec()], used(7, 10, 0)),
        (vec![complete(7, 10, 0), b"no healthy upstream".to_vec(), complete(9, 9, 9)], used(7, 10, 0)),
        (vec![chunk(7, 1, 0), complete(8, 10, 3)[..9].to_vec()], used(7, 1, 0)),
        (vec![], None),
    ];
    for (frames, want) in table {
        assert_eq!(usage(Api::VllmGrpcGenerate, &frames.concat()), want, "{frames:?}");
    }
    let embedded = framed(&EmbedResponse { embedding: vec![0.5; 1000], prompt_tokens: 7 });
    assert_eq!(usage(Api::VllmGrpcEmbed, &embedded), used(7, 0, 0));
}
