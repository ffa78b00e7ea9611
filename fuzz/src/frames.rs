//! gRPC frames and what is in them, as prost decodes it.

use bytes::Bytes;
use prost::Message;
use usher::request::usage::{Usage, UsageReader};
use usher::request::{Api, Modality, ParseError, Part, PartKind, Request};

use super::protos::{
    EmbedRequest, EmbedResponse, GenerateRequest, GenerateResponse, Input, Response, framed,
};

/// The frames of some bytes, in which each message is behind its flag, and whether they
/// end with the last one.
fn split(mut bytes: &[u8]) -> (Vec<(u8, &[u8])>, bool) {
    let mut frames = Vec::new();
    while let Some((&[flag, a, b, c, d], rest)) = bytes.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        let Some((message, rest)) = rest.split_at_checked(len) else { break };
        frames.push((flag, message));
        bytes = rest;
    }
    (frames, bytes.is_empty())
}

/// Checks a request of vLLM's service.
///
/// - A body that does not begin with a whole frame is refused.
/// - What prost decodes is what we read of it, written again as an encoder writes it.
pub fn check_request(
    api: Api,
    whole: &Result<Request, ParseError>,
    body: &[u8],
    parse: impl Fn(Bytes) -> Result<Request, ParseError>,
) {
    let message = match split(body).0.first() {
        Some((0, message)) => *message,
        _ => return assert!(matches!(whole, Err(ParseError::Grpc(_))), "{whole:?}"),
    };
    if let Ok(request) = whole {
        assert_eq!((request.model.as_str(), request.target_model.as_str()), ("", ""));
    }
    if api == Api::VllmGrpcEmbed {
        let Ok(decoded) = EmbedRequest::decode(message) else { return };
        let decoded =
            GenerateRequest { input: decoded.tokenized.map(Input::Tokenized), ..GenerateRequest::default() };
        let request = EmbedRequest {
            tokenized: decoded.input.clone().map(|input| match input {
                Input::Tokenized(tokenized) => tokenized,
                Input::Text(_) => unreachable!("it has none"),
            }),
            ..EmbedRequest::default()
        };
        return check_generate(&decoded, &parse(framed(&request).into()).expect("it is a request"));
    }
    let Ok(decoded) = GenerateRequest::decode(message) else { return };
    check_generate(&decoded, &parse(framed(&decoded).into()).expect("it is a request"));
}

fn check_generate(decoded: &GenerateRequest, request: &Request) {
    assert_eq!(request.stream, decoded.stream);
    let max_tokens = decoded.sampling_params.as_ref().and_then(|params| params.max_tokens);
    assert_eq!(request.max_output_tokens, max_tokens.map(u64::from));
    let bytes = |part: &Part| part.bytes(&request.body).into_owned();
    let (ids, text) = match &decoded.input {
        Some(Input::Tokenized(input)) => (input.input_ids.as_slice(), input.original_text.as_str()),
        Some(Input::Text(text)) => (&[][..], text.as_str()),
        None => (&[][..], ""),
    };
    let parts = &request.prompt.parts;
    assert_eq!(parts.iter().flat_map(|part| part.token_ids(&request.body)).collect::<Vec<_>>(), ids);
    if ids.is_empty() {
        assert!(parts.iter().all(|part| part.kind == PartKind::Text));
        assert_eq!(parts.iter().flat_map(bytes).collect::<Vec<_>>(), text.as_bytes());
    }
    let items = decoded.mm_inputs.clone().unwrap_or_default();
    assert_eq!(request.prompt.features.len(), items.mm_hashes.len());
    for (at, (feature, hash)) in request.prompt.features.iter().zip(&items.mm_hashes).enumerate() {
        assert_eq!(
            (feature.modality, bytes(&feature.hash)),
            (Some(Modality::Image), hash.clone().into_bytes())
        );
        let place = items.mm_placeholders.get(at);
        let tokens = place.and_then(|place| Some(place.offset..place.offset.checked_add(place.length)?));
        assert_eq!(feature.tokens, tokens);
    }
}

/// The usage in chunks of a response.
pub fn usage(api: Api, chunks: &[Bytes]) -> Option<Usage> {
    let mut reader = UsageReader::of(api).expect("the response is read");
    chunks.iter().for_each(|chunk| reader.feed(chunk));
    reader.found()
}

/// A response of vLLM's service, written again as an encoder writes it, and whether it has
/// tokens; `None` if prost doesn't decode all of its frames.
pub fn generated(response: &[u8]) -> Option<(Bytes, bool)> {
    let (frames, true) = split(response) else { return None };
    let mut again = Vec::new();
    let mut has_tokens = false;
    for (flag, message) in frames {
        let (0, Ok(response)) = (flag, GenerateResponse::decode(message)) else { return None };
        again.extend(framed(&response));
        has_tokens |= match response.response {
            Some(Response::Chunk(chunk)) => !chunk.token_ids.is_empty(),
            Some(Response::Complete(complete)) => !complete.output_ids.is_empty(),
            None => false,
        };
    }
    Some((again.into(), has_tokens))
}

/// Checks the usage that was found in a response of vLLM's service, if prost decodes all
/// of its frames: it is what they say, written again as an encoder writes it.
pub fn check_usage(api: Api, response: &[u8]) {
    let (frames, true) = split(response) else { return };
    let mut again = Vec::new();
    let mut want = Usage::default();
    for (flag, message) in frames {
        if flag != 0 {
            return;
        }
        let [prompt, completion, cached] = if api == Api::VllmGrpcEmbed {
            let Ok(response) = EmbedResponse::decode(message) else { return };
            again.extend(framed(&response));
            [response.prompt_tokens, 0, 0]
        } else {
            let Ok(response) = GenerateResponse::decode(message) else { return };
            again.extend(framed(&response));
            match response.response {
                Some(Response::Chunk(chunk)) => {
                    [chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens]
                }
                Some(Response::Complete(complete)) => {
                    [complete.prompt_tokens, complete.completion_tokens, complete.cached_tokens]
                }
                None => [0, 0, 0],
            }
        };
        // Numbers that are 0 are not written.
        let later = |old: Option<u64>, new: u32| Some(u64::from(new)).filter(|new| *new > 0).or(old);
        want = Usage {
            prompt_tokens: later(want.prompt_tokens, prompt),
            completion_tokens: later(want.completion_tokens, completion),
            cached_tokens: later(want.cached_tokens, cached),
        };
    }
    let found = usage(api, &[again.into()]);
    assert_eq!(found, Some(want).filter(|want| *want != Usage::default()));
}
